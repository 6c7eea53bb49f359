"""Compute the features for tenant rules: a block's origin, and its lifetime relative to a step's passes.

A block whose end is not in the history is compared with the same block of the previous step.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.memory.attribution.origins import Origin
from zprof.analysis.memory.attribution.passes import (
    BACKWARD,
    CLOCK_NS,
    FORWARD,
    NONE,
    OPTIMIZER,
    AllocationPasses,
    find_passes,
)
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.steps_and_phases import PhaseRange
from zprof.analysis.memory.tables import FOREVER, Bool, Int

#: Live bytes at the start of a forward, as a share of the most in the history.
_VALLEY_RATIO = 0.02
#: It is a new forward if so much was live in between.
_HIGH_RATIO = 0.5
#: Share of its blocks that a forward keeps for a backward.
_KEPT_RATIO = 0.2


class Features(Struct, frozen=True, kw_only=True):
    """Columns over the blocks; every rule is a mask over them.

    made_in: the kind of pass that the block indicates (NONE: it indicates none, or is older than the
    history). ends_in: kind of the pass that was running when it was freed. under_way: index of the pass that
    was running when it was allocated, -1 before the first. stays: it was still live when the history ended.
    in_open_pass: the history ends in that pass, so that the end of a block that stays is unknown.
    outlives_pass: it was live after that pass's last allocation. outlives_step: it was live after an
    optimizer pass that has ended. sees_*: it was live when the next pass of that kind started.
    sees_next_step: it was live when a backward started after the forward that follows its own step.
    is_standing: made before the first pass or outside passes, and live in one. optimizer_is_next: an
    optimizer pass comes before the next forward pass. outlives_recompute: it was live after the run of
    recomputed operators that allocated it. outlives_forward: in a history without a backward, it was live
    after the last allocation of its forward. ends_in_first_backward, ends_after_backward: it ended in the
    first backward of the history, or after the first backward started.
    """

    origin: Int
    has_stack: Bool
    requested_bytes: Int
    made_in: Int
    under_way: Int
    passes: AllocationPasses
    ends_in: Int
    stays: Bool
    before: Bool
    in_open_pass: Bool
    outlives_pass: Bool
    sees_backward: Bool
    sees_optimizer: Bool
    sees_next_step: Bool
    optimizer_is_next: Bool
    outlives_step: Bool
    is_standing: Bool
    outlives_recompute: Bool
    outlives_forward: Bool
    ends_in_first_backward: Bool
    ends_after_backward: Bool
    has_backward: Bool

    def made_by(self, *origins: Origin) -> Bool:
        """Mark the blocks of these origins."""
        return np.isin(self.origin, [int(origin) for origin in origins])


def compute_features(
    blocks: HeldBlocks, origin: Int, has_stack: Bool, ranges: Sequence[PhaseRange] = ()
) -> Features:
    """Compute the features of every block; ``ranges`` are annotated phases."""
    passes, member = find_passes(blocks, origin, ranges)
    under_way = passes.find_running(blocks.begin_ns)
    under_way = np.where(blocks.before, -1, np.where(member >= 0, member, under_way))
    within, pass_index, end = under_way >= 0, np.maximum(under_way, 0), blocks.freed_ns
    next_ns = np.append(passes.first_ns, [FOREVER, FOREVER])[pass_index + 1]
    closed = np.append(passes.closed, False)[pass_index]
    backward_starts = passes.first_ns[passes.kind == BACKWARD]
    first_backward_ns = int(backward_starts[0]) if len(backward_starts) else FOREVER
    after = passes.first_ns[passes.first_ns > first_backward_ns]
    second_ns = int(after[0]) if len(after) else FOREVER
    forward, backward, optimizer = (
        _find_next_pass_start(passes, kind, pass_index) for kind in (FORWARD, BACKWARD, OPTIMIZER)
    )
    return Features(
        origin=origin,
        has_stack=has_stack,
        requested_bytes=blocks.requested_bytes,
        made_in=np.where(member >= 0, np.append(passes.kind, NONE)[pass_index], NONE),
        under_way=under_way,
        passes=passes,
        ends_in=np.append(passes.kind, NONE)[np.where(end == FOREVER, -1, passes.find_running(end))],
        stays=end == FOREVER,
        before=blocks.before,
        in_open_pass=within & (pass_index == len(passes) - 1) & ~np.append(passes.closed, False)[pass_index],
        outlives_pass=within & (end > np.append(passes.last_ns, FOREVER)[pass_index]),
        sees_backward=within & _lives_until(end, backward),
        sees_next_step=within & _lives_until(end, _find_next_step(passes, pass_index)),
        sees_optimizer=within & _lives_until(end - CLOCK_NS, optimizer),
        optimizer_is_next=within & (optimizer < forward),
        outlives_step=within & ((next_ns != FOREVER) | closed) & (end >= np.maximum(next_ns, 0)),
        is_standing=(end == FOREVER) | ((member < 0) & (end > _find_first_start(passes, blocks.begin_ns))),
        outlives_recompute=_find_outliving_recompute(blocks, origin, member),
        outlives_forward=_find_outliving_forward(blocks, passes, member),
        ends_in_first_backward=(end != FOREVER) & (end >= first_backward_ns) & (end <= second_ns),
        ends_after_backward=end >= first_backward_ns,
        has_backward=np.full(len(blocks), first_backward_ns != FOREVER),
    )


def _find_next_pass_start(passes: AllocationPasses, kind: int, pass_index: Int) -> Int:
    return (
        passes.find_next_starts(kind, pass_index)
        if len(passes.kind)
        else np.full(len(pass_index), FOREVER, dtype=np.int64)
    )


def _find_next_step(passes: AllocationPasses, pass_index: Int) -> Int:
    """Return the start of the backward of the step after each pass's own, or FOREVER."""
    if not len(passes):
        return np.full(len(pass_index), FOREVER, dtype=np.int64)
    own = passes.find_running(passes.find_next_starts(BACKWARD, pass_index))
    forward = passes.find_running(passes.find_next_starts(FORWARD, own))
    return passes.find_next_starts(BACKWARD, forward)


def _lives_until(end_ns: Int, time_ns: Int) -> Bool:
    """Mark lifetimes that extend past a time; False if the time is FOREVER."""
    reached: Bool = (time_ns != FOREVER) & (end_ns > time_ns)
    return reached


def _find_first_start(passes: AllocationPasses, time_ns: Int) -> Int:
    """Return the start of the first pass after each time, or FOREVER."""
    return np.append(passes.first_ns, FOREVER)[np.searchsorted(passes.first_ns, time_ns, side="right")]


def _find_outliving_forward(blocks: HeldBlocks, passes: AllocationPasses, member: Int) -> Bool:
    """Mark blocks that are live after the last allocation of their forward, without a backward to tell why.

    A forward begins where almost nothing of earlier ones is live. The last temporaries of a forward outlive
    it as well; only if it keeps many of its blocks can a backward have use for them.
    """
    outlives = np.zeros(len(blocks), dtype=bool)
    rows = np.flatnonzero(member >= 0)
    if not len(rows) or bool((passes.kind == BACKWARD).any()):
        return outlives
    begin_ns, freed_ns, size = blocks.begin_ns[rows], blocks.freed_ns[rows], blocks.requested_bytes[rows]
    by_end = np.argsort(freed_ns, kind="stable")
    freed_bytes = np.concatenate([[0], np.cumsum(size[by_end])])
    live = np.cumsum(size) - size - freed_bytes[np.searchsorted(freed_ns[by_end], begin_ns, side="right")]
    most = live.max(initial=0)
    order = np.arange(len(rows))
    last_high = np.maximum.accumulate(np.where(live >= _HIGH_RATIO * most, order, -1))
    low = np.flatnonzero(live <= _VALLEY_RATIO * most)
    starts = low[np.unique(last_high[low], return_index=True)[1]]
    forward = np.searchsorted(starts, order, side="right") - 1
    kept = freed_ns > begin_ns[np.append(starts[1:], len(rows))[forward] - 1]
    kept_ratio = np.bincount(forward, weights=kept) / np.bincount(forward)
    outlives[rows] = kept & (kept_ratio >= _KEPT_RATIO)[forward]
    return outlives


def _find_outliving_recompute(blocks: HeldBlocks, origin: Int, member: Int) -> Bool:
    rows = (origin == Origin.RECOMPUTE) & (member >= 0)
    # The allocation time of the next block of a pass that is not in ``rows``; else FOREVER.
    others = blocks.begin_ns[np.flatnonzero((member >= 0) & ~rows)]
    following = np.append(others, FOREVER)[np.searchsorted(others, blocks.begin_ns, side="right")]
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
