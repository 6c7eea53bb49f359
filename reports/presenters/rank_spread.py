"""Build how the peaks of the ranks differ: which ranks, and by whose memory."""

from collections.abc import Sequence
from statistics import median

from zprof.model.formatting import format_bytes, format_percent
from zprof.model.memory import Memory, RankMemory
from zprof.model.memory_changes import RankSpread
from zprof.model.report import Report
from zprof.reports.page import Note, Section, make_section
from zprof.reports.presenters.memory_formatting import tenant_name
from zprof.reports.presenters.memory_groups import ChangeTitles, build_change_table
from zprof.reports.presenters.run_formatting import format_ranks

#: Peaks that differ by less are the same for whoever looks for a cause.
_MIN_SPREAD_RATIO = 0.03
_MAX_GROUPS, _MAX_GROUPS_SHORT = 12, 4


def build_rank_spread_section(report: Report, *, short: bool = False) -> tuple[Section, ...]:
    """Build the section of how ranks of snapshots differ; empty if their peaks are about the same."""
    spread = report.memory.spread
    if spread is None or not spread.groups or not _differ(report.memory.per_rank):
        return ()
    largest, smallest = f"rank {spread.largest_rank}", f"rank {spread.smallest_rank}"
    table = build_change_table(
        "Where the ranks differ",
        "live at the peak of the smallest and the largest rank",
        ChangeTitles(
            a=smallest,
            b=largest,
            change="difference",
            only_a=f"{smallest} alone",
            only_b=f"{largest} alone",
        ),
        spread.groups,
        max_groups=_MAX_GROUPS_SHORT if short else _MAX_GROUPS,
    )
    note = Note(text=describe_spread(report.memory, spread))
    lead = "What the rank with the largest peak holds beyond the one with the smallest."
    return make_section("spread", "Differences between ranks", lead, table, note)


def _differ(ranks: Sequence[RankMemory]) -> bool:
    peaks = [rank.peak_bytes for rank in ranks]
    return max(peaks) - min(peaks) >= _MIN_SPREAD_RATIO * max(peaks)


def describe_spread(memory: Memory, spread: RankSpread) -> str:
    """Describe the difference of the largest and smallest peaks, and which ranks are unlike the others."""
    largest = max(rank.peak_bytes for rank in memory.per_rank)
    share = format_percent(spread.difference_bytes / max(1, largest - spread.difference_bytes))
    sentence = (
        f"rank {spread.largest_rank} holds {format_bytes(spread.difference_bytes)} ({share}) more than rank "
        f"{spread.smallest_rank}, mostly {tenant_name(spread.tenant)}"
    )
    return f"{sentence}{_describe_outliers(memory.per_rank)}."


def _describe_outliers(ranks: Sequence[RankMemory]) -> str:
    """Describe which of more than two ranks are far from their median peak; empty if none or all are."""
    middle = median(rank.peak_bytes for rank in ranks)
    above = [rank.rank for rank in ranks if rank.peak_bytes > (1 + _MIN_SPREAD_RATIO) * middle]
    below = [rank.rank for rank in ranks if rank.peak_bytes < (1 - _MIN_SPREAD_RATIO) * middle]
    if len(ranks) < 3 or not above + below:
        return ""
    sides = ", ".join(
        f"{name}: rank{'s' if len(side) > 1 else ''} {format_ranks(side)}"
        for name, side in (("above", above), ("below", below))
        if side
    )
    return f" ({format_percent(_MIN_SPREAD_RATIO)} off the median of {len(ranks):,} ranks, {sides})"
