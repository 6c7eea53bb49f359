"""Derive waits and blocks of the model from the structure of a sharded program, recorded or not.

A recording shows only the wait that ended last. If that wait is removed, an earlier wait takes effect, such
as for the copy that fills a buffer, or for the reduction whose buffer is reused. Such dependencies follow
from the usual structure of these programs. They are used only if the recording does not contradict them.

Nor may a recording show where blocks of the model start. The device runs the same kernels for each block, so
the kernel sequence of a pass repeats, and its longest repeating section contains the blocks. The forward and
backward of each micro-batch are searched separately.
"""

import re
from collections.abc import Callable, Collection, Sequence
from itertools import groupby, pairwise

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Texts
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind
from zprof.step.tasks import NONE, Bools, Graph, RankGraph, RankTasks, mark_rows, step_places

#: Tolerance for work that starts before the end of its dependency: clocks drift and times are rounded.
_TOLERANCE_NS = 4_000.0
#: A dependency inferred from the structure must hold for this share of its occurrences in the recording.
_HOLDS_RATIO = 0.97
_MAX_LAG_GATHERS = 4
#: Calls that order a collective after other streams, or delay it until memory is free.
_ORDERING_CALLS = re.compile(r"(cuda|hip|cu)(Event\w+|StreamWaitEvent)", re.ASCII)
#: FSDP2's operator that packs gradients into the buffer of a reduction.
COPIES_GRADIENTS = "chunk_cat"
REDUCING_KINDS = frozenset(
    {CollectiveKind.REDUCE_SCATTER.value, CollectiveKind.ALL_REDUCE.value, CollectiveKind.ALL_TO_ALL.value}
)
#: Minimum kernels per block, and minimum blocks per pass.
_MIN_KERNELS, _MIN_BLOCKS = 3, 2
#: Maximum period, in kernels.
_MAX_KERNELS = 400
#: A shorter period that repeats for nearly as long is the block; the longer period spans several blocks.
_NEARLY_RATIO = 0.9
#: A section that covers a smaller share of the kernels of a micro-batch is not a pass.
_PASS_RATIO = 0.1
_MAX_MICRO_BATCHES = 64
#: A repeat of this many first kernels marks the start of a micro-batch.
_OPENING_KERNELS = 4
#: Minimum length of the shortest micro-batch relative to the longest: they differ only by gradient
#: accumulation.
_SIMILAR_RATIO = 0.5
_MAX_PASSES = 2
_COPY_PREFIXES = ("Memcpy", "Memset")
_GATHER = CollectiveKind.ALL_GATHER.value


def are_ordering_calls(tasks: RankTasks) -> Bools:
    """Return a mask of the calls that only order a collective after other work or delay it."""
    return tasks.name.match(_ORDERING_CALLS.fullmatch) & (np.isnan(tasks.work[:, 0]))


def find_main_stream(tasks: RankTasks, is_collective: Bools) -> int:
    """Return the stream with the most compute time, ``NONE`` if there is no compute."""
    mine = ~is_collective & ~np.isnan(tasks.work[:, 0])
    if not mine.any():
        return NONE
    streams, place = np.unique(tasks.stream[mine], return_inverse=True)
    busy = np.bincount(place, weights=tasks.work[mine, 1] - tasks.work[mine, 0])
    return int(streams[np.argmax(busy)])


def find_copies_in(tasks: RankTasks, collective: Int64s, compute_stream: int) -> Int64s:
    """Return, for each collective, the task that fills its buffer, ``NONE`` if there is none.

    This is the work launched right before the collective on a stream other than the compute stream, with only
    event calls in between.
    """
    orders = are_ordering_calls(tasks).tolist()
    found = np.full(len(tasks), NONE, dtype=np.int64)
    for at in np.flatnonzero(collective != NONE).tolist():
        before = at - 1
        while before >= 0 and orders[before]:
            before -= 1
        if before < 0 or np.isnan(tasks.work[before, 0]) or collective[before] != NONE:
            continue
        moved = tasks.kernel[before].startswith("Mem")
        if not moved and tasks.stream[before] != compute_stream:
            found[at] = before
    return found


def find_work_behind(
    tasks: RankTasks, collective: Int64s, reductions: Sequence[int], compute_stream: int
) -> Int64s:
    """Return, for each reduction, the task that finishes it, ``NONE`` if there is none.

    This is the next work launched by the same thread, if it does not run on the compute stream.
    """
    found = np.full(len(tasks), NONE, dtype=np.int64)
    for at in reductions:
        behind = at + 1
        while behind < len(tasks) and np.isnan(tasks.work[behind, 0]):
            behind += 1
        if behind < len(tasks) and collective[behind] == NONE and tasks.thread[behind] == tasks.thread[at]:
            # a copy into the next reduction's buffer belongs to that reduction
            is_next = COPIES_GRADIENTS in tasks.kernel[behind]
            if tasks.stream[behind] != compute_stream and not is_next:
                found[at] = behind
    return found


def find_copies_out(
    tasks: RankTasks, gathers: Sequence[int], copies: Collection[str], stream: int, units: Texts
) -> Int64s:
    """Return, for each gather, the copy out of its buffer, ``NONE`` if there is none.

    Gathers and copies visit units in the same order. A unit may be gathered in several pieces with one copy.
    A unit's pieces are consecutive gathers that share a name in ``units`` (by row), or have no compute
    launched in between, or are equally many for each unit. The first grouping confirmed by the recording is
    used.
    """
    found = np.full(len(tasks), NONE, dtype=np.int64)
    computes = (tasks.stream == stream) & ~np.isnan(tasks.work[:, 0])
    outs = [at for at in np.flatnonzero(computes).tolist() if tasks.kernel[at] in copies]
    done = np.cumsum(computes)
    code = np.append(units.codes, NONE)[tasks.row]
    unit = np.where(code != NONE, code, NONE - 1 - np.arange(len(tasks)))  # each alone if it has no name
    pieces = max(1, round(len(gathers) / max(1, len(outs))))
    for entries in (
        [[at] for at in gathers],
        _group_consecutive(gathers, lambda at: int(unit[at])),
        _group_consecutive(gathers, lambda at: int(done[at])),
        [list(gathers[at : at + pieces]) for at in range(0, len(gathers), pieces)],
    ):
        # a window may start or end between a gather and its copy
        if not outs or abs(len(entries) - len(outs)) > 1:
            continue
        first = next((place for place, out in enumerate(outs) if out > entries[0][0]), len(outs))
        pairs = list(zip(entries, outs[first:], strict=False))
        held = [tasks.work[entry[-1], 1] <= tasks.work[out, 0] + _TOLERANCE_NS for entry, out in pairs]
        if pairs and np.mean(held) >= _HOLDS_RATIO:
            for entry, out in pairs:
                found[entry] = out
            return found
    return found


def _group_consecutive(gathers: Sequence[int], key: Callable[[int], object]) -> list[list[int]]:
    return [list(run) for _, run in groupby(gathers, key)]


def find_gather_consumers(
    tasks: RankTasks, gathers: Sequence[int], copy_out: Int64s, compute_stream: int
) -> dict[int, tuple[int, ...]]:
    """Return the gathers that compute tasks wait for, by compute task.

    A gather's consumer is its copy out, if known. Otherwise it is the first compute launched after the next
    ``ahead`` gathers, for the smallest ``ahead`` with almost no consumer that started before its gather
    ended.
    """
    known = [(int(copy_out[at]), at) for at in gathers if copy_out[at] != NONE]
    if known:
        return _group_by_consumer(known)
    compute = np.flatnonzero((tasks.stream == compute_stream) & ~np.isnan(tasks.work[:, 0]))
    if len(gathers) < 2 or not len(compute):
        return {}
    for ahead in range(_MAX_LAG_GATHERS + 1):
        behind = np.array([*gathers[ahead:], *[gathers[-1]] * ahead])
        place = np.searchsorted(compute, behind, side="right")
        pairs = [
            (int(compute[where]), gather)
            for gather, where in zip(gathers, place.tolist(), strict=True)
            if where < len(compute)
        ]
        if pairs and _are_in_order(tasks, pairs):
            return _group_by_consumer(pairs)
    return {}


def find_reduction_consumers(
    tasks: RankTasks, reductions: Sequence[int], compute_stream: int
) -> dict[int, tuple[int, ...]]:
    """Return the reductions that compute tasks wait for, by compute task.

    A backward pass ends with a wait for its reductions: the next compute launched by another thread follows
    the last reduction. In FSDP2, compute also waits for a reduction's buffer: before a unit's gradients are
    packed, their stream waits for the previous unit's reduction.
    """
    compute = np.flatnonzero((tasks.stream == compute_stream) & ~np.isnan(tasks.work[:, 0]))
    place = np.searchsorted(compute, np.array(reductions, dtype=np.int64), side="right").tolist()
    behind = [
        (int(compute[where]), at) for at, where in zip(reductions, place, strict=True) if where < len(compute)
    ]
    ends = [(then, at) for then, at in behind if tasks.thread[then] != tasks.thread[at]]
    filled = [(then, at) for then, at in behind if _follows_copy(tasks, at)]
    reused = [
        (then, before)
        for (then, _), (_, before) in zip(filled[1:], filled, strict=False)
        if tasks.step[then] == tasks.step[before]
    ]
    return _group_by_consumer(
        [pair for pairs in (ends, reused) if pairs and _are_in_order(tasks, pairs) for pair in pairs]
    )


def find_closing_gathers(
    tasks: RankTasks, gathers: Sequence[int], reductions: Sequence[int]
) -> frozenset[int]:
    """Return the gathers launched after their step's last reduction, which gather updated parameters."""
    last = {int(tasks.step[at]): at for at in reductions}
    return frozenset(at for at in gathers if at > last.get(int(tasks.step[at]), len(tasks)))


def select_kinds(tasks: RankTasks, kinds: Texts, chosen: Collection[str]) -> list[int]:
    """Return the collective tasks of the chosen kinds."""
    places = np.flatnonzero(tasks.row != NONE)
    rows = zip(places.tolist(), tasks.row[places].tolist(), strict=True)
    return [at for at, row in rows if kinds[row] in chosen]


def _follows_copy(tasks: RankTasks, at: int) -> bool:
    before = at - 1
    while before >= 0 and np.isnan(tasks.work[before, 0]):
        before -= 1
    return before >= 0 and COPIES_GRADIENTS in tasks.kernel[before]


def _are_in_order(tasks: RankTasks, pairs: Sequence[tuple[int, int]]) -> bool:
    held = [tasks.work[first, 1] <= tasks.work[then, 0] + _TOLERANCE_NS for then, first in pairs]
    return bool(np.mean(held) >= _HOLDS_RATIO)


def _group_by_consumer(pairs: Sequence[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for consumer, gather in pairs:
        found[consumer] = (*found.get(consumer, ()), gather)
    return found


def main_stream_of_rank(rank: RankGraph) -> int:
    """Return the stream with the most compute time, ``NONE`` if there is no compute."""
    return find_main_stream(rank.tasks, rank.collective != NONE)


def is_compute(rank: RankGraph, copies: Collection[str]) -> Bools:
    """Return a mask of the tasks that compute. ``copies`` names kernels that only serve collectives."""
    stream = main_stream_of_rank(rank)
    is_move = rank.tasks.kernel.match(lambda name: name in copies or name.startswith(_COPY_PREFIXES))
    chosen: Bools = (rank.stream == stream) & (rank.collective == NONE) & ~is_move
    return chosen if stream != NONE else np.zeros(len(rank.tasks), dtype=np.bool_)


def find_blocks(rank: RankGraph, copies: Collection[str]) -> Int64s:
    """Return each task's block pass number, ``NONE`` outside blocks.

    Numbers increase along the tasks; a block has a separate number for each pass.
    """
    found = np.full(len(rank.tasks), NONE, dtype=np.int64)
    kernels, codes = _number_kernels(rank, copies)
    first_of_steps = np.flatnonzero(np.diff(step_places(rank)[kernels])) + 1
    passes: dict[bytes, list[tuple[int, int, int]]] = {}  # most steps and micro-batches run the same kernels
    count = 0
    for mine in np.split(np.arange(len(kernels)), first_of_steps):
        if len(mine) < _MIN_BLOCKS * _MIN_KERNELS:
            continue
        for piece in _split_micro_batches(codes[mine]):
            own_codes = codes[mine[piece]]
            key = own_codes.tobytes()
            if key not in passes:
                passes[key] = _find_passes(own_codes)
            for begin, period, blocks in passes[key]:
                for block in range(blocks):
                    first = begin + block * period
                    found[kernels[mine[piece[first : first + period]]]] = count
                    count += 1
    return found


def _number_kernels(rank: RankGraph, copies: Collection[str]) -> tuple[Int64s, Int64s]:
    """Return the indices of the compute kernels, and a code for each name."""
    kernels = np.flatnonzero(is_compute(rank, copies))
    return kernels, rank.tasks.kernel.codes[kernels]


def count_blocks(rank: RankGraph, copies: Collection[str]) -> int:
    """Return the number of blocks in a pass over the model, 0 if its kernels do not repeat."""
    kernels, codes = _number_kernels(rank, copies)
    last = codes[step_places(rank)[kernels] == step_places(rank)[-1]]
    passes = [each for piece in _split_micro_batches(last) for each in _find_passes(last[piece])]
    return max((blocks for _, _, blocks in passes), default=0)


def _split_micro_batches(codes: Int64s) -> list[Int64s]:
    """Split a step at each repeat of its first kernels (the embedding and the first block)."""
    indices = np.arange(len(codes))
    if len(codes) < _OPENING_KERNELS:
        return [indices]
    windows = np.lib.stride_tricks.sliding_window_view(codes, _OPENING_KERNELS)
    starts = np.flatnonzero((windows == windows[0]).all(axis=1))
    lengths = np.diff(starts)
    if not 1 < len(starts) <= _MAX_MICRO_BATCHES or lengths.min() < _SIMILAR_RATIO * lengths.max():
        return [indices]
    return np.split(indices, starts[1:])


def _find_passes(codes: Int64s) -> list[tuple[int, int, int]]:
    """Return start, kernels per block and number of blocks of each pass of a micro-batch, in order.

    The end of a pass can look like the start of another block, and the start of a backward pass like the end
    of a block. So the first pass's blocks are counted from its start, the second's from its end.
    """
    found: list[tuple[int, int, int]] = []
    is_free = np.ones(len(codes), dtype=np.bool_)
    for _ in range(_MAX_PASSES):
        longest = _find_longest_repeat(codes, is_free)
        if longest is None:
            break
        begin, length, period = longest
        is_free[begin : begin + length] = False
        found.append((begin, length, period))
    found.sort()
    return [
        (begin + (length % period if place else 0), period, length // period)
        for place, (begin, length, period) in enumerate(found)
    ]


def _find_longest_repeat(codes: Int64s, is_free: Bools) -> tuple[int, int, int] | None:
    """Return the start, length and minimum period of the longest repeating section, None if there is none."""
    longest: tuple[int, int, int] | None = None
    # a kernel that is not free equals no other; small numbers compare several times faster
    codes = np.where(is_free, codes, -1 - np.arange(len(codes))).astype(np.int32)
    min_length, longest_length = _PASS_RATIO * len(codes), 0
    for period in range(_MIN_KERNELS, min(_MAX_KERNELS, len(codes) // _MIN_BLOCKS) + 1):
        same = codes[period:] == codes[:-period]
        # most periods repeat too little even if all equal kernels were in a row
        max_length = int(np.count_nonzero(same)) + period
        if max_length < max(_MIN_BLOCKS * period, min_length) or _NEARLY_RATIO * max_length <= longest_length:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        lengths = edges[1::2] - edges[::2]
        place = int(np.argmax(lengths))
        length = int(lengths[place]) + period
        if length < max(_MIN_BLOCKS * period, min_length):
            continue
        if _NEARLY_RATIO * length > longest_length:
            longest, longest_length = (int(edges[2 * place]), length, period), length
    return longest


class RankMessages(Struct, frozen=True, kw_only=True):
    """One rank's collectives in host order.

    Attributes:
        at: Each collective's task.
        kind: Each collective's kind; ``group``: its communicator.
        block: Each collective's block pass, ``NONE`` outside blocks.
        unit: Each collective's unit; gathers and other kinds are numbered separately. Consecutive gathers
            needed by the same compute are pieces of one unit, as are consecutive reductions.
        ahead: Number of earlier units that are not needed yet when this gather is launched; else 0.
        needed: The first compute task that needs each gather.
        blocks: The block pass of each of the rank's tasks, including compute.
    """

    at: Int64s
    kind: tuple[str, ...]
    group: tuple[str, ...]
    block: Int64s
    unit: Int64s
    ahead: Int64s
    needed: Int64s
    blocks: Int64s

    @property
    def gathers(self) -> Int64s:
        """Indices of the gathers."""
        return np.flatnonzero(np.array([kind == _GATHER for kind in self.kind], dtype=np.bool_))

    @property
    def units_per_block(self) -> float:
        """Median number of units per block pass, counted by the tasks that need gathers; 0.0 if none."""
        gathers = self.gathers
        blocks = self.block[gathers]
        counts = [
            len(np.unique(self.needed[gathers[blocks == block]]))
            for block in np.unique(blocks[blocks != NONE]).tolist()
        ]
        return float(np.median(counts)) if counts else 0.0

    @property
    def gathers_per_block(self) -> float:
        """Median number of gathers per block pass, including pieces of units; 0.0 if none."""
        blocks = self.block[self.gathers]
        counts = np.unique(blocks[blocks != NONE], return_counts=True)[1]
        return float(np.median(counts)) if len(counts) else 0.0


def read_messages(
    rank: RankGraph, kinds: Texts, groups: Texts, states: Bools, copies: Collection[str]
) -> RankMessages:
    """Return a rank's collectives that may carry states, with their blocks.

    Args:
        rank: The rank.
        kinds: The kind of each row in the analysis' collectives.
        groups: The communicator of each row.
        states: Whether each row may carry states: messages of activations are no units.
        copies: Names of kernels that only copy into and out of communication buffers.
    """
    at = np.flatnonzero(rank.collective != NONE)
    at = at[states[rank.tasks.row[at]]]
    kind = tuple(kinds.at(rank.tasks.row[at]))
    works = is_compute(rank, copies)
    blocks = find_blocks(rank, copies)
    computing = np.flatnonzero(works)
    gathers = np.array([word == _GATHER for word in kind], dtype=np.bool_)
    needed = _first_needed_by(rank, at, gathers, computing)
    before = computing[np.maximum(0, np.searchsorted(computing, at) - 1)] if len(computing) else at
    served = np.where(gathers, needed, before)
    unit = np.zeros(len(at), dtype=np.int64)
    for chosen in (gathers, ~gathers):
        keys = np.stack((served, before))[:, chosen]
        unit[chosen] = np.cumsum((np.diff(keys, prepend=keys[:, :1]) != 0).any(axis=0))
    return RankMessages(
        at=at,
        kind=kind,
        group=tuple(groups.at(rank.tasks.row[at])),
        block=blocks[served],
        unit=unit,
        ahead=np.where(gathers, _count_units_ahead(at, gathers, needed, unit), 0),
        needed=needed,
        blocks=blocks,
    )


def _count_units_ahead(at: Int64s, gathers: Bools, needed: Int64s, unit: Int64s) -> Int64s:
    """Return, for each launch, the number of gathered units between the unit in use and its own."""
    units = unit[gathers]
    if not len(units):
        return np.zeros(len(at), dtype=np.int64)
    used = np.searchsorted(np.maximum.accumulate(needed[gathers]), at)
    return np.maximum(0, unit - units[np.minimum(used, len(units) - 1)])


def _first_needed_by(rank: RankGraph, at: Int64s, gathers: Bools, computing: Int64s) -> Int64s:
    """Return the first compute task that needs each collective: the first waiter, else the next compute.

    A gather without a waiter is a piece of the next gather if no compute is launched in between: a wait for
    the last piece on a stream is a wait for all.
    """
    waiter: dict[int, int] = {}
    chosen = set(at[gathers].tolist())
    stream = main_stream_of_rank(rank)
    for task in np.flatnonzero(rank.stream == stream).tolist():
        for other in rank.waits_on[task]:
            if other in chosen and task > other:
                waiter.setdefault(other, task)
    launched = at[gathers]
    following = np.searchsorted(computing, launched).tolist()
    pieces = list(zip(launched.tolist(), rank.stream[launched].tolist(), following, strict=True))
    for (gather, *row), (other, *next_row) in reversed(list(pairwise(pieces))):
        if gather not in waiter and other in waiter and row == next_row:
            waiter[gather] = waiter[other]
    first = np.array([waiter.get(task, task) for task in at.tolist()], dtype=np.int64)
    place = np.searchsorted(computing, first, side="left")
    if not len(computing):
        return at
    return computing[np.minimum(place, len(computing) - 1)]


class PartnerCopies:
    """Copies that belong to collectives: into the buffer before, and out of the buffer after."""

    def __init__(self, rank: RankGraph, gathers: Int64s, copies: Collection[str]) -> None:
        stream = main_stream_of_rank(rank)
        named = rank.tasks.kernel.match(copies.__contains__)
        elsewhere = (rank.stream != NONE) & (rank.stream != stream)
        self._serves = (named | elsewhere) & (rank.collective == NONE)
        self._works = np.flatnonzero(rank.stream != NONE)
        self._out = _pair_copies_out(rank, named & (rank.stream == stream), gathers)
        self._into = {copy for task in gathers.tolist() if (copy := self.before(task)) is not None}

    def before(self, task: int) -> int | None:
        """Return the copy launched right before the collective, None if there is none."""
        place = int(np.searchsorted(self._works, task)) - 1
        return self._at(place)

    def behind(self, task: int) -> int | None:
        """Return the copy that waits for the collective or is launched next, None if there is none."""
        out = self._out.get(task)
        if out is None:
            out = self._at(int(np.searchsorted(self._works, task)) + 1)
            return None if out in self._into else out  # the copy into the next gather's buffer
        return out

    def _at(self, place: int) -> int | None:
        if not 0 <= place < len(self._works) or not self._serves[self._works[place]]:
            return None
        return int(self._works[place])


def _pair_copies_out(rank: RankGraph, copies: Bools, gathers: Int64s) -> dict[int, int]:
    """Return the copy out of each gather's buffer, paired in order if there are equally many."""
    chosen = set(gathers.tolist())
    waiting = [task for task in np.flatnonzero(copies).tolist() if chosen & set(rank.waits_on[task])]
    names = {rank.tasks.kernel[task] for task in waiting}
    out = [task for task in np.flatnonzero(copies).tolist() if rank.tasks.kernel[task] in names]
    first = [(gather, task) for gather, task in zip(gathers.tolist(), out, strict=False) if gather < task]
    if len(first) == len(gathers) == len(out):
        return dict(first)
    return {other: task for task in reversed(waiting) for other in rank.waits_on[task] if other in chosen}


def late_gathers_ratio(graph: Graph, rows: Collection[int]) -> float | None:
    """Return the share of gathers in ``rows`` that depend on the last compute before their use.

    A gather's dependencies are followed back, through its stream and its waits, to compute kernels. A gather
    is late if it depends on the last kernel before the one that needs it, so no compute can hide it.
    Prefetched gathers depend on earlier kernels. A step's first gathers do not count; None without other
    gathers.
    """
    chosen = frozenset(rows)
    late = count = 0
    for rank in graph.ranks:
        gathers = np.flatnonzero(mark_rows(rank, chosen))
        users = _first_users(rank, gathers)
        on_compute = rank.stream == main_stream_of_rank(rank)
        worked_ns = np.cumsum(np.where(on_compute, rank.work_ns, 0.0))
        # The compute time that must pass before each task, given its waits and its stream; -1 if none.
        needed_ns = np.where(on_compute & (rank.stream != NONE), worked_ns, -1.0).tolist()
        last: dict[int, int] = {}
        for at in np.flatnonzero((rank.stream != NONE) & ~on_compute).tolist():
            stream = int(rank.stream[at])
            others = (*rank.waits_on[at], last.get(stream, NONE))
            needed_ns[at] = max((needed_ns[other] for other in others if other != NONE), default=-1.0)
            last[stream] = at
        needed_ns = np.array(needed_ns)
        steps = step_places(rank)
        opening = {int(steps[user]): user for user in sorted(users.values(), reverse=True)}
        for gather, user in users.items():
            if user != opening[int(steps[user])]:
                count += 1
                late += worked_ns[user - 1] <= needed_ns[gather]
    return late / count if count else None


def held_gathers_ratio(graph: Graph, rows: Collection[int]) -> float:
    """Return the share of gathers in ``rows`` that started just as an unrelated kernel ended."""
    chosen = frozenset(rows)
    count = sum(row in chosen for rank in graph.ranks for row in rank.tasks.row.tolist())
    held = sum(int(rank.tasks.row[at]) in chosen for rank in graph.ranks for at in rank.held)
    return held / count if count else 0.0


def run_beside_ratio(graph: Graph, rows: Collection[int]) -> float:
    """Return the share of the gather time overlapped by compute that was launched after the gathers."""
    chosen = frozenset(rows)
    beside = whole = 0.0
    for rank in graph.ranks:
        main = main_stream_of_rank(rank)
        mine = mark_rows(rank, chosen)
        places = step_places(rank)
        for step in range(graph.steps):
            gathers = np.flatnonzero(mine & (places == step))
            if not len(gathers):
                continue
            begin, end = rank.tasks.work[gathers, 0].min(), rank.tasks.work[gathers, 1].max()
            later = np.flatnonzero(rank.stream == main)
            later = later[later > gathers[-1]]
            work = np.clip(rank.tasks.work[later], begin, end)
            beside += float((work[:, 1] - work[:, 0]).sum())
            whole += float(end - begin)
    return beside / whole if whole else 0.0


def _first_users(rank: RankGraph, gathers: Int64s) -> dict[int, int]:
    """Return the first task that waits for each gather; gathers without a waiter are omitted."""
    wanted = set(gathers.tolist())
    users: dict[int, int] = {}
    for at, (waits, number) in enumerate(zip(rank.waits_on, rank.collective.tolist(), strict=True)):
        if waits and number == NONE:
            for gather in wanted.intersection(waits):
                users.setdefault(gather, at)
    return users
