"""Explain the rank metrics: lateness, wait caused and suffered, the critical path."""

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LateReason
from zprof.tui.metric_help.metric import Indices, MetricHelp, find_entry, pick_top_rows

_COLUMNS = (
    "step",
    "kind",
    "group",
    "unit",
    "rank",
    "lateness_ns",
    "wait_ns",
    "exposed_wait_ns",
    "late_reason",
)
_BLAME = "time.blame.per_rank[]"


def _select_late_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the matched collectives of this rank and step, the largest lateness first."""
    rows, entry = analysis.collectives, find_entry(analysis.time.lateness, at)
    if entry is not None:
        rows = rows[(rows["rank"] == entry.rank) & (rows["step"] == entry.step)]
    return pick_top_rows(rows[rows["matched"].astype(bool)], _COLUMNS, "lateness_ns")


def _select_caused_waits(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the waits that this rank caused, longest first."""
    rows, rank = analysis.collectives, _find_blamed_rank(analysis, at)
    rows = rows[rows["blamed_rank"] == rank] if rank is not None else rows[rows["blamed_rank"] >= 0]
    return _pick_longest(rows)


def _select_suffered_waits(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the waits that this rank suffered, longest first."""
    rows, rank = analysis.collectives, _find_blamed_rank(analysis, at)
    return _pick_longest(rows if rank is None else rows[rows["rank"] == rank])


def _pick_longest(rows: pd.DataFrame) -> pd.DataFrame:
    return pick_top_rows(rows, (*_COLUMNS, "blamed_rank", "origin_rank"), "exposed_wait_ns")


def _find_blamed_rank(analysis: RunAnalysis, at: Indices) -> int | None:
    blame = analysis.time.blame
    entry = find_entry(blame.per_rank, at) if blame is not None else None
    return entry.rank if entry is not None else None


_LATENESS = (
    MetricHelp(
        leaf="time.lateness[].mean_ns",
        title="mean lateness per rank and step",
        says="Mean delay after the first rank of the group on entering the collectives of this step. Only "
        "collectives in which every rank waits for all others and that were recorded on all ranks count; the "
        "first of the window is excluded. Values below the clock uncertainty are not significant.",
        formula="mean of (start - earliest start in the group), on the common clock",
        inputs=("rank", "step", "collectives", "largest_ns"),
        rows=_select_late_rows,
    ),
    MetricHelp(
        leaf="time.lateness[].largest_ns",
        title="largest lateness per rank and step",
        says="Largest delay after the first rank of the group on entering any collective of this step.",
        formula="maximum of (start - earliest start in the group), on the common clock",
        inputs=("rank", "step", "collectives", "mean_ns"),
        rows=_select_late_rows,
    ),
)
_BLAME_HELP = (
    MetricHelp(
        leaf=f"{_BLAME}.wait_ns",
        title="wait caused",
        says="Time per step that other ranks wait in collectives at which this rank arrived last, summed "
        "over the waiting ranks.",
        formula="sum of (min(last start, end) - start) over the waiting ranks",
        inputs=("rank", "exposed_wait_ns", "last_ratio"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.exposed_wait_ns",
        title="exposed wait caused",
        says="The part of the wait caused during which the waiting ranks do not compute, per step, summed "
        "over the waiting ranks. A wait is attributed to this rank only if it arrived last by more than "
        "the clock uncertainty.",
        formula="blamed + tied + unjudged = total exposed wait",
        inputs=("rank", "wait_ns", "last_ratio", "own_wait_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.exposed_wait_per_rank_ns",
        title="exposed wait caused, per waiting rank",
        says="Exposed wait per step that this rank causes, averaged over the ranks that waited for it: "
        "approximately what each of them would gain if this rank were not late.",
        formula="exposed wait in collectives at which it arrived last / number of waiting ranks",
        inputs=("rank", "exposed_wait_ns", "waiting_ranks", "wait_per_rank_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.wait_per_rank_ns",
        title="wait caused, per waiting rank",
        says="Wait per step that this rank causes, averaged over the ranks that waited for it, including "
        "waits that are hidden by compute.",
        inputs=("rank", "wait_ns", "waiting_ranks", "exposed_wait_per_rank_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.waiting_ranks",
        title="waiting ranks",
        says="Number of ranks that waited in a collective at which this rank arrived last.",
        inputs=("rank", "wait_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.last_ratio",
        title="share of collectives arrived last",
        says="Share of the judged collectives with this rank at which it arrived last by more than the clock "
        "uncertainty. Judged: recorded on all ranks, and not the first of the window.",
        formula="collectives at which it arrived last / judged collectives with this rank",
        inputs=("rank", "wait_ns", "exposed_wait_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.own_wait_ns",
        title="wait suffered",
        says="This rank's own exposed wait in collectives, per step, regardless of which rank it waited for.",
        inputs=("rank", "wait_ns", "exposed_wait_ns", "last_ratio"),
        rows=_select_suffered_waits,
    ),
    *(
        MetricHelp(
            leaf=f"{_BLAME}.reasons.{reason.value}",
            title=f"wait caused: {reason.value.replace('_', ' ')}",
            says="The part of the exposed wait that this rank causes for this reason: the activity on "
            "which it spent more time than the other ranks since the last common synchronization.",
            inputs=("../rank",),
            rows=_select_caused_waits,
        )
        for reason in LateReason
    ),
)
_PATH = (
    MetricHelp(
        leaf="time.critical_path.wall_ns",
        title="critical path",
        says="Length of the chain of dependent work across ranks that determines the end of a step, averaged "
        "over steps. A step gets shorter only if a part of this chain does. It extends from the first rank's "
        "start to the last rank's end and may therefore be slightly longer than the mean step time.",
        formula="sum of the shares",
        inputs=("steps",),
    ),
    MetricHelp(
        leaf="time.critical_path.shares[].ns",
        title="share of the critical path",
        says="Time on the critical path that one rank spends on one activity, per step. A transfer is "
        "attributed to the rank that waited for it. Shortening work that is not on the critical path saves "
        "nothing.",
        formula="the shares sum to the length of the critical path",
        inputs=("rank",),
    ),
)
RANKS: tuple[MetricHelp, ...] = (*_LATENESS, *_BLAME_HELP, *_PATH)
