"""Predictions as tables: all changes side by side, each term by term, and what was fitted to the run."""

from collections.abc import Iterator, Sequence

from zprof.model.planning.whatif import Calibration, FittedLink, Outlook, Predicted, Prediction
from zprof.model.units import format_ns, format_percent, format_rate
from zprof.reports.plan.grid import Grid, GridColumn, GridRow
from zprof.reports.plan.memory import SHORT
from zprof.reports.plan.prediction import (
    PEAK,
    STEP,
    cell_words,
    figure_of,
    predicted_words,
    range_words,
    saving_words,
    term_name,
)
from zprof.reports.plan.words import UNKNOWN, signed_percent, whole


def summary_grid(outlook: Outlook) -> tuple[Grid, ...]:
    """A row a change: its step with the range, what that saves, its peak."""
    rows = tuple(_summary(found) for found in outlook.predictions)
    if not rows:
        return ()
    return (
        Grid(
            title="Predicted",
            note="step: ms, mean of the ranks; peak: of the largest rank",
            head="what if",
            columns=(
                GridColumn(title="step", unit="ms"),
                GridColumn(title="range", unit="ms"),
                GridColumn(title="saves a step", unit="ms"),
                GridColumn(title="peak"),
            ),
            rows=(*_as_it_was(outlook), *rows),
            notes=(
                "~ is predicted, not measured; a saving below 0 is time that the change costs",
                "ranges hold this run's noise and the model's doubt, not the noise between two recordings",
                *_error_note(outlook),
            ),
        ),
    )


def term_grids(found: Prediction) -> Iterator[Grid]:
    """One change: its step, then its memory, term by term."""
    for what, unit, entries in (
        ("step, mean of the ranks", "ms", found.step),
        ("memory, largest rank", "", found.memory),
    ):
        if entries:
            yield Grid(
                title=found.words,
                unit=unit,
                note=what,
                head="term",
                columns=(
                    GridColumn(title="measured", unit=unit),
                    GridColumn(title="modelled", unit=unit),
                    GridColumn(title="error", unit="%"),
                    GridColumn(title="predicted", unit=unit),
                    GridColumn(title="range", unit=unit),
                ),
                rows=tuple(_term(entry) for entry in sorted(entries, key=_is_total)),
            )


def calibration_grids(found: Calibration | None) -> tuple[Grid, ...]:
    """What was fitted to the run, and its link by kind of message."""
    if found is None:
        return ()
    facts = (
        ("steps that it was fitted to", whole(found.steps)),
        ("units", whole(found.units)),
        ("passes of a step", whole(found.passes)),
        ("forward", format_ns(found.forward_ns)),
        ("backward", format_ns(found.backward_ns)),
        ("optimizer", format_ns(found.optimizer_ns)),
        ("slowest rank", UNKNOWN if found.slowest_rank is None else whole(found.slowest_rank)),
        ("it computes longer than the median by", format_ns(found.skew_ns)),
        ("units gathered ahead", UNKNOWN if found.prefetch is None else whole(found.prefetch)),
    )
    rows = tuple(GridRow(name=name, cells=(value,)) for name, value in facts)
    run = Grid(title="The run", head="fitted", columns=(GridColumn(title="value"),), rows=rows)
    return (run, *_links(found.links))


def _as_it_was(outlook: Outlook) -> Iterator[GridRow]:
    """What was measured, to hold the rest against."""
    steps = (figure_of(found.step, STEP) for found in outlook.predictions)
    peaks = (figure_of(found.memory, PEAK) for found in outlook.predictions)
    step = next((entry for entry in steps if entry and entry.measured is not None), None)
    peak = next((entry for entry in peaks if entry and entry.measured is not None), None)
    if step is None and peak is None:
        return
    yield GridRow(
        name="as it was measured",
        short="as measured",
        cells=(
            UNKNOWN if step is None else cell_words(step.name, step.measured),
            "",
            "",
            UNKNOWN if peak is None else cell_words(peak.name, peak.measured),
        ),
    )


def _summary(found: Prediction) -> GridRow:
    step, peak = figure_of(found.step, STEP), figure_of(found.memory, PEAK)
    return GridRow(
        name=found.words,
        cells=(
            predicted_words(step),
            range_words(step),
            saving_words(found.saving_ns),
            predicted_words(peak),
        ),
    )


def _error_note(outlook: Outlook) -> Iterator[str]:
    """The model's error is the same for every change, so it stands once."""
    for leaf, what in ((STEP, "step"), (PEAK, "peak")):
        entries = [
            figure_of(found.step if leaf == STEP else found.memory, leaf) for found in outlook.predictions
        ]
        errors = {entry.error_ratio for entry in entries if entry and entry.error_ratio is not None}
        if errors:
            said = " or ".join(signed_percent(error) for error in sorted(errors)[:3])
            yield f"the model of the run itself is off by {said} of its measured {what}"


def _is_total(entry: Predicted) -> bool:
    """The sum stands below its terms."""
    return entry.name in (STEP, PEAK)


def _term(entry: Predicted) -> GridRow:
    return GridRow(
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


def _links(links: Sequence[FittedLink]) -> Iterator[Grid]:
    if links:
        yield Grid(
            title="The link",
            note="latency + bytes / bandwidth",
            head="collective",
            columns=(
                GridColumn(title="latency"),
                GridColumn(title="bus bandwidth"),
                GridColumn(title="messages"),
                GridColumn(title="off by", unit="%"),
                GridColumn(title="how", words=True),
            ),
            rows=tuple(_link(link) for link in links),
        )


def _link(link: FittedLink) -> GridRow:
    bandwidth = link.busbw_bytes_per_s
    return GridRow(
        name=f"{link.kind}, {link.group}" if link.group else link.kind,
        cells=(
            format_ns(link.latency_ns),
            UNKNOWN if bandwidth is None else format_rate(bandwidth),
            whole(link.messages),
            format_percent(link.residual_ratio),
            link.how,
        ),
    )
