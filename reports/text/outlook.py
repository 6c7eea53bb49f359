"""What single changes would make of the run, short: a line a change, and what could not be predicted."""

from zprof.model.printable import printable
from zprof.model.report import Report
from zprof.reports.plan.outlook import outlook_answers
from zprof.reports.plan.prediction_tables import summary_grid
from zprof.reports.shown.presenter import grouped_gaps
from zprof.reports.text.grid import grid_lines
from zprof.reports.text.layout import heading, wrap


def outlook(report: Report) -> list[str]:
    """Nothing where nobody asked; term by term: zprof whatif."""
    found = report.outlook
    if found is None:
        return []
    lines = ["", heading("WHAT IF", "~ is predicted; term by term: zprof whatif RUN")]
    lines += [line for said in outlook_answers(found) for line in wrap(printable(said))]
    lines += [line for grid in summary_grid(found) for line in grid_lines(grid)[1:]]
    for group in grouped_gaps(found.gaps):
        lines += wrap(printable(f"not predicted: {group.what}{group.where}: {group.reason}"), first="  - ")
        lines += wrap(printable(group.remedy), first="    → ") if group.remedy else []
    return lines
