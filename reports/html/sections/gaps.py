"""What could not be measured, why, and what would make it known."""

from collections.abc import Sequence

from zprof.model.report import Report
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column
from zprof.reports.shown.presenter import GapGroup, grouped_gaps, named_ranks

_MOST = 200


def gaps(report: Report) -> Sequence[Block]:
    """A row a gap; the same gap on several ranks is one."""
    groups = grouped_gaps(report.gaps)
    columns = (Column(title="what"), Column(title="ranks"), Column(title="reason"), Column(title="remedy"))
    return words.table(
        f"Not measured ({len(groups):,})",
        columns,
        [_row(group) for group in groups[:_MOST]],
        words.left_out(min(_MOST, len(groups)), len(groups), "gaps"),
        folded_from=100,
    )


def _row(group: GapGroup) -> tuple[str, ...]:
    return (
        words.sentence(group.what),
        named_ranks(group.ranks) if group.ranks else "the run",
        words.sentence(group.reason),
        words.sentence(group.remedy) if group.remedy else words.NOTHING,
    )
