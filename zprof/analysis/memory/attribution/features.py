"""Compute the features for tenant rules: a block's origin, and its lifetime relative to a step's passes.

A pass is a sequence of allocations of one kind: forward, backward or optimizer. Only the order of allocations
matters; there are no time constants. A block whose end is not in the history is compared with the same block
of the previous step.
"""

from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.attribution.origins import Origin
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, Bool, Int

NONE, FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2, 3
_KINDS = {
    Origin.FORWARD: FORWARD,
    Origin.FORWARD_NAME: FORWARD,
    Origin.BARE: BACKWARD,
    Origin.BACKWARD: BACKWARD,
    Origin.BACKWARD_NAME: BACKWARD,
    Origin.RECOMPUTE: BACKWARD,
    Origin.OPTIMIZER: OPTIMIZER,
    Origin.OPTIMIZER_INIT: OPTIMIZER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """One entry per pass in time order: its kind, and the times of its first and last allocation."""

    kind: Int
    first_ns: Int
    last_ns: Int

    def find_next_starts(self, kind: int, index: Int) -> Int:
        """Return the start of the first pass of a kind after each of these passes, or FOREVER."""
        begins = np.append(self.first_ns, FOREVER)
        rows_of_kind = np.flatnonzero(self.kind == kind)
        position = np.searchsorted(rows_of_kind, index, side="right")
        following: Int = begins[np.append(rows_of_kind, len(self.kind))[position]]
        return following


def find_passes(blocks: HeldBlocks, origin: Int) -> tuple[Passes, Int]:
    """Return the passes and the pass of each block; -1 for a block that indicates no pass or is older."""
    kind = _classify_blocks(blocks, origin)
    rows = np.flatnonzero(kind != NONE)
    kinds = kind[rows]
    starts = np.flatnonzero(np.append(True, kinds[1:] != kinds[:-1])) if len(rows) else rows
    member = np.full(len(blocks), -1, dtype=np.int64)
    counted = np.zeros(len(rows), dtype=np.int64)
    counted[starts] = 1
    member[rows] = np.cumsum(counted) - 1
    ends = np.append(starts[1:], len(rows)) - 1 if len(rows) else starts
    return (
        Passes(
            kind=kinds[starts],
            first_ns=blocks.begin_ns[rows[starts]],
            last_ns=blocks.begin_ns[rows[ends]],
        ),
        member,
    )


def _classify_blocks(blocks: HeldBlocks, origin: Int) -> Int:
    table = np.array([_KINDS.get(code, NONE) for code in Origin], dtype=np.int64)
    kind = table[origin]
    kind[blocks.before] = NONE
    # An allocation without a frame does not indicate a backward if no forward precedes it.
    forward = np.flatnonzero(kind == FORWARD)
    first = int(forward[0]) if len(forward) else len(kind)
    kind[:first][kind[:first] == BACKWARD] = NONE
    return kind


def find_next_pass_block(blocks: HeldBlocks, rows: Bool, member: Int) -> Int:
    """Return the allocation time of the next block of a pass that is not in ``rows``; else FOREVER."""
    others = blocks.begin_ns[np.flatnonzero((member >= 0) & ~rows)]
    following: Int = np.append(others, FOREVER)[np.searchsorted(others, blocks.begin_ns, side="right")]
    return following


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Columns over the blocks; every rule is a mask over them.

    made_in: the kind of pass that the block indicates (NONE: it indicates none, or is older than the
    history). under_way: index of the pass that was running when it was allocated, -1 before the first. stays:
    it was still live when the history ended. in_open_pass: the history ends in that pass, so that the end of
    a block that stays is unknown. outlives_pass: it was live after that pass's last allocation. sees_*: it
    was live when the next pass of that kind started. optimizer_is_next: an optimizer pass comes before the
    next forward pass. dies_in_backward: it ends in the backward pass that follows. outlives_recompute: it was
    live after the run of recomputed operators that allocated it.
    """

    origin: Int
    requested_bytes: Int
    made_in: Int
    under_way: Int
    passes: Passes
    stays: Bool
    before: Bool
    in_open_pass: Bool
    outlives_pass: Bool
    sees_forward: Bool
    sees_backward: Bool
    sees_optimizer: Bool
    optimizer_is_next: Bool
    dies_in_backward: Bool
    outlives_recompute: Bool

    def made_by(self, *origins: Origin) -> Bool:
        """Mark the blocks of these origins."""
        return np.isin(self.origin, [int(origin) for origin in origins])


def compute_features(blocks: HeldBlocks, origin: Int) -> Features:
    """Compute the features of every block."""
    passes, member = find_passes(blocks, origin)
    under_way = np.searchsorted(passes.first_ns, blocks.begin_ns, side="right") - 1
    under_way = np.where(blocks.before, -1, np.where(member >= 0, member, under_way))
    within, pass_index, end = under_way >= 0, np.maximum(under_way, 0), blocks.freed_ns
    forward, backward, optimizer = (
        _find_next_pass_start(passes, kind, pass_index) for kind in (FORWARD, BACKWARD, OPTIMIZER)
    )
    return Features(
        origin=origin,
        requested_bytes=blocks.requested_bytes,
        made_in=np.where(member >= 0, np.append(passes.kind, NONE)[pass_index], NONE),
        under_way=under_way,
        passes=passes,
        stays=end == FOREVER,
        before=blocks.before,
        in_open_pass=within & (pass_index == len(passes.kind) - 1),
        outlives_pass=within & (end > np.append(passes.last_ns, FOREVER)[pass_index]),
        sees_forward=within & _lives_until(end, forward),
        sees_backward=within & _lives_until(end, backward),
        sees_optimizer=within & _lives_until(end, optimizer),
        optimizer_is_next=within & (optimizer < forward),
        dies_in_backward=within & (end != FOREVER) & (end <= _find_backward_end(passes, pass_index)),
        outlives_recompute=_find_outliving_recompute(blocks, origin, member),
    )


def _find_next_pass_start(passes: Passes, kind: int, pass_index: Int) -> Int:
    return (
        passes.find_next_starts(kind, pass_index)
        if len(passes.kind)
        else np.full(len(pass_index), FOREVER, dtype=np.int64)
    )


def _lives_until(end_ns: Int, time_ns: Int) -> Bool:
    """Mark lifetimes that extend past a time; False if the time is FOREVER."""
    reached: Bool = (time_ns != FOREVER) & (end_ns > time_ns)
    return reached


def _find_backward_end(passes: Passes, pass_index: Int) -> Int:
    """Return the end of the backward pass after each pass, i.e. the start of the next; else FOREVER."""
    if not len(passes.kind):
        return np.full(len(pass_index), FOREVER, dtype=np.int64)
    backward_rows = np.append(np.flatnonzero(passes.kind == BACKWARD), len(passes.kind))
    following = backward_rows[np.searchsorted(backward_rows[:-1], pass_index, side="right")]
    begins: Int = np.append(passes.first_ns, [FOREVER, FOREVER])[following + 1]
    return begins


def _find_outliving_recompute(blocks: HeldBlocks, origin: Int, member: Int) -> Bool:
    rows = (origin == Origin.RECOMPUTE) & (member >= 0)
    following = find_next_pass_block(blocks, rows, member)
    outlives: Bool = rows & (following != FOREVER) & (blocks.freed_ns > following)
    return outlives


def find_previous_blocks(blocks: HeldBlocks, features: Features) -> Int:
    """Return the previous step's row of the same block, for blocks of the open pass; else -1."""
    twin = np.full(len(blocks), -1, dtype=np.int64)
    last = len(features.passes.kind) - 1
    same_kind = (
        np.flatnonzero(features.passes.kind[:-1] == features.passes.kind[-1:]) if last > 0 else np.zeros(0)
    )
    if not len(same_kind):
        return twin
    current_rows = np.flatnonzero(features.under_way == last)
    previous_rows = np.flatnonzero(features.under_way == int(same_kind[-1]))
    row_by_key = {
        key: row for key, row in zip(_make_keys(blocks, previous_rows), previous_rows.tolist(), strict=True)
    }
    twin[current_rows] = [row_by_key.get(key, -1) for key in _make_keys(blocks, current_rows)]
    return twin


def _make_keys(blocks: HeldBlocks, rows: Int) -> list[tuple[int, int, int]]:
    """Return (size, stack, number of earlier equal rows) of each row, in allocation order."""
    counts: dict[tuple[int, int], int] = {}
    keys: list[tuple[int, int, int]] = []
    sizes, stacks = blocks.requested_bytes[rows].tolist(), blocks.stack[rows].tolist()
    for size, stack in zip(sizes, stacks, strict=True):
        count = counts[size, stack] = counts.get((size, stack), -1) + 1
        keys.append((size, stack, count))
    return keys
