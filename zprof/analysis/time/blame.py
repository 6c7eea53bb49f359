"""Charge waits to the rank that arrived last, trace each delay to its origin, and sum per rank.

blamed + tied + unjudged = total exposed wait. A rank that is late because another collective blocked it
passes a delay on: each case points to the collective that blocked its rank longest, and the chains are
followed to their ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from zprof.analysis.columns import Columns, Groups, Mask, Texts
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.collective_rows import mark_full_syncs
from zprof.analysis.time.decomposition import UNKNOWN_RANK
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
from zprof.model.time import Blame, LateReason, StepLateness, WaitShares

#: Maximum rounds of pointer jumping; the jump length doubles per round, so no chain needs more.
_MAX_ROUNDS = 64
Key = TypeVar("Key", str, int)


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
    reason[known] = [code[each] for each in origin_reasons[case[known]]]
    origin[known] = origin_ranks[case[known]]
    return collectives.with_columns(
        judged=rows.judged, blamed_rank=rows.blamed, late_reason=Texts(words, reason), origin_rank=origin
    )


def find_origins(
    rows: LateRows, cases: LateCases, reasons: ReasonArray, queued: Mask, begin: Int64s
) -> tuple[Int64s, ReasonArray]:
    """Return for each case the rank where the delay started, and the reason.

    If the delay started on the blamed rank itself, the reason is taken from the start of the chain.
    ``reasons`` and ``queued`` are those of :func:`find_reasons`, ``begin`` where
    the compared interval of each case starts.
    """
    passed_on = np.flatnonzero(reasons == LateReason.PREVIOUS_COLLECTIVE)
    cause = np.full(len(cases), -1, dtype=np.int64)
    # Per wanted case, the case of the collective that blocked its rank longest in the interval.
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
    """Return the blame of a rank from the rows that it is ``blamed`` for, and its ``own`` rows."""
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
