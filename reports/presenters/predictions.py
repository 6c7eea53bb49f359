"""Predicted figures of a run beside measured ones: every predicted one begins with ``~``."""

from collections.abc import Iterator, Sequence

from zprof.model.formatting import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.model.time import LEDGER_NAMES
from zprof.model.whatif import Calibration, FittedLink, Outlook, PredictedFigure, Prediction
from zprof.reports.page import UNKNOWN, Column, Kind, Row, Table
from zprof.reports.presenters.plan_memory import SHORT
from zprof.reports.presenters.plan_words import PREDICTED, plan_row, plan_table, signed_percent, whole

STEP, PEAK = "wall_ns", "peak_bytes"
_NAMES = {
    "wall_ns": "step",
    "peak_bytes": "peak",
    **LEDGER_NAMES,
    "efficiency_ratio": "efficiency",
}


def figure_of(entries: Sequence[PredictedFigure], name: str) -> PredictedFigure | None:
    """Return the figure of that name, if it is predicted."""
    return next((entry for entry in entries if entry.name == name and entry.predicted is not None), None)


def term_name(name: str) -> str:
    """Return ``exposed_wait_ns`` as ``exposed wait``."""
    return _NAMES.get(name, name.removesuffix("_ns").removesuffix("_bytes").replace("_", " "))


def predicted_words(entry: PredictedFigure | None) -> str:
    """Return a predicted figure as a cell: times in ms, sizes with their unit."""
    return UNKNOWN if entry is None else mark_predicted(cell_words(entry.name, entry.predicted))


def range_words(entry: PredictedFigure | None) -> str:
    """Return the range of a prediction as a cell."""
    if entry is None or entry.low is None or entry.high is None:
        return UNKNOWN
    low, high = (mark_predicted(cell_words(entry.name, value)) for value in (entry.low, entry.high))
    return f"{low} to {high}"


def saving_words(saving_ns: tuple[int, int] | None) -> str:
    """Return the lowest and highest saving in ms."""
    if saving_ns is None:
        return UNKNOWN
    low, high = (mark_predicted(_ms_words(saving)) for saving in saving_ns)
    return low if low == high else f"{low} to {high}"


def _ms_words(saving_ns: int) -> str:
    """Return a time in ms; zero has no sign."""
    shown = format_ms(saving_ns)
    return shown.removeprefix("-") if not float(shown) else shown


def plain_words(name: str, value: int | None) -> str:
    """Return a figure with its unit, for sentences."""
    if value is None:
        return UNKNOWN
    return format_ns(value) if name.endswith("_ns") else format_bytes(value)


def cell_words(name: str, value: int | None) -> str:
    """Return a figure as a cell: times in ms, as in the ledger."""
    if value is None:
        return UNKNOWN
    return format_ms(value) if name.endswith("_ns") else format_bytes(value)


def mark_predicted(text: str) -> str:
    """Return a predicted figure with its mark; what is unknown is no prediction."""
    return text if text == UNKNOWN else f"{PREDICTED}{text}"


def said_words(entry: PredictedFigure) -> str:
    """Return a predicted figure with its mark and unit, for sentences."""
    return mark_predicted(plain_words(entry.name, entry.predicted))


def span_words(entry: PredictedFigure) -> str:
    """Return the range in brackets, for sentences; empty if there is none."""
    if entry.low is None or entry.high is None:
        return ""
    low, high = (mark_predicted(plain_words(entry.name, value)) for value in (entry.low, entry.high))
    return f" ({low} to {high})"


def summary_table(outlook: Outlook) -> tuple[Table, ...]:
    """Return a row per change: its step with the range, what that saves, its peak."""
    rows = tuple(_summary(found) for found in outlook.predictions)
    if not rows:
        return ()
    return (
        plan_table(
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


def term_tables(found: Prediction) -> Iterator[Table]:
    """Yield the step of a change, then its memory, term by term."""
    for what, unit, entries in (
        ("step, mean of the ranks", "ms", found.step),
        ("memory, largest rank", "", found.memory),
    ):
        if entries:
            yield plan_table(
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


def calibration_tables(found: Calibration | None) -> tuple[Table, ...]:
    """Return what was fitted to the run, and its link by kind of message."""
    if found is None:
        return ()
    facts = (
        ("steps fitted", whole(found.steps)),
        ("units", whole(found.units)),
        ("passes per step", whole(found.passes)),
        ("forward", format_ns(found.forward_ns)),
        ("backward", format_ns(found.backward_ns)),
        ("optimizer", format_ns(found.optimizer_ns)),
        ("slowest rank", UNKNOWN if found.slowest_rank is None else whole(found.slowest_rank)),
        ("computes longer than the median by", format_ns(found.skew_ns)),
        ("units gathered ahead", UNKNOWN if found.prefetch is None else whole(found.prefetch)),
    )
    rows = tuple(plan_row(name=name, cells=(value,)) for name, value in facts)
    run = plan_table(title="The run", head="fitted", columns=(Column(title="value"),), rows=rows)
    return (run, *_links(found.links))


def _as_it_was(outlook: Outlook) -> Iterator[Row]:
    """Yield what was measured, to compare the rest with."""
    steps = (figure_of(found.step, STEP) for found in outlook.predictions)
    peaks = (figure_of(found.memory, PEAK) for found in outlook.predictions)
    step = next((entry for entry in steps if entry and entry.measured is not None), None)
    peak = next((entry for entry in peaks if entry and entry.measured is not None), None)
    if step is None and peak is None:
        return
    yield plan_row(
        name="as measured",
        cells=(
            UNKNOWN if step is None else cell_words(step.name, step.measured),
            "",
            "",
            UNKNOWN if peak is None else cell_words(peak.name, peak.measured),
        ),
    )


def _summary(found: Prediction) -> Row:
    step, peak = figure_of(found.step, STEP), figure_of(found.memory, PEAK)
    return plan_row(
        name=found.words,
        cells=(
            predicted_words(step),
            range_words(step),
            saving_words(found.saving_ns),
            predicted_words(peak),
        ),
    )


def _error_note(outlook: Outlook) -> Iterator[str]:
    """Yield the model's error, which is the same for every change."""
    for leaf, what in ((STEP, "step"), (PEAK, "peak")):
        entries = [
            figure_of(found.step if leaf == STEP else found.memory, leaf) for found in outlook.predictions
        ]
        errors = {entry.error_ratio for entry in entries if entry and entry.error_ratio is not None}
        if errors:
            said = " or ".join(signed_percent(error) for error in sorted(errors)[:3])
            yield f"The model of the run itself is off by {said} of its measured {what}."


def _is_total(entry: PredictedFigure) -> bool:
    """Return if a figure is the sum of the others."""
    return entry.name in (STEP, PEAK)


def _term(entry: PredictedFigure) -> Row:
    return plan_row(
        name=term_name(entry.name),
        short=SHORT.get(entry.name, ""),
        cells=(
            cell_words(entry.name, entry.measured),
            cell_words(entry.name, entry.modelled),
            signed_percent(entry.error_ratio),
            predicted_words(entry),
            range_words(entry),
        ),
        total=_is_total(entry),
    )


def _links(links: Sequence[FittedLink]) -> Iterator[Table]:
    if links:
        yield plan_table(
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
    return plan_row(
        name=f"{link.kind}, {link.group}" if link.group else link.kind,
        cells=(
            format_ns(link.latency_ns),
            UNKNOWN if bandwidth is None else format_rate(bandwidth),
            whole(link.messages),
            format_percent(link.residual_ratio),
            link.how,
        ),
    )
