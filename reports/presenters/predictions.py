"""Format predicted figures next to measured ones; every predicted figure has the prefix ``~``."""

from collections.abc import Iterator, Sequence

from zprof.model.formatting import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.model.time import LEDGER_NAMES
from zprof.model.whatif import Calibration, FittedLink, Outlook, PredictedFigure, Prediction
from zprof.reports.page import UNKNOWN, Column, Kind, Row, Table
from zprof.reports.presenters.plan_formatting import (
    PREDICTED,
    format_integer,
    format_signed_percent,
    make_plan_row,
    make_plan_table,
)
from zprof.reports.presenters.plan_memory import SHORT

STEP, PEAK = "wall_ns", "peak_bytes"
_NAMES = {
    "wall_ns": "step",
    "peak_bytes": "peak",
    **LEDGER_NAMES,
    "efficiency_ratio": "efficiency",
}


def find_figure(entries: Sequence[PredictedFigure], name: str) -> PredictedFigure | None:
    """Return the predicted figure with this name, or None."""
    return next((entry for entry in entries if entry.name == name and entry.predicted is not None), None)


def format_term_name(name: str) -> str:
    """Format the name of a term, such as ``exposed wait`` for ``exposed_wait_ns``."""
    return _NAMES.get(name, name.removesuffix("_ns").removesuffix("_bytes").replace("_", " "))


def format_predicted(entry: PredictedFigure | None) -> str:
    """Format a predicted figure as a cell: times in ms, sizes with their unit."""
    return UNKNOWN if entry is None else mark_predicted(format_cell(entry.name, entry.predicted))


def format_range(entry: PredictedFigure | None) -> str:
    """Format the range of a prediction as a cell."""
    if entry is None or entry.low is None or entry.high is None:
        return UNKNOWN
    low, high = (mark_predicted(format_cell(entry.name, value)) for value in (entry.low, entry.high))
    return f"{low} to {high}"


def format_saving(saving_ns: tuple[int, int] | None) -> str:
    """Format the lowest and highest saving in ms."""
    if saving_ns is None:
        return UNKNOWN
    low, high = (mark_predicted(_format_ms(saving)) for saving in saving_ns)
    return low if low == high else f"{low} to {high}"


def _format_ms(saving_ns: int) -> str:
    """Format a time in ms; zero has no sign."""
    shown = format_ms(saving_ns)
    return shown.removeprefix("-") if not float(shown) else shown


def format_figure(name: str, value: int | None) -> str:
    """Format a figure with its unit, for sentences."""
    if value is None:
        return UNKNOWN
    return format_ns(value) if name.endswith("_ns") else format_bytes(value)


def format_cell(name: str, value: int | None) -> str:
    """Format a figure as a cell: times in ms, as in the ledger."""
    if value is None:
        return UNKNOWN
    return format_ms(value) if name.endswith("_ns") else format_bytes(value)


def mark_predicted(text: str) -> str:
    """Add the mark of a prediction; unknown figures have none."""
    return text if text == UNKNOWN else f"{PREDICTED}{text}"


def format_marked(entry: PredictedFigure) -> str:
    """Format a predicted figure with its mark and unit, for sentences."""
    return mark_predicted(format_figure(entry.name, entry.predicted))


def format_range_suffix(entry: PredictedFigure) -> str:
    """Format the range in parentheses, for sentences; empty if there is none."""
    if entry.low is None or entry.high is None:
        return ""
    low, high = (mark_predicted(format_figure(entry.name, value)) for value in (entry.low, entry.high))
    return f" ({low} to {high})"


def build_summary_table(outlook: Outlook) -> tuple[Table, ...]:
    """Build one row per change: predicted step, its range, the saving, the peak."""
    rows = tuple(_build_summary_row(found) for found in outlook.predictions)
    if not rows:
        return ()
    return (
        make_plan_table(
            title="Predicted",
            unit="ms",
            note="step: mean of the ranks; peak: largest rank",
            head="what if",
            columns=(
                Column(title="step", unit="ms"),
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


def build_term_tables(found: Prediction) -> Iterator[Table]:
    """Yield the step of a change and its memory, term by term."""
    for note, unit, entries in (
        ("step, mean of the ranks", "ms", found.step),
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
                rows=tuple(_build_term_row(entry) for entry in sorted(entries, key=_is_total)),
            )


def build_calibration_tables(found: Calibration | None) -> tuple[Table, ...]:
    """Build the tables of the fitted parameters and of the link per kind of message."""
    if found is None:
        return ()
    facts = (
        ("steps fitted", format_integer(found.steps)),
        ("units", format_integer(found.units)),
        ("micro-batches", format_integer(found.micro_batches)),
        ("passes", format_integer(found.passes)),
        ("forward", format_ns(found.forward_ns)),
        ("backward", format_ns(found.backward_ns)),
        ("optimizer", format_ns(found.optimizer_ns)),
        ("slowest rank", UNKNOWN if found.slowest_rank is None else format_integer(found.slowest_rank)),
        ("its compute above the median", format_ns(found.skew_ns)),
        ("units gathered ahead", UNKNOWN if found.prefetch is None else format_integer(found.prefetch)),
    )
    rows = tuple(make_plan_row(name=name, cells=(value,)) for name, value in facts)
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
    yield make_plan_row(
        name="as measured",
        cells=(
            UNKNOWN if step is None else format_cell(step.name, step.measured),
            "",
            "",
            UNKNOWN if peak is None else format_cell(peak.name, peak.measured),
        ),
    )


def _build_summary_row(found: Prediction) -> Row:
    step, peak = find_figure(found.step, STEP), find_figure(found.memory, PEAK)
    return make_plan_row(
        name=found.words,
        cells=(
            format_predicted(step),
            format_range(step),
            format_saving(found.saving_ns),
            format_predicted(peak),
        ),
    )


def _describe_error(outlook: Outlook) -> Iterator[str]:
    """Yield the error of the model, which is the same for every change."""
    for field, name in ((STEP, "step"), (PEAK, "peak")):
        entries = [
            find_figure(found.step if field == STEP else found.memory, field) for found in outlook.predictions
        ]
        errors = {entry.error_ratio for entry in entries if entry and entry.error_ratio is not None}
        if errors:
            error_text = " or ".join(format_signed_percent(error) for error in sorted(errors)[:3])
            yield f"The model of the unchanged run differs from its measured {name} by {error_text}."


def _is_total(entry: PredictedFigure) -> bool:
    """Return True if a figure is the sum of the others."""
    return entry.name in (STEP, PEAK)


def _build_term_row(entry: PredictedFigure) -> Row:
    return make_plan_row(
        name=format_term_name(entry.name),
        short=SHORT.get(entry.name, ""),
        cells=(
            format_cell(entry.name, entry.measured),
            format_cell(entry.name, entry.modelled),
            format_signed_percent(entry.error_ratio),
            format_predicted(entry),
            format_range(entry),
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
    bandwidth = link.busbw_bytes_per_s
    return make_plan_row(
        name=f"{link.kind}, {link.group}" if link.group else link.kind,
        cells=(
            format_ns(link.latency_ns),
            UNKNOWN if bandwidth is None else format_rate(bandwidth),
            format_integer(link.messages),
            format_percent(link.residual_ratio),
            link.how,
        ),
    )
