"""What else differs between the two jobs of a report, in Markdown: it may be the cause instead."""

from zprof.model.report import Report
from zprof.reports.escape_markdown import prose
from zprof.reports.markdown.blocks import left_out, table

_MOST = 24


def difference_blocks(report: Report) -> list[str]:
    """Nothing without a baseline, or where the jobs are alike."""
    found = report.comparison.differences if report.comparison else ()
    if not found:
        return []
    rows = [[prose(entry.what, 80), prose(entry.a, 120), prose(entry.b, 120)] for entry in found[:_MOST]]
    return [
        table(["what else differs", "baseline", "this run"], rows, words=(0, 1, 2)),
        *left_out(len(rows), len(found), "differences"),
    ]
