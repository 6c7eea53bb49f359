"""Content of the plan screen: headline, step and peak tables, and the fitted model.

The tables have measured, modelled and predicted values.
"""

from zprof.model.errors import ZprofError
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.time import LEDGER_NAMES
from zprof.model.whatif import Calibration, FittedLink, PredictedFigure, Prediction
from zprof.reports.presenters.memory_figures import largest_rank
from zprof.tui.figures import Aggregation, Figure, ModelFigure, Unit, figure
from zprof.tui.presenters.memory import name_tenant
from zprof.tui.presenters.memory_tables import shorten_tenant
from zprof.tui.presenters.plan_prediction import (
    PENDING,
    PlannedChange,
    PlanRow,
    build_prediction_cells,
    find_entry,
    format_gap,
    format_model_error,
    format_range,
    format_value,
)
from zprof.tui.session import LoadedRun
from zprof.tui.shell import format_error
from zprof.tui.tables import Cell, Column, Line, Mark, Table, TextCell, numeric_column
from zprof.tui.theme import UNTAGGED

_STEP_ROW = PlanRow(part="step", name="wall_ns", title="step", unit=Unit.NS)
_PEAK_ROW = PlanRow(part="memory", name="peak_bytes", title="peak", unit=Unit.BYTES)


#: Rounds to 0.1 ms; smaller savings would be shown as 0.0.
_MIN_SAVING_NS = 50_000


def build_headline(planned: PlannedChange) -> list[TextCell]:
    """Return the status of the prediction and the sentence on it."""
    if isinstance(planned.answer, ZprofError):
        return [TextCell("NOT PREDICTED", Mark.DOUBTFUL), TextCell(format_error(planned.answer))]
    if planned.answer is None:
        return [
            TextCell("predicting", Mark.MUTED),
            TextCell(f"{planned.words or 'the run as it is'} ...", Mark.MUTED),
        ]
    if planned.prediction is None:
        return [TextCell("NOT PREDICTED", Mark.DOUBTFUL), TextCell(planned.words or "the run as it is")]
    if not planned.words:
        return [
            TextCell("AS MEASURED", Mark.TITLE),
            TextCell(f"turn a knob: left and right. {_describe_model(planned)}"),
        ]
    parts = [said for said in (_describe_step(planned), _describe_peak(planned)) if said]
    sentence = "; ".join(parts) or "neither the step nor the peak"
    return [TextCell("~ PREDICTED", Mark.PREDICTED), TextCell(f"{planned.said}: {sentence}.")]


def format_gaps_cell(planned: PlannedChange) -> TextCell:
    """Return the first thing that is not predicted and why, and how many more there are."""
    said = [format_gap(gap) for gap in planned.gaps if not isinstance(planned.answer, ZprofError)]
    more = f" (g: all {len(said)})" if len(said) > 1 else ""
    what = "unknown" if planned.is_whole else "not predicted"
    return TextCell(f"! {what}{more}: {said[0]}" if said else "", Mark.DOUBTFUL)


def _describe_model(planned: PlannedChange) -> str:
    entry = find_entry(planned, _STEP_ROW)
    if entry is None or entry.modelled is None or entry.measured is None:
        return "The step of this run could not be modelled."
    return (
        f"The model of this run gives a step of {format_value(entry.modelled, Unit.NS)} where "
        f"{format_value(entry.measured, Unit.NS)} was measured: {format_model_error(entry)}."
    )


def _describe_step(planned: PlannedChange) -> str:
    entry, prediction = find_entry(planned, _STEP_ROW), planned.prediction
    if entry is None or prediction is None or entry.predicted is None or entry.measured is None:
        return ""
    saved = entry.measured - entry.predicted
    if abs(saved) < _MIN_SAVING_NS:
        return (
            f"a step stays {format_value(entry.measured, Unit.NS)}{_format_saving_range(prediction, entry)}"
        )
    share = f", {format_value(abs(saved) / entry.measured, Unit.RATIO)}" if entry.measured else ""
    verb, more = ("saves", "of") if saved > 0 else ("costs", "more than")
    whole = (
        f"{format_value(abs(saved), Unit.NS)} {more} {format_value(entry.measured, Unit.NS)} per step{share}"
    )
    return f"{verb} {whole}{_format_saving_range(prediction, entry)}"


def _format_saving_range(prediction: Prediction, entry: PredictedFigure) -> str:
    """Return the range of the saving; if it contains 0, from longer to shorter."""
    if prediction.saving_ns is None:
        return ", range unknown"
    low, high = sorted(prediction.saving_ns)
    if low < 0 < high:
        return (
            f", anything from {format_value(-low, Unit.NS)} longer to {format_value(high, Unit.NS)} shorter"
        )
    if entry.predicted is not None and entry.measured is not None and high <= 0:
        low, high = -high, -low
    return f", between {format_range(low, high, Unit.NS).replace('..', ' and ')}"


def _describe_peak(planned: PlannedChange) -> str:
    entry = find_entry(planned, _PEAK_ROW)
    if entry is None or entry.predicted is None or entry.measured is None:
        return ""
    freed = entry.measured - entry.predicted
    if freed == 0:
        return f"the peak stays {format_value(entry.measured, Unit.BYTES)}"
    spread = ""
    if entry.low is not None and entry.high is not None:
        spread = f", peak between {format_range(entry.low, entry.high, Unit.BYTES).replace('..', ' and ')}"
    verb, more = ("frees", "of") if freed > 0 else ("takes", "more than")
    return (
        f"{verb} {format_value(abs(freed), Unit.BYTES)} {more} "
        f"{format_value(entry.measured, Unit.BYTES)} of memory{spread}"
    )


_RANKS, _BASELINE = "time.per_rank[*]", "comparison.baseline_time[*]"
_STEP, _PEAK = "wall_ns", "peak_bytes"
#: Table widths from which on the range, the model with its error, and the baseline are shown.
_RANGE_WIDTH, _MODEL_WIDTH, _BASELINE_WIDTH = 70, 90, 104
#: Smallest value to show: 50 us round to 0.1 ms, and one byte.
_MIN_SHOWN = {"step": 50_000, "memory": 1}
_PREDICTED = "of the changed run; ~ before a number: predicted, not measured. enter: its assumption"


def _columns(first: str, *, compared: bool) -> tuple[Column, ...]:
    columns = (
        Column(title=first, rest=True),
        numeric_column("measured", "this run"),
        numeric_column("model", "what the model gives for this run as it is", from_width=_MODEL_WIDTH),
        numeric_column(
            "error", "model / measured - 1, on the run that it was fitted to", from_width=_MODEL_WIDTH
        ),
        numeric_column("predicted", _PREDICTED),
        numeric_column("range", "the prediction lies between these", from_width=_RANGE_WIDTH),
        numeric_column("change", "predicted minus measured"),
    )
    return (
        (*columns, numeric_column("baseline", "measured", from_width=_BASELINE_WIDTH))
        if compared
        else columns
    )


def build_step_table(loaded: LoadedRun, planned: PlannedChange) -> Table:
    """Return the ledger terms and the step that they sum to, as means over ranks."""
    report = loaded.report
    compared = bool(report.comparison and report.comparison.baseline_time)
    rows = [
        (PlanRow(part="step", name=term, title=name, unit=Unit.MS), Mark.PLAIN)
        for term, name in LEDGER_NAMES.items()
    ]
    rows.append((PlanRow(part="step", name=_STEP, title="= step", unit=Unit.MS), Mark.TITLE))
    lines = []
    for row, mark in rows:
        found = figure(loaded.tree, Unit.MS, f"{_RANKS}.{row.name}", how=Aggregation.MEAN)
        before = (
            [figure(loaded.tree, Unit.MS, f"{_BASELINE}.{row.name}", how=Aggregation.MEAN)]
            if compared
            else []
        )
        if _is_shown(planned, row, found):
            lines.append(_build_line(planned, row, mark, found, before))
    return Table(
        name="plan step",
        title="step, ms",
        columns=_columns("term", compared=compared),
        lines=tuple(lines) if report.time.per_rank else (),
        help="The step as it was measured, as the model of this run gives it, and as it is predicted for the "
        "knobs on the left: means over ranks. Terms of 0.0 ms are left out.",
        note="~ predicted; mean over ranks" if report.time.per_rank else "no step was timed: g says why",
    )


def build_peak_table(loaded: LoadedRun, planned: PlannedChange) -> Table:
    """Return the peak of the largest rank and its tenants."""
    ranks = loaded.report.memory.per_rank
    largest = largest_rank(ranks)
    place = ranks.index(largest) if largest else 0
    stem = f"memory.per_rank[{place}]"
    leaves = [(_PEAK, _PEAK, "peak")]
    leaves += [(tenant.value, f"tenants.{tenant.value}", shorten_tenant(tenant)) for tenant in DISPLAY_ORDER]
    leaves.append((UNTAGGED, "untagged_bytes", name_tenant(UNTAGGED)))
    lines = []
    for name, leaf, title in leaves:
        row = PlanRow(part="memory", name=name, title=title, unit=Unit.BYTES)
        found = figure(loaded.tree, Unit.BYTES, f"{stem}.{leaf}")
        if _is_shown(planned, row, found):
            lines.append(_build_line(planned, row, Mark.TITLE if name == _PEAK else Mark.PLAIN, found, []))
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


def _build_line(
    planned: PlannedChange, row: PlanRow, mark: Mark, found: Figure, before: list[Figure]
) -> Line:
    cells: tuple[Cell, ...] = (TextCell(row.title), found, *build_prediction_cells(planned, row), *before)
    return Line(key=row.name, cells=cells, mark=mark)


def _is_shown(planned: PlannedChange, row: PlanRow, found: Figure) -> bool:
    """Return whether a row has a visible value, measured or predicted; sums always have."""
    entry = find_entry(planned, row)
    said = (entry.modelled, entry.predicted, entry.high) if entry else ()
    known = [abs(value) for value in (found.value, *said) if value is not None]
    return row.name in (_STEP, _PEAK) or any(value >= _MIN_SHOWN[row.part] for value in known)


_STEM = "outlook.calibration"
_PIECES = {
    "units": (Unit.COUNT, "units", "gathered and reduced one after the other"),
    "passes": (Unit.COUNT, "passes", "forwards and backwards in a step"),
    "forward_ns": (Unit.NS, "forward", "compute of a pass"),
    "backward_ns": (Unit.NS, "backward", "compute of a pass, recomputing included"),
    "optimizer_ns": (Unit.NS, "optimizer", "compute after the last pass"),
    "skew_ns": (Unit.NS, "skew", "compute of the slowest rank beyond the median one"),
    "prefetch": (Unit.COUNT, "prefetch", "units gathered ahead, as seen"),
    "steps": (Unit.COUNT, "steps", "of the run, that it was fitted to"),
}


def build_fit_table(planned: PlannedChange) -> Table:
    """Return what the model was fitted to; empty while pending or if it could not be fitted."""
    found = planned.calibration
    lines = [_build_piece_line(found, name) for name in _PIECES] if found else []
    links = found.links if found else ()
    lines += [line for at, link in enumerate(links) for line in _build_link_lines(at, link)]
    return Table(
        name="plan fit",
        title="what the model took from this run",
        columns=(
            Column(title="of the model", rest=True),
            numeric_column("value"),
            Column(title="what", rest=True),
        ),
        lines=tuple(lines),
        help="Every prediction rests on these. Latency and bandwidth are those of a line through the times "
        "of the run's own messages.",
        note=_format_note(planned),
    )


def _format_note(planned: PlannedChange) -> str:
    if planned.calibration is not None:
        slowest = planned.calibration.slowest_rank
        return "" if slowest is None else f"rank {slowest} is the slowest"
    return PENDING if planned.answer is None else "the time of this run could not be modelled: g says why"


def _build_piece_line(found: Calibration, name: str) -> Line:
    unit, title, says = _PIECES[name]
    return _build_fit_line(name, title, getattr(found, name), unit, says, f"{_STEM}.{name}")


def _build_link_lines(at: int, link: FittedLink) -> list[Line]:
    stem = f"{_STEM}.links[{at}]"
    fitted = f"{link.messages} messages, off by {format_value(link.residual_ratio, Unit.RATIO)}: {link.how}"
    name = f"{link.kind} {link.group}".strip()
    latency, rate = f"{stem}.latency_ns", f"{stem}.busbw_bytes_per_s"
    return [
        _build_fit_line(latency, f"{name}, latency", link.latency_ns, Unit.NS, fitted, latency),
        _build_fit_line(
            rate, f"{name}, bus bandwidth", link.busbw_bytes_per_s, Unit.BYTES_PER_S, fitted, rate
        ),
    ]


def _build_fit_line(key: str, title: str, value: float | None, unit: Unit, says: str, leaf: str) -> Line:
    said = "\n".join(
        [
            f"{title}: {says}",
            "",
            "what the model of this run took from it, and predictions rest on",
            "zprof whatif RUN -f json, and the report that e writes here, have it as",
            f"  {leaf}",
        ]
    )
    number = ModelFigure(
        value=value,
        unit=unit,
        leaves=(leaf,),
        words=format_value(value, unit),
        said=said,
        assumption="",
        is_predicted=False,
    )
    return Line(key=key, cells=(TextCell(title), number, TextCell(says)))
