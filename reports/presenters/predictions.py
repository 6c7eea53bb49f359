"""Predicted figures of a run beside measured ones: every predicted one begins with ``~``."""

from collections.abc import Iterator, Sequence

from zprof.model.formatting import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.model.time import LEDGER_NAMES
from zprof.model.whatif import Calibration, FittedLink, Outlook, PredictedFigure, Prediction
from zprof.reports.page import UNKNOWN, Column, Kind, Row, Table
from zprof.reports.presenters.plan_memory import SHORT
from zprof.reports.presenters.plan_words import (
    PREDICTED,
    format_integer,
    format_signed_percent,
    make_plan_row,
    make_plan_table,
)

STEP, PEAK = "wall_ns", "peak_bytes"
_NAMES = {
    "wall_ns": "step",
    "peak_bytes": "peak",
    **LEDGER_NAMES,
    "efficiency_ratio": "efficiency",
}


def find_figure(entries: Sequence[PredictedFigure], name: str) -> PredictedFigure | None:
    """Return the figure of that name, if it is predicted."""
    return next((entry for entry in entries if entry.name == name and entry.predicted is not None), None)


def format_term_name(name: str) -> str:
    """Return ``exposed_wait_ns`` as ``exposed wait``."""
    return _NAMES.get(name, name.removesuffix("_ns").removesuffix("_bytes").replace("_", " "))


def format_predicted(entry: PredictedFigure | None) -> str:
    """Return a predicted figure as a cell: times in ms, sizes with their unit."""
    return UNKNOWN if entry is None else mark_predicted(format_cell(entry.name, entry.predicted))


def format_range(entry: PredictedFigure | None) -> str:
    """Return the range of a prediction as a cell."""
    if entry is None or entry.low is None or entry.high is None:
        return UNKNOWN
    low, high = (mark_predicted(format_cell(entry.name, value)) for value in (entry.low, entry.high))
    return f"{low} to {high}"


def format_saving(saving_ns: tuple[int, int] | None) -> str:
    """Return the lowest and highest saving in ms."""
    if saving_ns is None:
        return UNKNOWN
    low, high = (mark_predicted(_ms_words(saving)) for saving in saving_ns)
    return low if low == high else f"{low} to {high}"


def _ms_words(saving_ns: int) -> str:
    """Return a time in ms; zero has no sign."""
    shown = format_ms(saving_ns)
    return shown.removeprefix("-") if not float(shown) else shown


def format_figure(name: str, value: int | None) -> str:
    """Return a figure with its unit, for sentences."""
    if value is None:
        return UNKNOWN
    return format_ns(value) if name.endswith("_ns") else format_bytes(value)


def format_cell(name: str, value: int | None) -> str:
    """Return a figure as a cell: times in ms, as in the ledger."""
    if value is None:
        return UNKNOWN
    return format_ms(value) if name.endswith("_ns") else format_bytes(value)


def mark_predicted(text: str) -> str:
    """Return a predicted figure with its mark; what is unknown is no prediction."""
    return text if text == UNKNOWN else f"{PREDICTED}{text}"


def format_marked(entry: PredictedFigure) -> str:
    """Return a predicted figure with its mark and unit, for sentences."""
    return mark_predicted(format_figure(entry.name, entry.predicted))


def format_range_suffix(entry: PredictedFigure) -> str:
    """Return the range in brackets, for sentences; empty if there is none."""
    if entry.low is None or entry.high is None:
        return ""
    low, high = (mark_predicted(format_figure(entry.name, value)) for value in (entry.low, entry.high))
    return f" ({low} to {high})"


def build_summary_table(outlook: Outlook) -> tuple[Table, ...]:
    """Return a row per change: its step with the range, what that saves, its peak."""
    rows = tuple(_summary(found) for found in outlook.predictions)
    if not rows:
        return ()
    return (
        make_plan_table(
            title="Predicted",
            unit="ms",
            note="step: mean of the ranks; peak: of the largest rank",
            head="what if",
            columns=(
                Column(title="step", unit="ms"),
                Column(title="range", unit="ms"),
                Column(title="saves per step", unit="ms"),
                Column(title="peak", unit="bytes"),
            ),
            rows=(*_as_it_was(outlook), *rows),
            notes=(
                "~ is predicted, not measured; a saving below 0 is time that the change costs.",
                "Ranges hold this run's noise and the model's uncertainty, not the noise between recordings.",
                *_error_note(outlook),
            ),
        ),
    )


def build_term_tables(found: Prediction) -> Iterator[Table]:
    """Yield the step of a change, then its memory, term by term."""
    for what, unit, entries in (
        ("step, mean of the ranks", "ms", found.step),
        ("memory, largest rank", "", found.memory),
    ):
        if entries:
            yield make_plan_table(
                title=found.words,
                unit=unit,
                note=what,
                head="term",
                columns=(
                    Column(title="measured", unit=unit),
                    Column(title="modelled", unit=unit),
                    Column(title="error", unit="%"),
                    Column(title="predicted", unit=unit),
                    Column(title="range", unit=unit),
                ),
                rows=tuple(_term(entry) for entry in sorted(entries, key=_is_total)),
            )


def build_calibration_tables(found: Calibration | None) -> tuple[Table, ...]:
    """Return what was fitted to the run, and its link by kind of message."""
    if found is None:
        return ()
    facts = (
        ("steps fitted", format_integer(found.steps)),
        ("units", format_integer(found.units)),
        ("passes per step", format_integer(found.passes)),
        ("forward", format_ns(found.forward_ns)),
        ("backward", format_ns(found.backward_ns)),
        ("optimizer", format_ns(found.optimizer_ns)),
        ("slowest rank", UNKNOWN if found.slowest_rank is None else format_integer(found.slowest_rank)),
        ("computes longer than the median by", format_ns(found.skew_ns)),
        ("units gathered ahead", UNKNOWN if found.prefetch is None else format_integer(found.prefetch)),
    )
    rows = tuple(make_plan_row(name=name, cells=(value,)) for name, value in facts)
    run = make_plan_table(title="The run", head="fitted", columns=(Column(title="value"),), rows=rows)
    return (run, *_links(found.links))


def _as_it_was(outlook: Outlook) -> Iterator[Row]:
    """Yield what was measured, to compare the rest with."""
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


def _summary(found: Prediction) -> Row:
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


def _error_note(outlook: Outlook) -> Iterator[str]:
    """Yield the model's error, which is the same for every change."""
    for leaf, what in ((STEP, "step"), (PEAK, "peak")):
        entries = [
            find_figure(found.step if leaf == STEP else found.memory, leaf) for found in outlook.predictions
        ]
        errors = {entry.error_ratio for entry in entries if entry and entry.error_ratio is not None}
        if errors:
            said = " or ".join(format_signed_percent(error) for error in sorted(errors)[:3])
            yield f"The model of the run itself is off by {said} of its measured {what}."


def _is_total(entry: PredictedFigure) -> bool:
    """Return if a figure is the sum of the others."""
    return entry.name in (STEP, PEAK)


def _term(entry: PredictedFigure) -> Row:
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


def _links(links: Sequence[FittedLink]) -> Iterator[Table]:
    if links:
        yield make_plan_table(
            title="The link",
            note="latency + bytes / bandwidth",
            head="collective",
            columns=(
                Column(title="latency"),
                Column(title="bus bandwidth"),
                Column(title="messages"),
                Column(title="off by", unit="%"),
                Column(title="how", kind=Kind.TEXT),
            ),
            rows=tuple(_link(link) for link in links),
        )


def _link(link: FittedLink) -> Row:
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
