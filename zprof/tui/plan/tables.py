"""The tables of the Plan screen: the step and the peak, measured, modelled and predicted, and the fit."""

from zprof.model.tenants import SHOWN
from zprof.reports.presenters.memory_figures import largest_rank
from zprof.reports.presenters.time_figures import LEDGER
from zprof.tui.figures import Figure, How, Unit, figure
from zprof.tui.pages.memory_legend import label
from zprof.tui.pages.memory_tables import short_name
from zprof.tui.plan.cells import Row, entry_of, foreseen_cells
from zprof.tui.plan.planned import Planned
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Column, Line, Mark, Table, Word, numeric
from zprof.tui.theme.palette import UNTAGGED

_RANKS, _BASELINE = "time.per_rank[*]", "comparison.baseline_time[*]"
_STEP, _PEAK = "wall_ns", "peak_bytes"
#: Widths of a table from which on the range, the model and its error, and the baseline have room.
_RANGE, _MODEL, _BASE = 70, 90, 104
#: 0.0 in milliseconds with one decimal.
_NOTHING = {"step": 50_000, "memory": 1}
_PREDICTED = "of the changed run; ~ before a number: predicted, not measured. enter: its assumption"


def _columns(first: str, *, compared: bool) -> tuple[Column, ...]:
    columns = (
        Column(title=first, rest=True),
        numeric("measured", "this run"),
        numeric("model", "what the model gives for this run as it is", from_width=_MODEL),
        numeric("error", "model / measured - 1, on the run that it was fitted to", from_width=_MODEL),
        numeric("predicted", _PREDICTED),
        numeric("range", "the prediction lies between these", from_width=_RANGE),
        numeric("change", "predicted minus measured"),
    )
    return (*columns, numeric("baseline", "measured", from_width=_BASE)) if compared else columns


def step_table(loaded: Loaded, planned: Planned) -> Table:
    """The terms of the ledger and the step that they sum to: means over ranks."""
    report = loaded.report
    compared = bool(report.comparison and report.comparison.baseline_time)
    rows = [(Row(part="step", name=term, title=name, unit=Unit.MS), Mark.PLAIN) for term, name in LEDGER]
    rows.append((Row(part="step", name=_STEP, title="= step", unit=Unit.MS), Mark.TITLE))
    lines = []
    for row, mark in rows:
        found = figure(loaded.tree, Unit.MS, f"{_RANKS}.{row.name}", how=How.MEAN)
        before = [figure(loaded.tree, Unit.MS, f"{_BASELINE}.{row.name}", how=How.MEAN)] if compared else []
        if _is_shown(planned, row, found):
            lines.append(_line(planned, row, mark, found, before))
    return Table(
        name="plan step",
        title="step, ms",
        columns=_columns("term", compared=compared),
        lines=tuple(lines) if report.time.per_rank else (),
        help="The step as it was measured, as the model of this run gives it, and as it is predicted for the "
        "knobs on the left: means over ranks. Terms of 0.0 ms are left out.",
        note="~ predicted; mean over ranks" if report.time.per_rank else "no step was timed: g says why",
    )


def peak_table(loaded: Loaded, planned: Planned) -> Table:
    """The peak of the largest rank, then its tenants."""
    ranks = loaded.report.memory.per_rank
    largest = largest_rank(ranks)
    place = ranks.index(largest) if largest else 0
    stem = f"memory.per_rank[{place}]"
    leaves = [(_PEAK, _PEAK, "peak")]
    leaves += [(tenant.value, f"tenants.{tenant.value}", short_name(tenant)) for tenant in SHOWN]
    leaves.append((UNTAGGED, "untagged_bytes", label(UNTAGGED)))
    lines = []
    for name, leaf, title in leaves:
        row = Row(part="memory", name=name, title=title, unit=Unit.BYTES)
        found = figure(loaded.tree, Unit.BYTES, f"{stem}.{leaf}")
        if _is_shown(planned, row, found):
            lines.append(_line(planned, row, Mark.TITLE if name == _PEAK else Mark.PLAIN, found, []))
    return Table(
        name="plan peak",
        title="memory at the peak",
        columns=_columns("tenant", compared=False),
        lines=tuple(lines) if ranks else (),
        help="The peak of the largest rank by tenant: measured, by the model of this run, and predicted. "
        "Tenants without a byte are left out.",
        note=f"~ predicted; rank {largest.rank}, the largest"
        if largest
        else "no memory was measured: g says why",
    )


def _line(planned: Planned, row: Row, mark: Mark, found: Figure, before: list[Figure]) -> Line:
    cells: tuple[Cell, ...] = (Word(row.title), found, *foreseen_cells(planned, row), *before)
    return Line(key=row.name, cells=cells, mark=mark)


def _is_shown(planned: Planned, row: Row, found: Figure) -> bool:
    """Whether it is anything at all, measured or predicted; the sum always is."""
    entry = entry_of(planned, row)
    said = (entry.modelled, entry.predicted, entry.high) if entry else ()
    known = [abs(value) for value in (found.value, *said) if value is not None]
    return row.name in (_STEP, _PEAK) or any(value >= _NOTHING[row.part] for value in known)
