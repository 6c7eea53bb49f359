"""Find a training step's passes in an allocator history: forward, backward and optimizer.

A pass is a sequence of allocations of one kind. Only their order matters; there are no time constants. An
allocation's kind comes from its stack, else from the program's annotations, else from its position:

* Code without Python frames is the backward thread, if stacks were recorded and a forward pass precedes it.
* Python code of no known phase, such as a loss function or a model without modules, belongs to the forward
  pass if a backward pass follows.
* Without stacks, the allocation pattern decides.
* An optimizer that allocates nothing leaves no trace. If gradients die between two backward passes, a step is
  assumed at the end of the first.

In a history without stacks: a forward pass keeps blocks that its backward pass frees one by one, between its
own allocations. So these bytes rise during the forward and fall during the backward pass. Blocks freed
together, with no allocation in between, are something else: gradients, or outputs that go out of scope.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.memory.attribution.frames import Origin
from zprof.analysis.memory.history import HeldBlocks
from zprof.analysis.memory.tables import FOREVER, Bool, Int, PhaseRange
from zprof.model.training import Phase

NONE, FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2, 3
_BARE, _UNPLACED = 4, 5
_KINDS = {
    Origin.OTHER: _UNPLACED,
    Origin.BARE: _BARE,
    Origin.FORWARD: FORWARD,
    Origin.FORWARD_NAME: FORWARD,
    Origin.CAST: FORWARD,
    Origin.BACKWARD: BACKWARD,
    Origin.BACKWARD_NAME: BACKWARD,
    Origin.RECOMPUTE: BACKWARD,
    Origin.OPTIMIZER: OPTIMIZER,
    Origin.OPTIMIZER_INIT: OPTIMIZER,
    Origin.OPTIMIZER_CALL: OPTIMIZER,
}
_ANNOTATED = {
    Phase.FORWARD.value: FORWARD,
    Phase.BACKWARD.value: BACKWARD,
    Phase.RECOMPUTE.value: BACKWARD,
    Phase.OPTIMIZER.value: OPTIMIZER,
}
#: Resolution of torch's timestamps.
CLOCK_NS = 1000
#: A step is assumed if this share of a backward pass's surviving bytes dies before the next backward pass.
_FREED_RATIO = 0.5
#: A block that lives for fewer allocations is an operator's temporary.
_MIN_AGE = 8
#: This many blocks freed without an allocation in between count as freed together.
_MIN_TOGETHER = 8
#: Minimum rise or fall of the kept bytes in a pass, as a share of their maximum.
_MIN_SWING_RATIO = 0.3


class AllocationPasses(Struct, frozen=True, kw_only=True):
    """One entry per pass in time order: its kind, and its first and last allocation times.

    An annotated pass extends to its annotation. ``closed``: the pass is known to have ended.
    """

    kind: Int
    first_ns: Int
    last_ns: Int
    closed: Bool

    def __len__(self) -> int:
        return len(self.kind)

    def find_next_starts(self, kind: int, index: Int) -> Int:
        """Return the start of the next pass of a kind after each of these passes, or FOREVER."""
        begins = np.append(self.first_ns, FOREVER)
        rows_of_kind = np.flatnonzero(self.kind == kind)
        position = np.searchsorted(rows_of_kind, index, side="right")
        return begins[np.append(rows_of_kind, len(self.kind))[position]]

    def find_running(self, time_ns: Int) -> Int:
        """Return the most recently started pass at each time, as a position; -1 before the first."""
        return np.searchsorted(self.first_ns, time_ns, side="right") - 1


def find_passes(
    blocks: HeldBlocks, origin: Int, ranges: Sequence[PhaseRange] = ()
) -> tuple[AllocationPasses, Int]:
    """Return the passes, and each block's pass; -1 if it indicates none or is older than the history."""
    kind = _classify_blocks(blocks, origin, ranges)
    optimizers = [span for span in ranges if _ANNOTATED.get(span.phase) == OPTIMIZER]
    passes, member = _collect_runs(blocks, kind, optimizers)
    unseen = [] if optimizers else _find_unseen_steps(blocks, passes, member)
    if unseen:
        passes, member = _collect_runs(blocks, kind, unseen)
    return passes, member


def _classify_blocks(blocks: HeldBlocks, origin: Int, ranges: Sequence[PhaseRange]) -> Int:
    """Return the kind of pass that each block indicates."""
    kind = np.array([_KINDS.get(code, NONE) for code in Origin], dtype=np.int64)[origin]
    if ranges:
        starts = np.array([span.begin_ns for span in ranges], dtype=np.int64)
        ends = np.array([span.end_ns for span in ranges], dtype=np.int64)
        kinds = np.array([_ANNOTATED.get(span.phase, NONE) for span in ranges], dtype=np.int64)
        # events at the time of a start may have come before it
        span = np.searchsorted(starts, blocks.begin_ns - CLOCK_NS, side="right") - 1
        inside = (span >= 0) & (blocks.begin_ns < ends[span]) & (kind >= _BARE)
        kind[inside] = kinds[span[inside]]
    kind[blocks.before] = NONE
    if not bool(((origin != Origin.BARE) & ~blocks.before).any()):
        # Decide by the allocation pattern where stacks do not identify the pass.
        rows = np.flatnonzero(kind == _BARE)
        kind[rows] = NONE
        for begin, peak, end in find_turns(blocks, rows):
            kind[rows[begin:peak]] = FORWARD
            kind[rows[peak:end]] = BACKWARD
        return kind
    return _place_unplaced(_place_bare(kind, starts_late=bool(blocks.before.any())))


def _place_bare(kind: Int, *, starts_late: bool) -> Int:
    """Decide which allocations without Python frames belong to the backward pass."""
    rows = np.flatnonzero(kind == _BARE)
    before, after = _find_neighbours(kind, rows, np.flatnonzero((kind != NONE) & (kind != _BARE)))
    is_backward = np.isin(before, (FORWARD, BACKWARD, _UNPLACED))
    is_backward |= starts_late & (before == NONE) & np.isin(after, (OPTIMIZER, BACKWARD))
    kind[rows] = np.where(is_backward, BACKWARD, NONE)
    return kind


def _place_unplaced(kind: Int) -> Int:
    """Decide which Python code of no known phase belongs to the forward pass, by the passes around it."""
    rows = np.flatnonzero(kind == _UNPLACED)
    before, after = _find_neighbours(kind, rows, np.flatnonzero((kind != NONE) & (kind != _UNPLACED)))
    is_forward = (after == BACKWARD) & (before != BACKWARD)
    is_forward |= (before == FORWARD) & np.isin(after, (FORWARD, NONE))
    inside_backward = (before == BACKWARD) & (after == BACKWARD)
    kind[rows] = np.where(is_forward, FORWARD, np.where(inside_backward, BACKWARD, NONE))
    return kind


def _find_neighbours(kind: Int, rows: Int, others: Int) -> tuple[Int, Int]:
    """Return the kinds of the nearest other rows before and after each row; NONE if there is none."""
    kinds = np.concatenate([[NONE], kind[others], [NONE]])
    position = np.searchsorted(others, rows)
    return kinds[position], kinds[position + 1]


def _collect_runs(
    blocks: HeldBlocks, kind: Int, optimizers: Sequence[PhaseRange]
) -> tuple[AllocationPasses, Int]:
    """Join neighbouring blocks of one kind, and annotated optimizer steps, into passes."""
    rows = np.flatnonzero(kind != NONE)
    times_ns = [time_ns for span in optimizers for time_ns in (span.begin_ns, span.end_ns)]
    marks = np.array([time_ns for time_ns in times_ns if time_ns != FOREVER], dtype=np.int64)
    ends = {span.end_ns for span in optimizers}
    times = np.concatenate([blocks.begin_ns[rows], marks])
    kinds = np.concatenate([kind[rows], np.full(len(marks), OPTIMIZER)]).astype(np.int64)
    order = np.argsort(times, kind="stable")
    times, kinds = times[order], kinds[order]
    starts = np.flatnonzero(np.append(True, kinds[1:] != kinds[:-1])) if len(kinds) else np.arange(0)
    stops = np.append(starts[1:], len(kinds)) - 1 if len(kinds) else starts
    run = np.zeros(len(kinds), dtype=np.int64)
    run[starts] = 1
    run = np.cumsum(run) - 1
    member = np.full(len(blocks), -1, dtype=np.int64)
    is_block = order < len(rows)
    member[rows[order[is_block]]] = run[is_block]
    last = times[stops] if len(kinds) else times
    closed = np.ones(len(starts), dtype=bool)
    if len(closed):
        closed[-1] = kinds[-1] == OPTIMIZER and int(last[-1]) in ends
    return AllocationPasses(kind=kinds[starts], first_ns=times[starts], last_ns=last, closed=closed), member


def _find_unseen_steps(blocks: HeldBlocks, passes: AllocationPasses, member: Int) -> list[PhaseRange]:
    """Return an instant after each backward pass whose surviving blocks die before the next backward pass.

    A backward pass that leaves little, compared with others, only adds to their gradients.
    """
    backward = np.flatnonzero(passes.kind == BACKWARD).tolist()
    inside = np.flatnonzero(member >= 0)
    bounds = np.searchsorted(member[inside], np.arange(len(passes) + 1))
    survivors = [
        _find_survivors(blocks, inside[bounds[index] : bounds[index + 1]], int(passes.last_ns[index]))
        for index in backward
    ]
    sizes = [int(blocks.requested_bytes[rows].sum()) for rows in survivors]
    enough_bytes = _FREED_RATIO * max(sizes, default=0)
    steps: list[PhaseRange] = []
    for number, (index, rows) in enumerate(zip(backward, survivors, strict=True)):
        following = backward[number + 1] if number + 1 < len(backward) else len(passes)
        is_last = not passes.closed[index]
        if is_last or OPTIMIZER in passes.kind[index + 1 : following] or not len(rows):
            continue
        until_ns = int(passes.first_ns[following]) if following < len(passes) else FOREVER - 1
        freed_ns, size = blocks.freed_ns[rows], blocks.requested_bytes[rows]
        freed = int(size[freed_ns < until_ns].sum())
        if freed >= _FREED_RATIO * sizes[number] and sizes[number] >= enough_bytes:
            # the last temporaries of the backward pass die at once, the gradients only after the step
            half = int(np.searchsorted(np.cumsum(size), sizes[number] / 2))
            pauses = np.diff(freed_ns[: half + 1], prepend=int(passes.last_ns[index]))
            first = int(np.argmax(pauses))
            step_ns = int(freed_ns[first]) - min(int(pauses[first]) // 2, 2 * CLOCK_NS) - 1
            steps.append(PhaseRange(begin_ns=step_ns, end_ns=step_ns, phase=Phase.OPTIMIZER.value))
    return steps


def _find_survivors(blocks: HeldBlocks, rows: Int, last_ns: int) -> Int:
    """Return a pass's blocks that are live after its last allocation, in the order of their ends."""
    rows = rows[(blocks.freed_ns[rows] > last_ns) & (blocks.begin_ns[rows] < last_ns)]
    return rows[np.argsort(blocks.freed_ns[rows], kind="stable")]


def find_turns(blocks: HeldBlocks, rows: Int) -> list[tuple[int, int, int]]:
    """Return (begin, peak, end) of each forward and its backward pass, as positions in ``rows``.

    ``rows``: the blocks to consider, in allocation order. The forward pass is [begin, peak), the backward
    pass [peak, end).
    """
    if not len(rows):
        return []
    kept = _find_kept(blocks, rows)
    size = np.where(kept, blocks.requested_bytes[rows], 0)
    begin_ns, freed_ns = blocks.begin_ns[rows], blocks.freed_ns[rows]
    by_end = np.argsort(freed_ns, kind="stable")
    freed_bytes = np.concatenate([[0], np.cumsum(size[by_end])])
    live = np.cumsum(size) - size - freed_bytes[np.searchsorted(freed_ns[by_end], begin_ns, side="right")]
    return _find_peaks(live.tolist(), kept)


def _find_kept(blocks: HeldBlocks, rows: Int) -> Bool:
    """Mark the blocks that outlive several allocations and are not freed together with many others."""
    freed_ns = blocks.freed_ns[rows]
    gap = np.searchsorted(blocks.begin_ns[rows], freed_ns, side="right")
    together = np.bincount(gap, minlength=len(rows) + 1)[gap]
    age = gap - np.arange(len(rows))
    return (freed_ns != FOREVER) & (age >= _MIN_AGE) & (together < _MIN_TOGETHER)


def _find_peaks(live: list[int], kept: Bool) -> list[tuple[int, int, int]]:
    min_swing = _MIN_SWING_RATIO * max(live, default=0)
    if min_swing <= 0:
        return []
    turns: list[tuple[int, int, int]] = []
    low = high = 0
    rising = True
    peak = begin = 0
    for position, value in enumerate(live):
        if rising:
            if value < live[low]:
                low = position
            if value > live[high] or high < low:
                high = position
            if live[high] - value >= min_swing and live[high] - live[low] >= min_swing:
                begin, peak, rising, low = low, high, False, position
        else:
            if value < live[low]:
                low = position
            if value - live[low] >= min_swing:
                turns.append((begin, peak, low + 1))
                rising, high = True, position
    if not rising:
        turns.append((begin, peak, low + 1))
    return [(_skip_plateau(first, top, kept), top, end) for first, top, end in turns]


def _skip_plateau(first: int, top: int, kept: Bool) -> int:
    """Return the first kept block at or after a low: earlier allocations belong to no pass."""
    inside = np.flatnonzero(kept[first:top])
    return first + int(inside[0]) if len(inside) else first
