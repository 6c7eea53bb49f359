"""Help on ranks: lateness, wait caused and suffered, the critical path."""

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
    """Return the matched collectives of this rank and step, the latest arrival first."""
    rows, entry = analysis.collectives, find_entry(analysis.time.lateness, at)
    if entry is not None:
        rows = rows[(rows["rank"] == entry.rank) & (rows["step"] == entry.step)]
    return pick_top_rows(rows[rows["matched"].astype(bool)], _COLUMNS, "lateness_ns")


def _select_caused_waits(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return waits that this rank caused, longest first."""
    rows, rank = analysis.collectives, _find_blamed_rank(analysis, at)
    rows = rows[rows["blamed_rank"] == rank] if rank is not None else rows[rows["blamed_rank"] >= 0]
    return _pick_longest(rows)


def _select_suffered_waits(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return waits that this rank suffered, longest first."""
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
        title="lateness of a rank in a step",
        says="How long after the first rank of its group it came to the collectives of this step, mean. "
        "Of collectives in which all wait for all, seen on all ranks; not of the first of the window. "
        "Below the uncertainty of the clocks it means nothing.",
        formula="mean of (start - first start of the group), on the common clock",
        inputs=("rank", "step", "collectives", "largest_ns"),
        rows=_select_late_rows,
    ),
    MetricHelp(
        leaf="time.lateness[].largest_ns",
        title="largest lateness of a rank in a step",
        says="The collective of this step to which it came latest after the first rank of its group.",
        formula="largest of (start - first start of the group), on the common clock",
        inputs=("rank", "step", "collectives", "mean_ns"),
        rows=_select_late_rows,
    ),
)
_BLAMES = (
    MetricHelp(
        leaf=f"{_BLAME}.wait_ns",
        title="waiting that a rank causes",
        says="How long all other ranks wait in collectives to which this one came last, in a step, summed "
        "over the ranks that wait.",
        formula="sum of min(last start, end) - start over the waiting ranks",
        inputs=("rank", "exposed_wait_ns", "last_ratio"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.exposed_wait_ns",
        title="exposed waiting that a rank causes",
        says="The part of the waiting that it causes in which the waiting ranks compute nothing, in a step, "
        "summed over them. It came last beyond the clock uncertainty, or it is not charged.",
        formula="blamed + tied + unjudged = all exposed waiting",
        inputs=("rank", "wait_ns", "last_ratio", "own_wait_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.exposed_wait_per_rank_ns",
        title="wait caused, per waiting rank",
        says="Exposed waiting that this rank causes, in a step, the mean of the ranks that waited for it: "
        "about what each of them would win without it.",
        formula="exposed waiting in collectives to which it came last / ranks that waited",
        inputs=("rank", "exposed_wait_ns", "waiting_ranks", "wait_per_rank_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.wait_per_rank_ns",
        title="wait caused, per waiting rank, with what compute hides",
        says="The same with the waiting under which the waiting ranks compute.",
        inputs=("rank", "wait_ns", "waiting_ranks", "exposed_wait_per_rank_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.waiting_ranks",
        title="ranks that waited for a rank",
        says="How many ranks waited in a collective to which this one came last.",
        inputs=("rank", "wait_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.last_ratio",
        title="how often a rank comes last",
        says="Of the judged collectives that it took part in, the share to which it came last, beyond the "
        "clock uncertainty. Judged: seen on all ranks, and not the first of the window.",
        formula="collectives to which it came last / collectives that it took part in",
        inputs=("rank", "wait_ns", "exposed_wait_ns"),
        rows=_select_caused_waits,
    ),
    MetricHelp(
        leaf=f"{_BLAME}.own_wait_ns",
        title="waiting of a rank itself",
        says="Its own exposed waiting in collectives, of a step, whoever it waited for.",
        inputs=("rank", "wait_ns", "exposed_wait_ns", "last_ratio"),
        rows=_select_suffered_waits,
    ),
    *(
        MetricHelp(
            leaf=f"{_BLAME}.reasons.{reason.value}",
            title=f"waiting caused by {reason.value.replace('_', ' ')}",
            says="The part of the exposed waiting that a rank causes for this reason: what it did longer "
            "than the others since all were last in step.",
            inputs=("../rank",),
            rows=_select_caused_waits,
        )
        for reason in LateReason
    ),
)
_PATH = (
    MetricHelp(
        leaf="time.critical_path.wall_ns",
        title="critical path of a step",
        says="The chain of work across ranks that ends with a step, mean: it could not be shorter without "
        "one of its parts being shorter. It goes from the first rank's begin to the last one's end: that may "
        "be a little longer than the mean of the ranks' steps.",
        formula="sum of its shares",
        inputs=("steps",),
    ),
    MetricHelp(
        leaf="time.critical_path.shares[].ns",
        title="share of the critical path",
        says="What of the critical path a rank spends with one thing, mean of a step. A transfer is that of "
        "the rank that waited for it. Making something shorter that is not on it saves nothing.",
        formula="the shares sum to the path",
        inputs=("rank",),
    ),
)
RANKS: tuple[MetricHelp, ...] = (*_LATENESS, *_BLAMES, *_PATH)
