"""Charge waits to the rank that arrived last, trace each delay to where it started, and sum per rank.

blamed + tied + unjudged = all exposed wait. A rank that came late because another collective held it up
passes a delay on: each case points to the collective that held its rank up most, and the chains are followed
to their ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.blame.cases import (
    LateCases,
    LateRows,
    find_cases,
    find_stretches,
    make_late_rows,
    measure_lag,
)
from zprof.analysis.time.blame.reasons import ReadCalls, Reasons, find_reasons
from zprof.analysis.time.collective_rows import Mask
from zprof.analysis.time.rank import RankWork
from zprof.analysis.time.transfer.decomposition import UNKNOWN_RANK
from zprof.model.collectives import FULL_SYNC
from zprof.model.time import Blame, LateReason, StepLateness, WaitShares


def judge_lateness(frame: pd.DataFrame, work: Mapping[int, RankWork], calls: ReadCalls) -> pd.DataFrame:
    """Add judged, blamed_rank, late_reason and origin_rank (-1 and "" if no rank is blamed).

    Args:
        frame: Collectives of all ranks, decomposed and exposed, on the common clock.
        work: Work of each of their ranks.
        calls: Returns the host calls of a rank; called for few ranks.
    """
    frame = frame.reset_index(drop=True)
    rows = make_late_rows(frame)
    cases = find_cases(rows)
    begins = {rank: did.begin_ns for rank, did in work.items()}
    stretches = find_stretches(rows, cases, measure_lag(rows, work), begins)
    reasons = find_reasons(rows, cases, stretches, work, calls)
    origins = find_origins(rows, cases, reasons)
    blamed = rows.blamed != UNKNOWN_RANK
    case = np.where(blamed, cases.of_row, -1)
    known = case >= 0
    reason = np.where(blamed, str(LateReason.UNKNOWN), "").astype(object)
    origin = rows.blamed.copy()
    reason[known] = [str(each) for each in origins.reason[case[known]]]
    origin[known] = origins.rank[case[known]]
    return frame.assign(judged=rows.judged, blamed_rank=rows.blamed, late_reason=reason, origin_rank=origin)


#: Rounds of pointer jumps that double in length: more than any chain needs.
_MAX_ROUNDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """One entry per case: the rank where the delay started, and the reason.

    The reason is that of the delay's start if it started on the blamed rank itself, else the case's own.
    """

    rank: Int64s
    reason: np.ndarray[tuple[int], np.dtype[np.object_]]


def find_origins(rows: LateRows, cases: LateCases, reasons: Reasons) -> Origins:
    """Return the origins of all cases."""
    passed_on = np.flatnonzero(reasons.reason == LateReason.PREVIOUS_COLLECTIVE)
    cause = np.full(len(cases), -1, dtype=np.int64)
    cause[passed_on] = _find_holding_cases(rows, cases, reasons, passed_on)
    queued = passed_on[reasons.queued[passed_on]]
    cause[queued] = _find_cases_by_instance(rows, cases, rows.previous_instance[cases.row[queued]])
    earlier = (cause >= 0) & (cases.start[cause] < cases.start) if len(cases) else cause >= 0
    root = find_chain_ends(np.where(earlier, cause, np.arange(len(cases))))
    origin = cases.blamed[root]
    began_here = earlier & (origin == cases.blamed)
    return Origins(rank=origin, reason=np.where(began_here, reasons.reason[root], reasons.reason))


def find_chain_ends(cause: Int64s) -> Int64s:
    """Return the end of each chain of pointers; an end points to itself."""
    for _ in range(_MAX_ROUNDS):
        further = cause[cause]
        if (further == cause).all():
            break
        cause = further
    return cause


def _find_cases_by_instance(rows: LateRows, cases: LateCases, instances: Int64s) -> Int64s:
    """Return the case of each instance; -1 without one."""
    if not len(cases):
        return np.full(len(instances), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(cases.instance, instances), len(cases) - 1)
    return np.where(cases.instance[place] == instances, place, -1)


def _find_holding_cases(rows: LateRows, cases: LateCases, reasons: Reasons, wanted: Int64s) -> Int64s:
    """Return for each wanted case the case of the collective that held its rank up longest in the stretch."""
    found = np.full(len(wanted), -1, dtype=np.int64)
    for rank in np.unique(cases.blamed[wanted]):
        mine = np.flatnonzero(cases.blamed[wanted] == rank)
        here = np.flatnonzero((rows.rank == rank) & (cases.of_row >= 0))
        here = here[np.argsort(rows.start[here], kind="stable")]
        reach = np.maximum.accumulate(rows.arrival[here]) if len(here) else here
        low = np.searchsorted(reach, reasons.begin[wanted[mine]], side="right")
        high = np.searchsorted(rows.start[here], cases.start[wanted[mine]], side="left")
        best = find_largest_within(rows.exposed_wait[here], low, high)
        held = (best >= 0) & _has_waited(rows, here, best)
        found[mine] = np.where(held, cases.of_row[here[np.maximum(best, 0)]] if len(here) else -1, -1)
    return found


def _has_waited(rows: LateRows, here: Int64s, best: Int64s) -> Mask:
    waited: Mask = rows.exposed_wait[here[np.maximum(best, 0)]] > 0 if len(here) else best > len(best)
    return waited


def find_largest_within(values: Int64s, low: Int64s, high: Int64s) -> Int64s:
    """Return the index of the largest of ``values[low:high]`` for each pair; -1 if that is empty.

    A sparse table: the winners of all ranges whose length is a power of two answer each pair with two
    look-ups.
    """
    length = high - low
    answer = np.full(len(low), -1, dtype=np.int64)
    asked = np.flatnonzero(length > 0)
    winners = np.arange(len(values))
    size = 1
    while len(asked):
        now = asked[(length[asked] >= size) & (length[asked] < 2 * size)]
        first, second = winners[low[now]], winners[high[now] - size]
        answer[now] = np.where(values[second] > values[first], second, first)
        asked = asked[length[asked] >= 2 * size]
        if len(asked):
            first, second = winners[:-size], winners[size:]
            winners = np.where(values[second] > values[first], second, first)
        size *= 2
    return answer


_COLUMNS = (
    "rank", "instance", "judged", "blamed_rank", "late_reason", "origin_rank", "wait_ns", "exposed_wait_ns",
)  # fmt: skip


def sum_wait_shares(frame: pd.DataFrame, ranks: Sequence[int], steps: int) -> WaitShares:
    """Return sums per step, sorted by the exposed wait charged to each rank, largest first.

    Args:
        frame: Collectives of all ranks with judged, blamed_rank, late_reason, origin_rank.
        ranks: The loaded ranks.
        steps: Number of steps of the window.
    """
    frame = frame[list(_COLUMNS)]
    blamed = frame["blamed_rank"] != UNKNOWN_RANK
    judged = frame["judged"] & (frame["instance"] >= 0)
    exposed = frame["exposed_wait_ns"]
    by_rank = {int(str(rank)): rows for rank, rows in frame[blamed].groupby("blamed_rank")}
    took_part = frame[judged].groupby("rank")["instance"].nunique()
    own = frame.groupby("rank")["exposed_wait_ns"].sum()
    entries = [
        _make_blame(
            rank, by_rank.get(rank, frame[:0]), int(took_part.get(rank, 0)), int(own.get(rank, 0)), steps
        )
        for rank in ranks
    ]
    return WaitShares(
        per_rank=tuple(sorted(entries, key=lambda entry: (-entry.exposed_wait_ns, entry.rank))),
        tied_ns=int(exposed[judged & ~blamed].sum()) // steps,
        unjudged_ns=int(exposed[~judged & ~blamed].sum()) // steps,
        judged=int(frame.loc[judged, "instance"].nunique()),
    )


def _make_blame(rank: int, rows: pd.DataFrame, took_part: int, own_ns: int, steps: int) -> Blame:
    exposed = rows[rows["exposed_wait_ns"] > 0]
    waiting = int(rows.loc[rows["wait_ns"] > 0, "rank"].nunique())
    shared = steps * max(1, waiting)
    return Blame(
        rank=rank,
        wait_ns=int(rows["wait_ns"].sum()) // steps,
        exposed_wait_ns=int(rows["exposed_wait_ns"].sum()) // steps,
        last_ratio=min(1.0, rows["instance"].nunique() / took_part) if took_part else 0.0,
        own_wait_ns=own_ns // steps,
        reasons={str(reason): value for reason, value in _sum_by_column(exposed, "late_reason", steps)},
        waiting_ranks=waiting,
        wait_per_rank_ns=int(rows["wait_ns"].sum()) // shared,
        exposed_wait_per_rank_ns=int(rows["exposed_wait_ns"].sum()) // shared,
        origins={int(str(origin)): value for origin, value in _sum_by_column(exposed, "origin_rank", steps)},
    )


def _sum_by_column(rows: pd.DataFrame, column: str, steps: int) -> list[tuple[object, int]]:
    """Return the exposed wait per step by the values of a column, largest first."""
    if not len(rows):  # the case for nearly all of a thousand ranks
        return []
    sums = rows.groupby(column)["exposed_wait_ns"].sum().sort_values(ascending=False, kind="stable")
    return [(key, int(value) // steps) for key, value in sums.items() if int(value) >= steps]


_FULL_SYNC_KINDS = [str(kind) for kind in FULL_SYNC]


def measure_lateness(frame: pd.DataFrame) -> tuple[StepLateness, ...]:
    """Return one entry per rank and step with a judged full-sync collective, sorted by rank and step.

    Args:
        frame: Collectives of all ranks with rank, step, kind, judged, lateness_ns.
    """
    rows = frame[frame["judged"].to_numpy(bool) & frame["kind"].isin(_FULL_SYNC_KINDS).to_numpy(bool)]
    if not len(rows):
        return ()
    sums = rows.groupby(["rank", "step"])["lateness_ns"].agg(["size", "sum", "max"]).reset_index()
    columns = [sums[name].tolist() for name in ("rank", "step", "size", "sum", "max")]
    return tuple(
        StepLateness(rank=rank, step=step, collectives=count, mean_ns=total // count, largest_ns=largest)
        for rank, step, count, total, largest in zip(*columns, strict=True)
    )
