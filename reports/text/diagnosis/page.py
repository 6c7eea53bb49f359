"""The diagnosis: verdict, where the time went, what to change, what is left, what was not tested."""

from zprof.model.printable import printable
from zprof.model.report import Report
from zprof.reports.escape_log import log_line
from zprof.reports.text.critical_path import critical_path
from zprof.reports.text.diagnosis.changes import changes
from zprof.reports.text.diagnosis.jobs import equal_work, jobs
from zprof.reports.text.diagnosis.ledger import where
from zprof.reports.text.diagnosis.unknown import unexplained, untested
from zprof.reports.text.memory import memory
from zprof.reports.text.summary import modelled, peak, runs, verdict


def render(report: Report) -> str:
    """The whole answer; what it leaves out is in ``zprof report`` and in the JSON.

    Names are escaped where they are laid out; what is escaped here again is the net under that.
    """
    lines = [*verdict(report), *peak(report), "", *runs(report), *modelled(report), *jobs(report)]
    lines += [*equal_work(report), *(where(report) if report.time.per_rank else memory(report))]
    lines += [*critical_path(report), *changes(report), *unexplained(report), *untested(report)]
    return "\n".join(log_line(printable(line)) for line in lines) + "\n"
