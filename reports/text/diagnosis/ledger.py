"""Where the time went: the terms of the step, or from the baseline's step to this one; both sum."""

from zprof.model.printable import printable, shorten
from zprof.model.report import Comparison, Report, StepTimeChange
from zprof.model.units import format_ms
from zprof.reports.shown.diagnosis_presenter import terms_by_weight
from zprof.reports.shown.presenter import step_ns
from zprof.reports.shown.time_presenter import per
from zprof.reports.shown.time_words import bounds, signed
from zprof.reports.text.layout import bar, heading, table
from zprof.reports.text.time import exposed

_BAR = 24
_NAME = 24


def where(report: Report) -> list[str]:
    """The table, and how much of the communication is exposed."""
    comparison = report.comparison
    if comparison is not None and comparison.step_time is not None:
        return ["", *_bridge(report, comparison, comparison.step_time), *exposed(report)]
    return ["", *_alone(report), *exposed(report)]


def _bridge(report: Report, comparison: Comparison, times: StepTimeChange) -> list[str]:
    before, after = (shorten(printable(name), _NAME) for name in (comparison.baseline, report.run.name))
    rows = [[before, format_ms(times.a_ns), ""]]
    for row in terms_by_weight(report):
        change = row.change_ns or 0
        rows.append([f"  {row.name}", signed(change), bar(row.share, _BAR) if change > 0 else ""])
    rows.append([f"= {after}", format_ms(times.b_ns), ""])
    return [heading(f"FROM {before} TO {after}", f"ms {per(report.time)}, mean of the ranks"), *table(rows)]


def _alone(report: Report) -> list[str]:
    ranks = report.time.per_rank
    marks = bounds(ranks)
    rows = [
        [row.name, marks.get(row.name, "") + format_ms(row.this_ns), bar(row.share, _BAR)]
        for row in terms_by_weight(report)
    ]
    of = per(report.time)
    rows.append(["= all" if of == "in all" else "= step", format_ms(step_ns(ranks)), ""])
    return [heading("WHERE THE TIME GOES", f"ms {of}, mean of the ranks"), *table(rows)]
