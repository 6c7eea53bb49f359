"""Build the content of the plan screen: headline, step and peak tables, and the fitted model.

The tables show measured, modelled and predicted values.
"""

from zprof.model.errors import ZprofError
from zprof.model.leaves import read_value
from zprof.model.paths import parse_path
from zprof.model.quantities import Aggregation, Unit, Value
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.time import IN_WINDOW, LEDGER_NAMES, PER_STEP
from zprof.model.whatif import Calibration, FittedLink, PredictedFigure, Prediction
from zprof.reports.presenters.memory_formatting import largest_rank
from zprof.reports.table import Cell, Column, Kind, Mark, Marked, Row, Table
from zprof.tui.model_value import ModelValue
from zprof.tui.presenters.memory import name_tenant
from zprof.tui.presenters.memory_tables import shorten_tenant
from zprof.tui.presenters.plan_prediction import (
    PENDING,
    PlannedChange,
    PredictionRow,
    build_prediction_cells,
    find_entry,
    format_gap,
    format_model_error,
    format_range,
    format_value,
)
from zprof.tui.session import LoadedRun
from zprof.tui.shell import format_error
from zprof.tui.theme import UNTAGGED

_STEP_ROW = PredictionRow(part="step", name="wall_ns", title="step", unit=Unit.NS)
_PEAK_ROW = PredictionRow(part="memory", name="peak_bytes", title="peak", unit=Unit.BYTES)


#: Rounds to 0.1 ms; smaller savings would be shown as 0.0.
_MIN_SAVING_NS = 50_000


def build_headline(planned: PlannedChange) -> list[Cell]:
    """Build the status of the prediction and a sentence that summarizes it."""
    if isinstance(planned.answer, ZprofError):
        return [Marked("NOT PREDICTED", Mark.DOUBTFUL), format_error(planned.answer)]
    if planned.answer is None:
        return [
            Marked("predicting", Mark.MUTED),
            Marked(f"{planned.words or 'the unchanged run'} ...", Mark.MUTED),
        ]
    if planned.prediction is None:
        return [Marked("NOT PREDICTED", Mark.DOUBTFUL), planned.words or "the unchanged run"]
    if not planned.words:
        return [
            Marked("AS MEASURED", Mark.TITLE),
            f"press left or right to change a knob. {_describe_model(planned)}",
        ]
    parts = [text for text in (_describe_step(planned), _describe_peak(planned)) if text]
    sentence = "; ".join(parts) or "neither step time nor peak memory could be predicted"
    return [Marked("~ PREDICTED", Mark.PREDICTED), f"{planned.description}: {sentence}."]


def format_gaps_cell(planned: PlannedChange) -> Marked:
    """Format the first gap of the prediction with its reason, and the number of gaps if there are more."""
    gaps = [format_gap(gap) for gap in planned.gaps if not isinstance(planned.answer, ZprofError)]
    count = f" (g: all {len(gaps)})" if len(gaps) > 1 else ""
    status = "unknown" if planned.is_whole else "not predicted"
    return Marked(f"! {status}{count}: {gaps[0]}" if gaps else "", Mark.DOUBTFUL)


def _describe_model(planned: PlannedChange) -> str:
    entry = find_entry(planned, _STEP_ROW)
    if entry is None or entry.modelled is None or entry.measured is None:
        return "The step of this run could not be modelled."
    return (
        f"The model of this run gives a step time of {format_value(entry.modelled, Unit.NS)}; "
        f"{format_value(entry.measured, Unit.NS)} was measured: {format_model_error(entry)}."
    )


def _describe_step(planned: PlannedChange) -> str:
    entry, prediction = find_entry(planned, _STEP_ROW), planned.prediction
    if entry is None or prediction is None or entry.predicted is None or entry.measured is None:
        return ""
    saved = entry.measured - entry.predicted
    if abs(saved) < _MIN_SAVING_NS:
        return (
            f"step time stays {format_value(entry.measured, Unit.NS)}"
            f"{_format_saving_range(prediction, entry)}"
        )
    share = f", {format_value(abs(saved) / entry.measured, Unit.RATIO)}" if entry.measured else ""
    verb, relation = ("saves", "of") if saved > 0 else ("costs", "more than")
    amounts = f"{format_value(abs(saved), Unit.NS)} {relation} {format_value(entry.measured, Unit.NS)}"
    basis = IN_WINDOW if planned.outlook and planned.outlook.is_window else PER_STEP
    return f"{verb} {amounts} {basis}{share}{_format_saving_range(prediction, entry)}"


def _format_saving_range(prediction: Prediction, entry: PredictedFigure) -> str:
    """Format the range of the saving; if it contains 0, from longer to shorter."""
    if prediction.saving_ns is None:
        return ", range unknown"
    low, high = sorted(prediction.saving_ns)
    if low < 0 < high:
        return f", from {format_value(-low, Unit.NS)} longer to {format_value(high, Unit.NS)} shorter"
    if entry.predicted is not None and entry.measured is not None and high <= 0:
        low, high = -high, -low
    return f", between {format_range(low, high, Unit.NS).replace('..', ' and ')}"


def _describe_peak(planned: PlannedChange) -> str:
    entry = find_entry(planned, _PEAK_ROW)
    if entry is None or entry.predicted is None or entry.measured is None:
        return ""
    freed = entry.measured - entry.predicted
    if freed == 0:
        return f"peak memory stays {format_value(entry.measured, Unit.BYTES)}"
    spread = ""
    if entry.low is not None and entry.high is not None:
        spread = f", peak between {format_range(entry.low, entry.high, Unit.BYTES).replace('..', ' and ')}"
    verb, relation = ("frees", "of") if freed > 0 else ("uses", "more than")
    return (
        f"{verb} {format_value(abs(freed), Unit.BYTES)} {relation} "
        f"{format_value(entry.measured, Unit.BYTES)} of memory{spread}"
    )


_RANKS, _BASELINE = "time.per_rank[*]", "comparison.baseline_time[*]"
_STEP, _PEAK = "wall_ns", "peak_bytes"
#: Minimum table widths for the range, the model with its error, and the baseline.
_RANGE_WIDTH, _MODEL_WIDTH, _BASELINE_WIDTH = 70, 90, 104
#: Smallest value to show: 50 us round to 0.1 ms, and one byte.
_MIN_SHOWN = {"step": 50_000, "memory": 1}
_PREDICTED_HELP = "for the changed run; ~ means predicted, not measured. Press enter for the assumption"


def _make_columns(first: str, *, is_compared: bool) -> tuple[Column, ...]:
    columns = (
        Column(title=first, kind=Kind.TEXT, takes_rest=True),
        Column(title="measured", help="this run"),
        Column(title="model", help="the model's value for the unchanged run", from_width=_MODEL_WIDTH),
        Column(
            title="error",
            help="model / measured - 1, on the run that the model was fitted to",
            from_width=_MODEL_WIDTH,
        ),
        Column(title="predicted", help=_PREDICTED_HELP),
        Column(title="range", help="lower and upper bound of the prediction", from_width=_RANGE_WIDTH),
        Column(title="change", help="predicted minus measured"),
    )
    return (
        (*columns, Column(title="baseline", help="measured", from_width=_BASELINE_WIDTH))
        if is_compared
        else columns
    )


def build_step_table(loaded: LoadedRun, planned: PlannedChange) -> Table:
    """Build the table of ledger terms and the step that they sum to, as means over ranks."""
    report = loaded.report
    is_compared = bool(report.comparison and report.comparison.baseline_time)
    rows = [
        (PredictionRow(part="step", name=term, title=name, unit=Unit.NS), Mark.PLAIN)
        for term, name in LEDGER_NAMES.items()
    ]
    rows.append(
        (
            PredictionRow(part="step", name=_STEP, title=f"= {report.time.total_name}", unit=Unit.NS),
            Mark.TITLE,
        )
    )
    lines = []
    for row, mark in rows:
        measured = read_value(loaded.report, f"{_RANKS}.{row.name}", how=Aggregation.MEAN, in_ms=True)
        baseline = (
            [read_value(loaded.report, f"{_BASELINE}.{row.name}", how=Aggregation.MEAN, in_ms=True)]
            if is_compared
            else []
        )
        if _is_shown(planned, row, measured):
            lines.append(_build_line(planned, row, mark, measured, baseline))
    return Table(
        name="plan step",
        title=f"{report.time.total_name}, ms",
        columns=_make_columns("term", is_compared=is_compared),
        rows=tuple(lines) if report.time.per_rank else (),
        help="Step time as measured, as given by the model of this run, and as predicted for the knobs on "
        "the left. Means over ranks. Terms of 0.0 ms are left out.",
        note="~ predicted; mean over ranks" if report.time.per_rank else "no step was timed; g explains why",
    )


def build_peak_table(loaded: LoadedRun, planned: PlannedChange) -> Table:
    """Build the table of the peak of the largest rank and its tenants."""
    ranks = loaded.report.memory.per_rank
    largest = largest_rank(ranks)
    index = ranks.index(largest) if largest else 0
    stem = f"memory.per_rank[{index}]"
    leaves = [(_PEAK, _PEAK, "peak")]
    leaves += [(tenant.value, f"tenants.{tenant.value}", shorten_tenant(tenant)) for tenant in DISPLAY_ORDER]
    leaves.append((UNTAGGED, "untagged_bytes", name_tenant(UNTAGGED)))
    lines = []
    for name, leaf, title in leaves:
        row = PredictionRow(part="memory", name=name, title=title, unit=Unit.BYTES)
        measured = read_value(loaded.report, f"{stem}.{leaf}")
        if _is_shown(planned, row, measured):
            mark = Mark.TITLE if name == _PEAK else Mark.PLAIN
            lines.append(_build_line(planned, row, mark, measured, []))
    return Table(
        name="plan peak",
        title="memory at the peak",
        columns=_make_columns("tenant", is_compared=False),
        rows=tuple(lines) if ranks else (),
        help="Peak of the rank with the largest peak, by tenant: measured, given by the model of this run, "
        "and predicted. Empty tenants are left out.",
        note=f"~ predicted; rank {largest.rank}, the largest"
        if largest
        else "no memory was measured; g explains why",
    )


def _build_line(
    planned: PlannedChange, row: PredictionRow, mark: Mark, measured: Value, baseline: list[Value]
) -> Row:
    predicted = build_prediction_cells(planned, row)
    return Row(key=row.name, cells=(row.title, measured, *predicted, *baseline), mark=mark)


def _is_shown(planned: PlannedChange, row: PredictionRow, measured: Value) -> bool:
    """Return True if a row has a visible value, measured or predicted; sums are always shown."""
    entry = find_entry(planned, row)
    predicted = (entry.modelled, entry.predicted, entry.high) if entry else ()
    known = [abs(value) for value in (measured.number, *predicted) if value is not None]
    return row.name in (_STEP, _PEAK) or any(value >= _MIN_SHOWN[row.part] for value in known)


_STEM = "outlook.calibration"
_MODEL_INPUTS = {
    "units": (Unit.COUNT, "units", "gathered and reduced one after another"),
    "micro_batches": (Unit.COUNT, "micro-batches", "micro-batches, as the messages show them"),
    "passes": (Unit.COUNT, "passes", "forward and backward passes"),
    "forward_ns": (Unit.NS, "forward", "compute per pass"),
    "backward_ns": (Unit.NS, "backward", "compute per pass, including recomputation"),
    "optimizer_ns": (Unit.NS, "optimizer", "compute after the last pass"),
    "skew_ns": (Unit.NS, "skew", "compute time of the slowest rank minus that of the median rank"),
    "prefetch": (Unit.COUNT, "prefetch", "units gathered ahead, as measured"),
    "steps": (Unit.COUNT, "steps", "steps of the run that the model was fitted to"),
}


def build_fit_table(planned: PlannedChange) -> Table:
    """Build the table of the model's inputs; empty while pending or if it could not be fitted."""
    calibration = planned.calibration
    lines = [_build_input_line(calibration, name) for name in _MODEL_INPUTS] if calibration else []
    links = calibration.links if calibration else ()
    lines += [line for index, link in enumerate(links) for line in _build_link_lines(index, link)]
    return Table(
        name="plan fit",
        title="inputs of the model, from this run",
        columns=(
            Column(title="input", kind=Kind.TEXT, takes_rest=True),
            Column(title="value"),
            Column(title="description", kind=Kind.TEXT, takes_rest=True),
        ),
        rows=tuple(lines),
        help="Inputs that every prediction is based on. Latency and bandwidth come from a linear fit of the "
        "run's own message times.",
        note=_format_note(planned),
    )


def _format_note(planned: PlannedChange) -> str:
    if planned.calibration is not None:
        slowest = planned.calibration.slowest_rank
        return "" if slowest is None else f"rank {slowest} is the slowest"
    return PENDING if planned.answer is None else "the time of this run could not be modelled; g explains why"


def _build_input_line(calibration: Calibration, name: str) -> Row:
    unit, title, description = _MODEL_INPUTS[name]
    return _build_fit_line(name, title, getattr(calibration, name), unit, description, f"{_STEM}.{name}")


def _build_link_lines(index: int, link: FittedLink) -> list[Row]:
    stem = f"{_STEM}.links[{index}]"
    residual = format_value(link.residual_ratio, Unit.RATIO)
    fitted = f"{link.messages} messages, residual {residual}: {link.how}"
    name = f"{link.kind} {link.group}".strip()
    latency, rate = f"{stem}.latency_ns", f"{stem}.busbw_bytes_per_s"
    return [
        _build_fit_line(latency, f"{name}, latency", link.latency_ns, Unit.NS, fitted, latency),
        _build_fit_line(
            rate, f"{name}, bus bandwidth", link.busbw_bytes_per_s, Unit.BYTES_PER_S, fitted, rate
        ),
    ]


def _build_fit_line(
    key: str, title: str, value: float | None, unit: Unit, description: str, leaf: str
) -> Row:
    explanation = "\n".join(
        [
            f"{title}: {description}",
            "",
            "an input of the model, taken from this run; predictions are based on it",
            "in zprof whatif RUN -f json, and in the report written by e:",
            f"  {leaf}",
        ]
    )
    number = ModelValue(
        number=value,
        unit=unit,
        leaves=(parse_path(leaf),),
        words=format_value(value, unit),
        explanation=explanation,
        assumption="",
        is_predicted=False,
    )
    return Row(key=key, cells=(title, number, description))
