"""The report as plain text in 80 columns: the answer first, then what it rests on, unknowns last."""

from zprof.model.printable import printable
from zprof.model.report import Report
from zprof.reports.text_findings import findings, gaps
from zprof.reports.text_memory import memory
from zprof.reports.text_summary import summary
from zprof.reports.text_time import time


def render(report: Report) -> str:
    """The whole report; no colour is needed.

    Names are escaped where they are laid out, because that changes their width; what is escaped here
    again is the net under that.
    """
    lines = [*summary(report), *memory(report), *time(report), *findings(report), *gaps(report)]
    return "\n".join(printable(line) for line in lines) + "\n"
