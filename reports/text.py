"""The report as plain text in 80 columns: the answer first, then what it rests on, unknowns last."""

from zprof.model.report import Report
from zprof.reports.text_findings import findings, gaps
from zprof.reports.text_memory import memory
from zprof.reports.text_summary import summary
from zprof.reports.text_time import time


def render(report: Report) -> str:
    """The whole report; names from the run are escaped, no colour is needed."""
    lines = [*summary(report), *memory(report), *time(report), *findings(report), *gaps(report)]
    return "\n".join(lines) + "\n"
