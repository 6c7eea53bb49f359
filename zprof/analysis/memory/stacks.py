"""Group a history's live blocks at a moment by owner and allocation site, and build their stack tree.

Frames without side branches form one node, and branches too small to show are merged. A node's bytes include
its children's, so children sum to at most their parent.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.memory.attribution.block_tenants import Attribution, BlockTenants, get_tenant_name
from zprof.analysis.memory.attribution.frames import FrameKind, StackIndex
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.roles import tenant_name
from zprof.analysis.memory.tables import UNTAGGED, Int
from zprof.model.findings import Confidence
from zprof.model.memory import Allocation, Basis, StackNode, StackNodeKind, StackTree

#: Maximum number of groups per rank; smaller groups are merged per tenant.
MAX_GROUPS = 60
#: Number of largest stacks whose allocation site is determined; bounds the time spent on hostile files.
_MAX_PARTS = 10_000
#: Strongest first.
_BASIS_ORDER = (Basis.TAGGED, Basis.RULE, Basis.SIZES, Basis.UNKNOWN)
_CONFIDENCE_ORDER = (*Confidence, None)
#: Maximum number of nodes; half are for frames, as each frame node can have a node of merged branches.
MAX_NODES = 300
#: Smaller branches, relative to the root, are merged.
_MIN_RATIO = 0.002
#: Maximum number of separate stacks (the largest), and of frames per stack; both bound hostile files.
_MAX_STACKS = 4_000
_MAX_DEPTH = 100


class _StackPart(Struct, frozen=True):
    """Blocks with one attribution and one stack; ``row``: the largest block."""

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
    """Return the blocks' groups, largest first, then the rest of each tenant; they sum to all bytes.

    A group holds one owner's blocks from one line of user code and one operator. Blocks from before the
    history have no stack and form one group per owner and reason.
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
    """Return one group; of several attributions, the largest provides the reason, the weakest the basis.

    Without ``stacks``, the group has no allocation site.
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
    """Return one entry per tenant for groups too small to list, largest first."""
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


class _Branch(Struct):
    """A node under construction; ``sizes``: bytes by tenant."""

    label: str
    kind: StackNodeKind = StackNodeKind.FRAMES
    is_user: bool = False
    is_operator: bool = False
    sizes: Int = field(default_factory=lambda: np.zeros(UNTAGGED + 1, dtype=np.int64))
    bytes: int = 0
    blocks: int = 0
    children: dict[str, "_Branch"] = field(default_factory=dict)

    def add(self, sizes: Int, blocks: int) -> None:
        """Add one stack's blocks."""
        self.sizes = self.sizes + sizes
        self.bytes += int(sizes.sum())
        self.blocks += blocks


class _LiveStack(Struct, frozen=True):
    """One stack's live blocks; ``before``: blocks without a stack, from before the history."""

    number: int
    before: bool
    sizes: Int
    blocks: int


def build_stack_tree(
    rank: int, device: str, blocks: HeldBlocks, rows: Int, names: BlockTenants, stacks: StackIndex
) -> StackTree:
    """Return these blocks' stacks as a tree, each parent before its children."""
    root = _Branch("", StackNodeKind.ROOT)
    found = _sum_by_stack(blocks, rows, names, stacks)
    for stack in found[:_MAX_STACKS]:
        branch = root
        branch.add(stack.sizes, stack.blocks)
        for key, made in _list_branches(stack, stacks):
            branch = branch.children.setdefault(key, made)
            branch.add(stack.sizes, stack.blocks)
    rest = found[_MAX_STACKS:]
    for stack in rest:
        root.add(stack.sizes, stack.blocks)
    kept = _select_largest(root)
    return StackTree(rank=rank, device=device, nodes=tuple(_list_nodes(root, kept, len(rest))))


def _sum_by_stack(blocks: HeldBlocks, rows: Int, names: BlockTenants, stacks: StackIndex) -> list[_LiveStack]:
    """Return the bytes by stack and tenant, largest stack first."""
    stack = blocks.stack[rows]
    known = stacks.is_known(stack)
    before = blocks.before[rows] & ~known
    numbers, index = np.unique(np.where(known, stack, np.where(before, -2, -1)), return_inverse=True)
    sizes = np.zeros((len(numbers), UNTAGGED + 1), dtype=np.int64)
    np.add.at(sizes, (index.reshape(-1), names.tenant[rows]), blocks.requested_bytes[rows])
    counts = np.bincount(index.reshape(-1), minlength=len(numbers))
    order = np.argsort(-sizes.sum(axis=1), kind="stable")
    return [
        _LiveStack(int(numbers[at]), bool(numbers[at] == -2), sizes[at], int(counts[at]))
        for at in order.tolist()
    ]


def _list_branches(stack: _LiveStack, stacks: StackIndex) -> Iterator[tuple[str, _Branch]]:
    """Yield key and node of each frame, outermost first, and finally of the operator."""
    if stack.number < 0:
        without_stack = StackNodeKind.BEFORE if stack.before else StackNodeKind.NO_STACK
        yield without_stack.value, _Branch("", without_stack)
        return
    for text, kind in stacks.list_frames(stack.number)[: -_MAX_DEPTH - 1 : -1]:
        if kind is not FrameKind.OPERATOR:
            yield f"frame {text}", _Branch(text, is_user=kind is FrameKind.USER)
    operator = stacks.find_native_operator(stack.number)
    if operator:
        yield f"operator {operator}", _Branch(operator, is_operator=True)


def _select_largest(root: _Branch) -> set[int]:
    """Return the ids of the largest branches, which are shown, each after its parent."""
    found: list[tuple[int, int, int]] = []
    todo = [(0, root)]
    while todo:
        depth, branch = todo.pop()
        chain, children = _follow_chain(branch)
        found.append((-branch.bytes, depth, id(branch)))
        todo += [(depth + len(chain), child) for child in children]
    found.sort()
    least = _MIN_RATIO * root.bytes
    return {entry for size, _, entry in found[: MAX_NODES // 2] if -size >= least or entry == id(root)}


def _follow_chain(branch: _Branch) -> tuple[list[_Branch], list[_Branch]]:
    """Return the branch and its chain of only children, and the branches below the chain."""
    chain = [branch]
    if branch.kind is StackNodeKind.ROOT:
        return chain, list(branch.children.values())
    while len(chain[-1].children) == 1:
        (child,) = chain[-1].children.values()
        if child.bytes != chain[-1].bytes or child.blocks != chain[-1].blocks:
            break
        chain.append(child)
    return chain, list(chain[-1].children.values())


def _list_nodes(root: _Branch, kept: set[int], rest: int) -> Iterator[StackNode]:
    """Yield the nodes to show in depth-first order, largest child first; ``rest``: omitted stacks."""
    todo: list[tuple[_Branch | StackNode, int]] = [(root, -1)]
    position = 0
    while todo:
        branch, parent = todo.pop()
        if isinstance(branch, StackNode):
            yield branch
            position += 1
            continue
        chain, children = _follow_chain(branch)
        yield _make_node(chain, parent)
        shown = sorted((child for child in children if id(child) in kept), key=lambda child: -child.bytes)
        small = [child for child in children if id(child) not in kept]
        more = rest if branch is root else 0
        merged = _merge_branches(small, position, root if more else None, children, more)
        todo += [(merged, position)] if merged is not None else []
        todo += [(child, position) for child in reversed(shown)]
        position += 1


def _merge_branches(
    small: Sequence[_Branch], parent: int, root: _Branch | None, children: Sequence[_Branch], rest: int
) -> StackNode | None:
    """Return the node of merged branches; at the root it includes the omitted stacks."""
    sizes = sum((branch.sizes for branch in small), np.zeros(UNTAGGED + 1, dtype=np.int64))
    blocks = sum(branch.blocks for branch in small)
    if root is not None:
        sizes = sizes + root.sizes - sum(child.sizes for child in children)
        blocks += root.blocks - sum(child.blocks for child in children)
    if not blocks:
        return None
    return StackNode(
        frame="",
        parent=parent,
        bytes=int(sizes.sum()),
        blocks=blocks,
        tenant=tenant_name(int(np.argmax(sizes))),
        kind=StackNodeKind.MERGED,
        branches=len(small) + rest,
    )


def _make_node(chain: Sequence[_Branch], parent: int) -> StackNode:
    """Return the node of a chain of frames; it shows the innermost frame of user code."""
    frames = [branch for branch in chain if not branch.is_operator]
    operator = chain[-1].label if chain[-1].is_operator else ""
    own = [branch for branch in frames if branch.is_user]
    shown = own[-1] if own else frames[-1] if frames else None
    return StackNode(
        frame=shown.label if shown else "",
        parent=parent,
        bytes=chain[0].bytes,
        blocks=chain[0].blocks,
        tenant=tenant_name(int(np.argmax(chain[0].sizes))),
        kind=chain[0].kind,
        operator=operator,
        chain=tuple(branch.label for branch in frames) if len(frames) > 1 else (),
    )
