"""Group the blocks that are live at an instant of a history by owner and place of allocation."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.memory.attribution.block_tenants import Attribution, BlockTenants, get_tenant_name
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import Int
from zprof.model.findings import Confidence
from zprof.model.memory import Allocation, Basis

#: Maximum number of groups of a rank; the smaller ones are merged per tenant.
MAX_GROUPS = 60
#: Number of stacks whose place is looked for, the largest; it bounds the time that hostile files take.
_MAX_PARTS = 10_000
#: From the strongest to the weakest.
_BASIS_ORDER = (Basis.TAGGED, Basis.RULE, Basis.SIZES, Basis.UNKNOWN)
_CONFIDENCE_ORDER = (*Confidence, None)


class _StackPart(Struct, frozen=True):
    """Blocks with one attribution and one stack; ``row`` is the largest of them."""

    attribution: Attribution
    stack: int
    before: bool
    row: int
    bytes: int
    count: int
    smallest_bytes: int
    largest_bytes: int


def list_largest_groups(
    rank: int, blocks: HeldBlocks, rows: Int, names: BlockTenants, stacks: StackIndex
) -> tuple[Allocation, ...]:
    """Return the groups of some blocks, largest first, then the rest of each tenant; they sum to all bytes.

    A group is what one owner allocated at one place of the user's code with one operator. Blocks from before
    the history have no stack: they form one group per owner and reason.
    """
    parts = sorted(_list_parts(blocks, rows, names, stacks), key=lambda part: (-part.bytes, part.row))
    parts_by_key: dict[tuple[object, ...], list[_StackPart]] = {}
    for part in parts[:_MAX_PARTS]:
        parts_by_key.setdefault(_make_key(part, stacks), []).append(part)
    groups = [_make_group(rank, members, stacks) for members in parts_by_key.values()]
    groups.sort(key=lambda group: (-group.held_bytes, group.tenant, group.sub, group.where, group.operator))
    rest_by_tenant: dict[str, list[_StackPart]] = {}
    for part in parts[_MAX_PARTS:]:
        rest_by_tenant.setdefault(get_tenant_name(part.attribution), []).append(part)
    rest = (
        replace(_make_group(rank, members, None), groups=len(members)) for members in rest_by_tenant.values()
    )
    return (*groups[:MAX_GROUPS], *_merge_rest([*groups[MAX_GROUPS:], *rest]))


def _list_parts(blocks: HeldBlocks, rows: Int, names: BlockTenants, stacks: StackIndex) -> list[_StackPart]:
    """Return the blocks by attribution and stack."""
    if not len(rows):
        return []
    size, stack = blocks.requested_bytes[rows], blocks.stack[rows]
    before = blocks.before[rows] & ~stacks.is_known(stack)
    stack = np.where(before, -1, stack)
    keys = np.stack([names.number[rows], stack, before], axis=1)
    # rows by key, and by size within a key
    order = np.lexsort((size, before, stack, names.number[rows]))
    keys, size, rows = keys[order], size[order], rows[order]
    starts = np.flatnonzero(np.append(True, np.any(keys[1:] != keys[:-1], axis=1)))
    ends = np.append(starts[1:], len(rows))
    totals = np.add.reduceat(size, starts)
    return [
        _StackPart(
            attribution=names.attributions[int(keys[start, 0])],
            stack=int(keys[start, 1]),
            before=bool(keys[start, 2]),
            row=int(rows[end - 1]),
            bytes=int(total),
            count=int(end - start),
            smallest_bytes=int(size[start]),
            largest_bytes=int(size[end - 1]),
        )
        for start, end, total in zip(starts.tolist(), ends.tolist(), totals.tolist(), strict=True)
    ]


def _make_key(part: _StackPart, stacks: StackIndex) -> tuple[object, ...]:
    owner = (part.attribution.tenant, part.attribution.sub)
    if part.before:
        return (*owner, True, part.attribution.reason, "")
    return (*owner, False, stacks.find_user_frame(part.stack), stacks.find_operator(part.stack))


def _make_group(rank: int, parts: Sequence[_StackPart], stacks: StackIndex | None) -> Allocation:
    """Return one group; of several attributions the largest has the reason, the weakest the basis.

    Without ``stacks`` it has no place.
    """
    main = max(parts, key=lambda part: (part.bytes, -part.row))
    attributions = [part.attribution for part in parts]
    count = sum(part.count for part in parts)
    return Allocation(
        rank=rank,
        bytes=max(part.largest_bytes for part in parts),
        tenant=get_tenant_name(main.attribution),
        sub=main.attribution.sub,
        module="",
        stack=stacks.format_stack(main.stack) if stacks else (),
        operator=stacks.find_operator(main.stack) if stacks else "",
        basis=max((entry.basis for entry in attributions), key=_BASIS_ORDER.index),
        count=count,
        total_bytes=sum(part.bytes for part in parts) if count > 1 else None,
        where=stacks.find_user_frame(main.stack) if stacks else "",
        confidence=max((entry.confidence for entry in attributions), key=_CONFIDENCE_ORDER.index),
        reason=main.attribution.reason,
        smallest_bytes=min(part.smallest_bytes for part in parts),
        before=main.before,
    )


def _merge_rest(groups: Sequence[Allocation]) -> list[Allocation]:
    """Return one entry per tenant for the groups that are too small to list, largest first."""
    by_tenant: dict[str, list[Allocation]] = {}
    for group in groups:
        by_tenant.setdefault(group.tenant, []).append(group)
    merged = [
        members[0]
        if len(members) == members[0].groups == 1
        else replace(
            max(members, key=lambda group: group.bytes),
            sub="",
            stack=(),
            operator="",
            basis=max((group.basis for group in members), key=_BASIS_ORDER.index),
            count=sum(group.count for group in members),
            total_bytes=sum(group.held_bytes for group in members),
            where="",
            confidence=max((group.confidence for group in members), key=_CONFIDENCE_ORDER.index),
            reason="",
            smallest_bytes=min(group.smallest_bytes or 0 for group in members),
            before=False,
            groups=sum(group.groups for group in members),
        )
        for members in by_tenant.values()
    ]
    return sorted(merged, key=lambda group: -group.held_bytes)
