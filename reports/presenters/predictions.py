"""Format predicted figures next to measured ones; every predicted figure has the prefix ``~``."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from zprof.model.leaves import take_value
from zprof.model.metrics.metric import find_unit, strip_unit
from zprof.model.quantities import Unit, Value
from zprof.model.time import LEDGER_NAMES
from zprof.model.whatif import Calibration, FittedLink, Outlook, PredictedFigure, Prediction
from zprof.reports.pages.plan_tables import SHORT, make_plan_table
from zprof.reports.table import Column, Kind, Row, Table, format_cell

STEP, PEAK = "wall_ns", "peak_bytes"
_NAMES = {**LEDGER_NAMES, "efficiency_ratio": "efficiency"}
#: Parameters of the model that were fitted: name, field.
_FITTED = (
    ("steps fitted", "steps"),
    ("units", "units"),
    ("micro-batches", "micro_batches"),
    ("passes", "passes"),
    ("forward", "forward_ns"),
    ("backward", "backward_ns"),
    ("optimizer", "optimizer_ns"),
    ("slowest rank", "slowest_rank"),
    ("its compute above the median", "skew_ns"),
    ("units gathered ahead", "prefetch"),
)
_LINK_FIELDS = ("latency_ns", "busbw_bytes_per_s", "messages", "residual_ratio")


def find_figure(entries: Sequence[PredictedFigure], name: str) -> PredictedFigure | None:
    """Return the predicted figure with this name, or None."""
    return next((entry for entry in entries if entry.name == name and entry.predicted is not None), None)


def format_term_name(name: str, period: str) -> str:
    """Format the name of a term, such as ``exposed wait`` for ``exposed_wait_ns``; the step by its period."""
    return period if name == STEP else _NAMES.get(name) or strip_unit(name)


def take_figure(entry: PredictedFigure | None, field: str = "predicted") -> Value:
    """Return a field of a figure as a cell: times in ms, an estimate unless it was measured or modelled."""
    if entry is None:
        return Value(None, Unit.COUNT)
    unit, is_estimate = find_unit(entry.name), field not in ("measured", "modelled")
    return Value(getattr(entry, field), unit, in_ms=unit is Unit.NS, is_estimate=is_estimate)


def take_range(entry: PredictedFigure | None) -> Value:
    """Return the range of a prediction as a cell."""
    if entry is None or entry.low is None:
        return Value(None, Unit.COUNT)
    return replace(take_figure(entry, "high"), low=entry.low)


def make_saving(saving_ns: tuple[int, int] | None) -> Value:
    """Return the lowest and highest saving as a cell."""
    low, high = saving_ns or (None, None)
    return Value(high, Unit.NS, low=low, in_ms=True, is_estimate=True)


def format_figure(entry: PredictedFigure, field: str = "predicted") -> str:
    """Format a field of a figure with its unit, for sentences."""
    return format_cell(replace(take_figure(entry, field), in_ms=False))


def format_range_suffix(entry: PredictedFigure) -> str:
    """Format the range in parentheses, for sentences; empty if there is none."""
    if entry.low is None or entry.high is None:
        return ""
    return f" ({format_figure(entry, 'low')} to {format_figure(entry, 'high')})"


def build_summary_table(outlook: Outlook) -> tuple[Table, ...]:
    """Build one row per change: predicted step, its range, the saving, the peak."""
    rows = tuple(_build_summary_row(found) for found in outlook.predictions)
    if not rows:
        return ()
    return (
        make_plan_table(
            title="Predicted",
            unit="ms",
            note=f"{outlook.period}: mean of the ranks; peak: largest rank",
            head="what if",
            columns=(
                Column(title=outlook.period, unit="ms"),
                Column(title="range", unit="ms"),
                Column(title="saves", unit="ms"),
                Column(title="peak", unit="bytes"),
            ),
            rows=(*_build_measured_row(outlook), *rows),
            notes=(
                "~: predicted, not measured; a negative saving is time that the change costs.",
                "Ranges include this run's noise and the model's uncertainty, not noise between recordings.",
                *_describe_error(outlook),
            ),
        ),
    )


def build_term_tables(found: Prediction, period: str) -> Iterator[Table]:
    """Yield the step of a change and its memory, term by term."""
    for note, unit, entries in (
        (f"{period}, mean of the ranks", "ms", found.step),
        ("memory, largest rank", "", found.memory),
    ):
        if entries:
            yield make_plan_table(
                title=found.words,
                unit=unit,
                note=note,
                head="term",
                columns=(
                    Column(title="measured", unit=unit),
                    Column(title="modelled", unit=unit),
                    Column(title="error", unit="%"),
                    Column(title="predicted", unit=unit),
                    Column(title="range", unit=unit),
                ),
                rows=tuple(_build_term_row(entry, period) for entry in sorted(entries, key=_is_total)),
            )


def build_calibration_tables(found: Calibration | None) -> tuple[Table, ...]:
    """Build the tables of the fitted parameters and of the link per kind of message."""
    if found is None:
        return ()
    rows = tuple(Row(cells=(name, take_value(found, field))) for name, field in _FITTED)
    run = make_plan_table(
        title="Fitted parameters", head="parameter", columns=(Column(title="value"),), rows=rows
    )
    return (run, *_build_link_table(found.links))


def _build_measured_row(outlook: Outlook) -> Iterator[Row]:
    """Yield a row with the measured figures, for comparison."""
    steps = (find_figure(found.step, STEP) for found in outlook.predictions)
    peaks = (find_figure(found.memory, PEAK) for found in outlook.predictions)
    step = next((entry for entry in steps if entry and entry.measured is not None), None)
    peak = next((entry for entry in peaks if entry and entry.measured is not None), None)
    if step is None and peak is None:
        return
    yield Row(
        cells=(
            "as measured",
            take_figure(step, "measured"),
            "",
            "",
            take_figure(peak, "measured"),
        ),
    )


def _build_summary_row(found: Prediction) -> Row:
    step, peak = find_figure(found.step, STEP), find_figure(found.memory, PEAK)
    return Row(
        cells=(
            found.words,
            take_figure(step),
            take_range(step),
            make_saving(found.saving_ns),
            take_figure(peak),
        ),
    )


def _describe_error(outlook: Outlook) -> Iterator[str]:
    """Yield the error of the model, which is the same for every change."""
    for field, name in ((STEP, outlook.period), (PEAK, "peak")):
        entries = [
            find_figure(found.step if field == STEP else found.memory, field) for found in outlook.predictions
        ]
        errors = {entry.error_ratio for entry in entries if entry and entry.error_ratio is not None}
        if errors:
            error_text = " or ".join(_make_error(error).text for error in sorted(errors)[:3])
            yield f"The model of the unchanged run differs from its measured {name} by {error_text}."


def _make_error(ratio: float | None) -> Value:
    return Value(ratio, Unit.RATIO, signed=True)


def _is_total(entry: PredictedFigure) -> bool:
    """Return True if a figure is the sum of the others."""
    return entry.name in (STEP, PEAK)


def _build_term_row(entry: PredictedFigure, period: str) -> Row:
    return Row(
        short=SHORT.get(entry.name, ""),
        cells=(
            format_term_name(entry.name, period),
            take_figure(entry, "measured"),
            take_figure(entry, "modelled"),
            _make_error(entry.error_ratio),
            take_figure(entry),
            take_range(entry),
        ),
        total=_is_total(entry),
    )


def _build_link_table(links: Sequence[FittedLink]) -> Iterator[Table]:
    if links:
        yield make_plan_table(
            title="Link fit",
            note="latency + bytes / bandwidth",
            head="collective",
            columns=(
                Column(title="latency"),
                Column(title="bus bandwidth"),
                Column(title="messages"),
                Column(title="residual", unit="%"),
                Column(title="method", kind=Kind.TEXT),
            ),
            rows=tuple(_build_link_row(link) for link in links),
        )


def _build_link_row(link: FittedLink) -> Row:
    name = f"{link.kind}, {link.group}" if link.group else link.kind
    return Row(cells=(name, *(take_value(link, field) for field in _LINK_FIELDS), link.how))
