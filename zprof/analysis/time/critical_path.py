"""Find the critical path, and charge waits to the rank that arrived last.

The critical path is what each step waited on, by rank. The walk starts at the rank that ends last and goes
backward in time. If a collective blocked the rank, the path switches to the rank that arrived last, at its
arrival; if a collective started when the previous one on its stream ended, the path continues through that
one; otherwise it is the rank's own work. The pieces are contiguous, so they sum to the step.

Each delay is traced to its origin, and summed per rank:

    blamed + tied + unjudged = total exposed wait

A rank that is late because another collective blocked it passes on a delay. A case is a collective with a
blamed rank: each case points to the case that blocked its rank longest, and these chains are followed to
their ends.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Groups, Mask, Texts
from zprof.analysis.intervals import EMPTY, Int64s, covered, subtract, union
from zprof.analysis.time.activity import BEFORE_ALL_NS
from zprof.analysis.time.decomposition import UNKNOWN_RANK, Instances, RowFinder, mark_full_syncs
from zprof.analysis.time.late_arrivals import (
    LateCases,
    LateRows,
    ReadCalls,
    ReasonArray,
    find_cases,
    find_compared_intervals,
    find_reasons,
    group_by_rank,
    make_late_rows,
    measure_lag,
)
from zprof.analysis.time.rank import RankWork
from zprof.analysis.time.steps import StepWindows
from zprof.model.time import (
    Blame,
    CriticalPath,
    LateReason,
    PathKind,
    PathSegment,
    PathShare,
    StepLateness,
    WaitShares,
)

#: A collective that starts at most this long after the previous one on its stream was waiting for it.
_RIGHT_AFTER_NS = 20_000
#: From the end of a collective to the rank's next activity: 30 to 200 µs measured on CPU ranks.
_MAX_WAKE_UP_NS = 300_000
#: Maximum number of a rank's collectives that have started but not ended: their launches are queued.
_MAX_CONCURRENT = 256
#: Maximum pieces of a path; a step has a few per collective.
_MAX_PIECES = 20_000
_MAX_SEGMENTS = 8
#: Maximum rounds of pointer jumping; the jump length doubles per round, so no chain needs more.
_MAX_ROUNDS = 64
Key = TypeVar("Key", str, int)


class RankRows(Struct, frozen=True, kw_only=True):
    """Rows of a rank sorted by start, as lists: the walk reads single entries, which is slow in numpy.

    ``max_end``: the latest end among each row and its predecessors.
    """

    row: list[int]
    start: list[int]
    end: list[int]
    max_end: list[int]

    def find_last_ended(self, since_ns: int, until_ns: int) -> int:
        """Return the row that ended last, shortly before the rank continued; -1 if there is none.

        The rank did not wait for a collective that ended long before that or was still running.
        """
        stop = bisect_left(self.start, until_ns)
        earliest, latest = max(since_ns + 1, until_ns - _MAX_WAKE_UP_NS), until_ns + _RIGHT_AFTER_NS
        last, last_end = -1, earliest
        for position in range(stop - 1, max(0, stop - _MAX_CONCURRENT) - 1, -1):
            if self.max_end[position] < earliest:
                break  # no earlier row ended late enough
            if last_end <= self.end[position] <= latest:
                last, last_end = self.row[position], self.end[position]
        return last


class SyncPoints(Struct, frozen=True, kw_only=True):
    """Columns of the collectives, and the rows of each rank sorted by start.

    ``last_arrival_row``: the row of the rank that the others waited for, or the row itself if unknown.
    ``previous_row``: the row of the previous collective on its stream if it waited for that, else -1.
    """

    rank: list[int]
    start: list[int]
    end: list[int]
    last_arrival_row: list[int]
    previous_row: list[int]
    by_rank: dict[int, RankRows]


def make_sync_points(
    rank: Int64s, start: Int64s, end: Int64s, last_arrival_row: Int64s, previous_row: Int64s
) -> SyncPoints:
    """Return the sync points with these columns."""
    by_rank = {}
    for number, rows in group_by_rank(rank):
        by_start = rows[np.argsort(start[rows], kind="stable")]
        by_rank[number] = RankRows(
            row=by_start.tolist(),
            start=start[by_start].tolist(),
            end=end[by_start].tolist(),
            max_end=np.maximum.accumulate(end[by_start]).tolist(),
        )
    return SyncPoints(
        rank=rank.tolist(),
        start=start.tolist(),
        end=end.tolist(),
        last_arrival_row=last_arrival_row.tolist(),
        previous_row=previous_row.tolist(),
        by_rank=by_rank,
    )


def _find_last_arrivals(collectives: Columns, rank: Int64s, start: Int64s) -> Int64s:
    """Return the last row to start for full syncs; for other kinds the awaited row, if known."""
    instance, itself = collectives.ints("instance"), np.arange(len(collectives))
    instances = Instances(instance)
    latest = instances.broadcast(instances.find_largest_rows(start), itself)
    is_full_sync = mark_full_syncs(collectives) & ~collectives.bools("bound") & (instance >= 0)
    last_rank = collectives.ints("last_rank")
    awaited_row = RowFinder(instance, rank).find(np.where(last_rank == UNKNOWN_RANK, -1, instance), last_rank)
    return np.where(is_full_sync, latest, np.where(awaited_row >= 0, awaited_row, itself))


def _find_previous_rows(collectives: Columns, rank: Int64s, start: Int64s) -> Int64s:
    """Return the previous collective on the stream if launch and compute were ready by its end; else -1."""
    previous_end, computed = collectives.ints("previous_ns"), collectives.ints("computed_ns")
    ready = np.maximum(collectives.ints("launch_ns"), computed)
    ready = np.where(collectives.known("launch_start_ns"), ready, computed)
    has_waited = (previous_end >= ready) & (start - previous_end <= _RIGHT_AFTER_NS)
    finder = RowFinder(collectives.ints("instance"), rank)
    previous = finder.find(np.where(has_waited, collectives.ints("previous_instance"), -1), rank)
    return np.where(previous >= 0, previous, -1)


class PathPiece(NamedTuple):
    """Part of the path of one step: a rank's own work, or (``moving``) a transfer that it waited for."""

    rank: int
    begin_ns: int
    end_ns: int
    moving: bool


class BlockedSpans(NamedTuple):
    """Intervals in which collectives blocked a rank, as lists."""

    begin: list[int]
    end: list[int]

    def find_last(self, now: int) -> tuple[int, int]:
        """Return the last blocked interval up to ``now``, or an empty one in the far past."""
        position = bisect_left(self.begin, now) - 1
        if position < 0:
            return BEFORE_ALL_NS, BEFORE_ALL_NS
        return self.begin[position], min(self.end[position], now)


def walk_back(
    rank: int,
    begins: Mapping[int, int],
    end_ns: int,
    blocked: Mapping[int, BlockedSpans],
    sync_points: SyncPoints,
) -> list[PathPiece]:
    """Return the path of one step, last piece first.

    Args:
        rank: The rank that ends last.
        begins: Start of the step on each rank.
        end_ns: End of the step on ``rank``.
        blocked: Intervals in which collectives blocked each rank.
        sync_points: The collectives.
    """
    pieces: list[PathPiece] = []
    now = end_ns
    while now > begins[rank] and len(pieces) < _MAX_PIECES:
        blocked_from, blocked_until = blocked[rank].find_last(now)
        row = -1
        if blocked_until > begins[rank] and rank in sync_points.by_rank:
            row = sync_points.by_rank[rank].find_last_ended(blocked_from, blocked_until)
        work_limit = sync_points.end[row] if row >= 0 else blocked_from
        work_start = max(begins[rank], min(work_limit, now))
        if work_start < now:
            pieces.append(PathPiece(rank=rank, begin_ns=work_start, end_ns=now, moving=False))
        now = work_start
        if row >= 0:
            rank, now = _walk_through_collective(sync_points, row, now, begins, pieces)
    return pieces


def _walk_through_collective(
    sync_points: SyncPoints, row: int, now: int, begins: Mapping[int, int], pieces: list[PathPiece]
) -> tuple[int, int]:
    """Follow a collective and those queued before it; return the last rank to arrive and its arrival."""
    while True:
        last_arrival_row = sync_points.last_arrival_row[row]
        rank = sync_points.rank[row]
        arrived = max(begins[rank], min(sync_points.start[last_arrival_row], now - 1))
        pieces.append(PathPiece(rank=rank, begin_ns=arrived, end_ns=now, moving=True))
        rank, now = sync_points.rank[last_arrival_row], arrived
        row = sync_points.previous_row[last_arrival_row]
        if row < 0 or now <= begins[rank] or len(pieces) >= _MAX_PIECES:
            return rank, now


def find_critical_path(
    collectives: Columns, work: Mapping[int, RankWork], steps: Mapping[int, StepWindows], calls: ReadCalls
) -> CriticalPath | None:
    """Return the path through all steps that every rank has; None if there is no such step.

    Args:
        collectives: Collectives of all ranks with their launches, on the common clock.
        work: Work of each rank.
        steps: Steps of each rank.
        calls: Returns the host calls of a rank; called only for ranks on the path.
    """
    windows = _find_common_steps(steps)
    if not windows:
        return None
    rank, start, end = (collectives.ints(name) for name in ("rank", "start_ns", "end_ns"))
    last_arrivals = _find_last_arrivals(collectives, rank, start)
    previous_rows = _find_previous_rows(collectives, rank, start)
    sync_points = make_sync_points(rank, start, end, last_arrivals, previous_rows)
    blocked = {rank: BlockedSpans(*rank_work.blocked.T.tolist()) for rank, rank_work in work.items()}
    pieces_by_step: list[tuple[int, list[PathPiece]]] = []
    for step, spans in windows.items():
        last_rank = max(spans, key=lambda rank: spans[rank][1])
        begins = {rank: begin for rank, (begin, _) in spans.items()}
        pieces = walk_back(last_rank, begins, spans[last_rank][1], blocked, sync_points)
        pieces_by_step.append((step, pieces))
    return _make_critical_path(pieces_by_step, work, calls)


def _find_common_steps(steps: Mapping[int, StepWindows]) -> dict[int, dict[int, tuple[int, int]]]:
    """Return the start and end on each rank, by step, for steps that all ranks have."""
    spans_by_step: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for rank, windows in steps.items():
        for number, begin, end in zip(
            windows.number.tolist(), windows.begin_ns.tolist(), windows.end_ns.tolist(), strict=True
        ):
            spans_by_step[number][rank] = (begin, end)
    return {number: spans for number, spans in sorted(spans_by_step.items()) if len(spans) == len(steps)}


#: Kinds of a rank's own work, in the order of their precedence; host time is the remainder.
_OWN_KINDS = (
    PathKind.COMPUTE,
    PathKind.COPIES,
    PathKind.DATA,
    PathKind.ALLOCATOR,
    PathKind.SYNC,
    PathKind.HOST,
)
#: Columns of the table of times per piece.
_KINDS = (*_OWN_KINDS, PathKind.TRANSFER)


def _split_pieces(pieces: Int64s, work: Mapping[int, RankWork], calls: ReadCalls) -> Int64s:
    """Return the time of each piece by ``_KINDS``, which sums to the piece.

    All pieces of a rank are measured at once: a recording may have hundreds of thousands of steps.

    Args:
        pieces: Columns of ``PathPiece``.
        work: Work of each rank.
        calls: Returns the host calls of a rank.
    """
    rank, begin, end, moving = pieces.T
    parts = np.zeros((len(pieces), len(_KINDS)), dtype=np.int64)
    parts[:, -1] = np.where(moving, end - begin, 0)
    own_rows = np.flatnonzero(moving == 0)
    for number, positions in group_by_rank(rank[own_rows]):
        own = own_rows[positions]
        begins, ends = begin[own], end[own]
        host_ns = ends - begins
        # The intervals of each of ``_OWN_KINDS`` except the last, without time of earlier kinds.
        rank_work = work[number]
        host = calls(number)
        sets, taken = [], EMPTY
        for spans in (rank_work.compute, rank_work.copies, host.loader, host.allocator, host.sync):
            free = subtract(spans, taken)
            sets.append(free)
            taken = union(taken, free)
        for column, covering in enumerate(sets):
            parts[own, column] = covered(covering, begins, ends)
            host_ns = host_ns - parts[own, column]
        parts[own, len(_OWN_KINDS) - 1] = host_ns
    return parts


def _make_critical_path(
    pieces_by_step: Sequence[tuple[int, Sequence[PathPiece]]], work: Mapping[int, RankWork], calls: ReadCalls
) -> CriticalPath:
    pieces = np.array([piece for _, pieces in pieces_by_step for piece in pieces], np.int64).reshape(-1, 4)
    parts = _split_pieces(pieces, work, calls)
    rank, begin, end, moving = pieces.T
    counts = [len(pieces) for _, pieces in pieces_by_step]
    step = np.repeat([number for number, _ in pieces_by_step], counts)
    path_begin = np.repeat([pieces[-1].begin_ns if pieces else 0 for _, pieces in pieces_by_step], counts)
    by_length = np.lexsort((begin - path_begin, step, begin - end))[:_MAX_SEGMENTS].tolist()
    steps = len(pieces_by_step)
    shares = [
        PathShare(rank=number, what=kind, ns=length // steps)
        for number, rows in group_by_rank(rank)
        for kind, length in zip(_KINDS, parts[rows].sum(axis=0).tolist(), strict=True)
    ]
    return CriticalPath(
        steps=steps,
        wall_ns=int((end - begin).sum()) // steps,
        shares=tuple(
            sorted(
                (share for share in shares if share.ns > 0),
                key=lambda share: (-share.ns, share.rank, share.what),
            )
        ),
        longest=tuple(
            PathSegment(
                step=int(step[row]),
                rank=int(rank[row]),
                what=PathKind.TRANSFER if moving[row] else _OWN_KINDS[int(np.argmax(parts[row, :-1]))],
                begin_ns=int(begin[row] - path_begin[row]),
                ns=int(end[row] - begin[row]),
            )
            for row in by_length
        ),
    )


def judge_lateness(collectives: Columns, work: Mapping[int, RankWork], calls: ReadCalls) -> Columns:
    """Add judged, blamed_rank, late_reason and origin_rank (-1 and "" if no rank is blamed).

    Args:
        collectives: Collectives of all ranks, decomposed and exposed, on the common clock.
        work: Work of each of their ranks.
        calls: Returns the host calls of a rank; called for few ranks.
    """
    rows = make_late_rows(collectives)
    cases = find_cases(rows)
    begins = {rank: rank_work.begin_ns for rank, rank_work in work.items()}
    compared = find_compared_intervals(rows, cases, measure_lag(rows, work), begins)
    reasons, queued = find_reasons(rows, cases, compared, work, calls)
    begin = np.full(len(cases), np.iinfo(np.int64).max)
    begin[compared.case] = compared.begin
    origin_ranks, origin_reasons = find_origins(rows, cases, reasons, queued, begin)
    blamed = rows.blamed != UNKNOWN_RANK
    case = np.where(blamed, cases.case_of_row, -1)
    known = case >= 0
    words = ("", *(reason.value for reason in LateReason))
    code = {word: place for place, word in enumerate(words)}
    reason = np.where(blamed, code[LateReason.UNKNOWN], 0)
    origin = rows.blamed.copy()
    reason[known] = [code[name] for name in origin_reasons[case[known]]]
    origin[known] = origin_ranks[case[known]]
    return collectives.with_columns(
        judged=rows.judged, blamed_rank=rows.blamed, late_reason=Texts(words, reason), origin_rank=origin
    )


def find_origins(
    rows: LateRows, cases: LateCases, reasons: ReasonArray, queued: Mask, begin: Int64s
) -> tuple[Int64s, ReasonArray]:
    """Return, for each case, the rank where the delay started, and the reason.

    If the delay started on the blamed rank itself, the reason is taken from the start of the chain.
    ``reasons`` and ``queued`` come from :func:`find_reasons`; ``begin``: start of each case's compared
    interval.
    """
    passed_on = np.flatnonzero(reasons == LateReason.PREVIOUS_COLLECTIVE)
    cause = np.full(len(cases), -1, dtype=np.int64)
    blocking_cases = np.full(len(passed_on), -1, dtype=np.int64)
    for rank in np.unique(cases.blamed[passed_on]):
        positions = np.flatnonzero(cases.blamed[passed_on] == rank)
        rank_rows = np.flatnonzero((rows.rank == rank) & (cases.case_of_row >= 0))
        rank_rows = rank_rows[np.argsort(rows.start[rank_rows], kind="stable")]
        latest_arrival = np.maximum.accumulate(rows.arrival[rank_rows]) if len(rank_rows) else rank_rows
        low = np.searchsorted(latest_arrival, begin[passed_on[positions]], side="right")
        high = np.searchsorted(rows.start[rank_rows], cases.start[passed_on[positions]], side="left")
        best = find_largest_within(rows.exposed_wait[rank_rows], low, high)
        waited: Mask = (
            rows.exposed_wait[rank_rows[np.maximum(best, 0)]] > 0 if len(rank_rows) else best > len(best)
        )
        was_blocked = (best >= 0) & waited
        blocking_cases[positions] = np.where(
            was_blocked, cases.case_of_row[rank_rows[np.maximum(best, 0)]] if len(rank_rows) else -1, -1
        )
    cause[passed_on] = blocking_cases
    queued_cases = passed_on[queued[passed_on]]
    if len(queued_cases):
        instances = rows.previous_instance[cases.row[queued_cases]]
        position = np.minimum(np.searchsorted(cases.instance, instances), len(cases) - 1)
        cause[queued_cases] = np.where(cases.instance[position] == instances, position, -1)
    earlier = (cause >= 0) & (cases.start[cause] < cases.start) if len(cases) else cause >= 0
    root = find_chain_ends(np.where(earlier, cause, np.arange(len(cases))))
    origin = cases.blamed[root]
    started_on_blamed = earlier & (origin == cases.blamed)
    return origin, np.where(started_on_blamed, reasons[root], reasons)


def find_chain_ends(cause: Int64s) -> Int64s:
    """Return the end of each chain of pointers; an end points to itself."""
    for _ in range(_MAX_ROUNDS):
        next_cause = cause[cause]
        if (next_cause == cause).all():
            break
        cause = next_cause
    return cause


def find_largest_within(values: Int64s, low: Int64s, high: Int64s) -> Int64s:
    """Return the index of the largest of ``values[low:high]`` for each pair; -1 if that is empty.

    Uses a sparse table: with the winners of all ranges of power-of-two length, each pair needs two look-ups.
    """
    length = high - low
    result = np.full(len(low), -1, dtype=np.int64)
    pending = np.flatnonzero(length > 0)
    winners = np.arange(len(values))
    size = 1
    while len(pending):
        rows = pending[(length[pending] >= size) & (length[pending] < 2 * size)]
        first, second = winners[low[rows]], winners[high[rows] - size]
        result[rows] = np.where(values[second] > values[first], second, first)
        pending = pending[length[pending] >= 2 * size]
        if len(pending):
            first, second = winners[:-size], winners[size:]
            winners = np.where(values[second] > values[first], second, first)
        size *= 2
    return result


def sum_wait_shares(collectives: Columns, ranks: Sequence[int], steps: int) -> WaitShares:
    """Return sums per step, sorted by the exposed wait charged to each rank, largest first.

    Args:
        collectives: Collectives of all ranks with judged, blamed_rank, late_reason, origin_rank.
        ranks: The loaded ranks.
        steps: Number of steps of the window.
    """
    instance, exposed_ns = collectives.ints("instance"), collectives.ints("exposed_wait_ns")
    blamed_rank = collectives.ints("blamed_rank")
    blamed = blamed_rank != UNKNOWN_RANK
    judged = collectives.bools("judged") & (instance >= 0)
    blamed_rows = np.flatnonzero(blamed)
    rows_by_blamed = {rank: blamed_rows[at] for rank, at in group_by_rank(blamed_rank[blamed_rows])}
    own_rows = dict(group_by_rank(collectives.ints("rank")))
    none = np.empty(0, dtype=np.int64)
    entries = [
        _make_blame(
            rank, collectives, rows_by_blamed.get(rank, none), own_rows.get(rank, none), judged, steps
        )
        for rank in ranks
    ]
    return WaitShares(
        per_rank=tuple(sorted(entries, key=lambda entry: (-entry.exposed_wait_ns, entry.rank))),
        tied_ns=int(exposed_ns[judged & ~blamed].sum()) // steps,
        unjudged_ns=int(exposed_ns[~judged & ~blamed].sum()) // steps,
        judged=_count_distinct(instance[judged]),
    )


def _make_blame(rank: int, rows: Columns, blamed: Int64s, own: Int64s, judged: Mask, steps: int) -> Blame:
    """Return a rank's blame from the rows that it is ``blamed`` for and its ``own`` rows."""
    instance, wait, exposed = (rows.ints(name) for name in ("instance", "wait_ns", "exposed_wait_ns"))
    wait_ns, exposed_ns = int(wait[blamed].sum()), int(exposed[blamed].sum())
    judged_instances = _count_distinct(instance[own[judged[own]]])
    waiting = _count_distinct(rows.ints("rank")[blamed[wait[blamed] > 0]])
    exposed_rows = blamed[exposed[blamed] > 0]
    reasons, origins = rows.texts("late_reason").at(exposed_rows), rows.ints("origin_rank")[exposed_rows]
    shared = steps * max(1, waiting)
    last_instances = _count_distinct(instance[blamed])
    return Blame(
        rank=rank,
        wait_ns=wait_ns // steps,
        exposed_wait_ns=exposed_ns // steps,
        last_ratio=min(1.0, last_instances / judged_instances) if judged_instances else 0.0,
        own_wait_ns=int(exposed[own].sum()) // steps,
        reasons=_sum_by_key(reasons, exposed[exposed_rows], steps),
        waiting_ranks=waiting,
        wait_per_rank_ns=wait_ns // shared,
        exposed_wait_per_rank_ns=exposed_ns // shared,
        origins=_sum_by_key(origins.tolist(), exposed[exposed_rows], steps),
    )


def _count_distinct(values: Int64s) -> int:
    return len(np.unique(values)) if len(values) else 0


def _sum_by_key(keys: Iterable[Key], exposed: Int64s, steps: int) -> dict[Key, int]:
    """Return the exposed wait per step by key, largest first."""
    sums: dict[Key, int] = {}
    for key, value in zip(keys, exposed.tolist(), strict=True):
        sums[key] = sums.get(key, 0) + value
    largest_first = sorted(sorted(sums), key=lambda key: -sums[key])
    return {key: sums[key] // steps for key in largest_first if sums[key] >= steps}


def measure_lateness(collectives: Columns) -> tuple[StepLateness, ...]:
    """Return one entry per rank and step with a judged full-sync collective, sorted by rank and step.

    Args:
        collectives: Collectives of all ranks with rank, step, kind, judged, lateness_ns.
    """
    rows = collectives.at(collectives.bools("judged") & mark_full_syncs(collectives))
    steps = Groups(rows.ints("rank"), rows.ints("step"))
    lateness_ns = rows.ints("lateness_ns")
    columns = (
        rows.ints("rank")[steps.first],
        rows.ints("step")[steps.first],
        steps.sizes,
        steps.sum(lateness_ns),
        steps.max(lateness_ns),
    )
    return tuple(
        StepLateness(rank=rank, step=step, collectives=count, mean_ns=total // count, largest_ns=largest)
        for rank, step, count, total, largest in zip(*(column.tolist() for column in columns), strict=True)
    )
