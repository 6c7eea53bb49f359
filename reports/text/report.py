"""The report as plain text in 80 columns: the answer first, then what it rests on, unknowns last."""

from zprof.model.printable import printable
from zprof.model.report import Report
from zprof.reports.escape_log import log_line
from zprof.reports.text.findings import findings, gaps
from zprof.reports.text.memory import largest, memory
from zprof.reports.text.memory_detail import memory_details
from zprof.reports.text.memory_device import memory_devices
from zprof.reports.text.outlook import outlook
from zprof.reports.text.second_opinion import second_opinion
from zprof.reports.text.summary import summary
from zprof.reports.text.time import time
from zprof.reports.text.time_detail import time_details


def render(report: Report) -> str:
    """The whole report; no colour is needed.

    Names are escaped where they are laid out, because that changes their width; what is escaped here
    again is the net under that.  No line is one that a runner of CI jobs takes for a command.
    """
    lines = [*summary(report), *memory(report), *_middle(report), *second_opinion(report)]
    lines += [*findings(report), *outlook(report), *gaps(report)]
    return "\n".join(log_line(printable(line)) for line in lines) + "\n"


def _middle(report: Report) -> list[str]:
    """Time and memory; all of the one where the report has nothing of the other."""
    if report.time.per_rank and not report.memory.per_rank:
        return [*time(report), *time_details(report)]
    if report.time.per_rank:
        return [*largest(report.memory.top), *time(report)]
    return [*memory_details(report.memory), *memory_devices(report.memory)]
