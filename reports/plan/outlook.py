"""What single changes would make of a measured run, as tables: all side by side, then term by term.

Every predicted figure begins with ``~``; measured and modelled ones stand as they are.
"""

from collections.abc import Iterator, Sequence

from zprof.model.planning.whatif import Calibration, FittedLink, Outlook, Predicted, Prediction
from zprof.model.units import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.reports.plan.grid import Chapter, Grid, GridColumn, GridRow
from zprof.reports.plan.memory import SHORT
from zprof.reports.plan.words import PREDICTED, UNKNOWN, signed_percent, whole

_STEP, _PEAK = "wall_ns", "peak_bytes"
_NAMES = {
    "wall_ns": "step",
    "peak_bytes": "peak",
    "exposed_memcpy_ns": "exposed copies",
    "untagged_bytes": "untagged",
}
_MOST_FIGURES = 6


def outlook_answers(outlook: Outlook) -> tuple[str, ...]:
    """The change that shortens the step most, else the least peak, else that nothing is predicted."""
    timed = [(entry, found) for found in outlook.predictions if (entry := _of(found.step, _STEP))]
    if timed:
        entry, found = min(timed, key=lambda pair: pair[0].predicted or 0)
        return (_step_words(entry, found, len(outlook.predictions)), *_peak_answers(found))
    held = [(entry, found) for found in outlook.predictions if (entry := _of(found.memory, _PEAK))]
    if held:
        _, found = min(held, key=lambda pair: pair[0].predicted or 0)
        return tuple(_peak_answers(found))
    return ("Nothing could be predicted for this run: why stands under Not known.",)


def outlook_chapters(outlook: Outlook) -> tuple[Chapter, ...]:
    """All changes, each term by term, and what was fitted to the run."""
    made = (
        Chapter(
            anchor="changes",
            title="What if",
            lead="One change each, all else as it was measured; ~ is predicted.",
            grids=summary_grid(outlook),
        ),
        Chapter(
            anchor="terms",
            title="Term by term",
            lead="Measured in the run, by the model of the same run, and predicted for the changed one.",
            grids=tuple(grid for found in outlook.predictions for grid in _terms(found)),
        ),
        Chapter(
            anchor="calibration",
            title="What the model took from the run",
            lead="Fitted to the measured run; its error on that run stands beside each prediction.",
            grids=_calibration(outlook.calibration),
        ),
    )
    return tuple(chapter for chapter in made if chapter.grids)


def summary_grid(outlook: Outlook) -> tuple[Grid, ...]:
    """A row a change: its step with the range, what that saves, its peak."""
    rows = tuple(_summary(found) for found in outlook.predictions)
    if not rows:
        return ()
    return (
        Grid(
            title="Predicted",
            unit="ms",
            note="mean of the ranks; peak: of the largest rank",
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
                *_error_note(outlook),
            ),
        ),
    )


def outlook_figures(outlook: Outlook) -> tuple[tuple[str, str, str], ...]:
    """Name, value and note of the first changes' steps, or peaks where no step is predicted."""
    figures = []
    for found in outlook.predictions[:_MOST_FIGURES]:
        entry = _of(found.step, _STEP) or _of(found.memory, _PEAK)
        if entry is not None:
            note = f"{term_name(entry.name)}; measured {_plain(entry.name, entry.measured)}"
            figures.append((found.words, _said(entry), note))
    return tuple(figures)


def predicted_words(entry: Predicted | None) -> str:
    """A predicted figure with its mark, as a cell: times in ms, sizes with their unit."""
    return UNKNOWN if entry is None else _marked(_cell(entry.name, entry.predicted))


def range_words(entry: Predicted | None) -> str:
    """From where to where it may be, as a cell."""
    if entry is None or entry.low is None or entry.high is None:
        return UNKNOWN
    return f"{_marked(_cell(entry.name, entry.low))} to {_marked(_cell(entry.name, entry.high))}"


def saving_words(saving_ns: tuple[int, int] | None) -> str:
    """Lowest to highest, in ms."""
    if saving_ns is None:
        return UNKNOWN
    low, high = (_marked(format_ms(saving)) for saving in saving_ns)
    return low if saving_ns[0] == saving_ns[1] else f"{low} to {high}"


def term_name(name: str) -> str:
    """``exposed_wait_ns`` as ``exposed wait``."""
    return _NAMES.get(name, name.removesuffix("_ns").removesuffix("_bytes").replace("_", " "))


def _as_it_was(outlook: Outlook) -> Iterator[GridRow]:
    """What was measured, to hold the rest against."""
    steps = (_of(found.step, _STEP) for found in outlook.predictions)
    peaks = (_of(found.memory, _PEAK) for found in outlook.predictions)
    step = next((entry for entry in steps if entry and entry.measured is not None), None)
    peak = next((entry for entry in peaks if entry and entry.measured is not None), None)
    if step is None and peak is None:
        return
    yield GridRow(
        name="as it was measured",
        short="as measured",
        cells=(
            UNKNOWN if step is None else _cell(step.name, step.measured),
            "",
            "",
            UNKNOWN if peak is None else _plain(peak.name, peak.measured),
        ),
    )


def _summary(found: Prediction) -> GridRow:
    step, peak = _of(found.step, _STEP), _of(found.memory, _PEAK)
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
    for leaf, what in ((_STEP, "step"), (_PEAK, "peak")):
        entries = [_of(found.step if leaf == _STEP else found.memory, leaf) for found in outlook.predictions]
        errors = {entry.error_ratio for entry in entries if entry and entry.error_ratio is not None}
        if errors:
            said = " or ".join(signed_percent(error) for error in sorted(errors)[:3])
            yield f"the model of the run itself is off by {said} of its measured {what}"


def _terms(found: Prediction) -> Iterator[Grid]:
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


def _is_total(entry: Predicted) -> bool:
    """The sum stands below its terms."""
    return entry.name in (_STEP, _PEAK)


def _term(entry: Predicted) -> GridRow:
    return GridRow(
        name=term_name(entry.name),
        short=SHORT.get(entry.name, ""),
        cells=(
            _cell(entry.name, entry.measured),
            _cell(entry.name, entry.modelled),
            signed_percent(entry.error_ratio),
            predicted_words(entry),
            range_words(entry),
        ),
        total=_is_total(entry),
    )


def _calibration(found: Calibration | None) -> tuple[Grid, ...]:
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


def _step_words(entry: Predicted, found: Prediction, changes: int) -> str:
    best = f"Of {changes} changes, the shortest step is that of: " if changes > 1 else ""
    span = _span(entry)
    error = (
        f" The model of the run itself is off by {signed_percent(entry.error_ratio)}."
        if entry.error_ratio is not None
        else ""
    )
    was = f", measured was {_plain(entry.name, entry.measured)}" if entry.measured is not None else ""
    return f"{best}{found.words}: a step of {_said(entry)}{span}{was}.{error}"


def _peak_answers(found: Prediction) -> Iterator[str]:
    entry = _of(found.memory, _PEAK)
    if entry is not None:
        was = f", measured was {_plain(entry.name, entry.measured)}" if entry.measured is not None else ""
        yield f"{found.words}: peak memory of {_said(entry)} on the largest rank{_span(entry)}{was}."


def _of(entries: Sequence[Predicted], name: str) -> Predicted | None:
    return next((entry for entry in entries if entry.name == name and entry.predicted is not None), None)


def _plain(name: str, value: int | None) -> str:
    """With its unit: for sentences."""
    if value is None:
        return UNKNOWN
    return format_ns(value) if name.endswith("_ns") else format_bytes(value)


def _cell(name: str, value: int | None) -> str:
    """Times as the ledger has them, in ms."""
    if value is None:
        return UNKNOWN
    return format_ms(value) if name.endswith("_ns") else format_bytes(value)


def _marked(text: str) -> str:
    """What is unknown is no prediction."""
    return text if text == UNKNOWN else f"{PREDICTED}{text}"


def _said(entry: Predicted) -> str:
    return _marked(_plain(entry.name, entry.predicted))


def _span(entry: Predicted) -> str:
    """The range in brackets, for sentences; nothing where it has none."""
    if entry.low is None or entry.high is None:
        return ""
    return f" ({_marked(_plain(entry.name, entry.low))} to {_marked(_plain(entry.name, entry.high))})"
