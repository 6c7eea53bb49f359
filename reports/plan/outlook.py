"""What single changes would make of a measured run: the answer, and the chapters that it rests on."""

from collections.abc import Iterator

from zprof.model.planning.whatif import Outlook, Predicted, Prediction
from zprof.reports.plan.grid import Chapter
from zprof.reports.plan.prediction import (
    PEAK,
    STEP,
    figure_of,
    plain_words,
    said_words,
    span_words,
    term_name,
)
from zprof.reports.plan.prediction_tables import calibration_grids, summary_grid, term_grids
from zprof.reports.plan.words import signed_percent

_MOST_FIGURES = 6


def outlook_answers(outlook: Outlook) -> tuple[str, ...]:
    """The change that shortens the step most, else the least peak, else that nothing is predicted."""
    timed = [(entry, found) for found in outlook.predictions if (entry := figure_of(found.step, STEP))]
    if timed:
        entry, found = min(timed, key=lambda pair: pair[0].predicted or 0)
        return (_step_words(entry, found, len(outlook.predictions)), *_peak_answers(found))
    held = [(entry, found) for found in outlook.predictions if (entry := figure_of(found.memory, PEAK))]
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
            grids=tuple(grid for found in outlook.predictions for grid in term_grids(found)),
        ),
        Chapter(
            anchor="calibration",
            title="What the model took from the run",
            lead="Fitted to the measured run; its error on that run stands beside each prediction.",
            grids=calibration_grids(outlook.calibration),
        ),
    )
    return tuple(chapter for chapter in made if chapter.grids)


def outlook_figures(outlook: Outlook) -> tuple[tuple[str, str, str], ...]:
    """Name, value and note of the first changes' steps, or peaks where no step is predicted."""
    figures = []
    for found in outlook.predictions[:_MOST_FIGURES]:
        entry = figure_of(found.step, STEP) or figure_of(found.memory, PEAK)
        if entry is not None:
            note = f"{term_name(entry.name)}; measured {plain_words(entry.name, entry.measured)}"
            figures.append((found.words, said_words(entry), note))
    return tuple(figures)


def _step_words(entry: Predicted, found: Prediction, changes: int) -> str:
    best = f"Of {changes} changes, the shortest step is that of: " if changes > 1 else ""
    span = span_words(entry)
    error = (
        f" The model of the run itself is off by {signed_percent(entry.error_ratio)}."
        if entry.error_ratio is not None
        else ""
    )
    was = f", measured was {plain_words(entry.name, entry.measured)}" if entry.measured is not None else ""
    return f"{best}{found.words}: a step of {said_words(entry)}{span}{was}.{error}"


def _peak_answers(found: Prediction) -> Iterator[str]:
    entry = figure_of(found.memory, PEAK)
    if entry is not None:
        was = (
            f", measured was {plain_words(entry.name, entry.measured)}" if entry.measured is not None else ""
        )
        peak = f"{said_words(entry)} on the largest rank{span_words(entry)}"
        yield f"{found.words}: peak memory of {peak}{was}."
