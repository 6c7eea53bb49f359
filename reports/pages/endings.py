"""Build the section on how the ranks of a failed job ended: a line for each rank, and the last words."""

from zprof.model.endings import RankEnd, describe_end, describe_moment, name_place
from zprof.model.formatting import format_ns, printable
from zprof.model.report import Report
from zprof.reports.page import Code, Section, make_section
from zprof.reports.table import Column, Kind, make_number_columns, make_table, make_text_column

_MAX_RANKS, _MAX_LINES = 8, 6


def build_ending_section(report: Report) -> tuple[Section, ...]:
    """Build the section; empty if no rank failed, or nothing is known of how."""
    ends = report.endings
    if not ends:
        return ()
    columns = (
        *make_number_columns("rank", "ended after"),
        make_text_column("how"),
        Column(title="when", kind=Kind.NAME, wide=True),
        Column(title="in", kind=Kind.NAME, wide=True),
    )
    table = make_table(
        "How the ranks ended",
        columns,
        [_make_row(end) for end in ends[:_MAX_RANKS]],
        total=len(ends),
        noun="ranks",
    )
    first = ends[0]
    words = Code(
        title=f"last words of rank {first.rank}",
        lines=tuple(printable(line) for line in first.last_words[-_MAX_LINES:]),
    )
    lead = "The first one first; times since the recording started."
    return make_section("endings", "How the ranks ended", lead, table, words if words.lines else None)


def _make_row(end: RankEnd) -> tuple[str, ...]:
    after = "" if end.after_ns is None else format_ns(end.after_ns)
    how = describe_end(end)
    return str(end.rank), after, how, describe_moment(end).removesuffix(", "), name_place(end)
