"""What single changes would make of a measured run: the answer, and the chapters that it rests on."""

from collections.abc import Iterator, Sequence

from zprof.model.planning.whatif import Outlook, Prediction
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

#: Cards of a page; a list that is longer is left to the table.
_MOST_FIGURES = 12


def outlook_answers(outlook: Outlook) -> tuple[str, ...]:
    """The change of the shortest step, else that of the least peak, else that nothing is predicted."""
    timed = [found for found in outlook.predictions if figure_of(found.step, STEP)]
    if timed:
        sure = [found for found in timed if _is_shorter(found)]
        best = min(sure or timed, key=_step_of)
        return (_step_words(best, timed), *_peak_answers(best))
    held = [(entry, found) for found in outlook.predictions if (entry := figure_of(found.memory, PEAK))]
    if held:
        _, found = min(held, key=lambda pair: pair[0].predicted or 0)
        return tuple(_peak_answers(found))
    return ("Nothing could be predicted for this run: why stands under Not known.",)


def _step_of(found: Prediction) -> int:
    entry = figure_of(found.step, STEP)
    return (entry.predicted or 0) if entry else 0


def _is_shorter(found: Prediction) -> bool:
    """Whether the whole range saves time."""
    return found.saving_ns is not None and found.saving_ns[0] > 0


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


def _step_words(best: Prediction, timed: Sequence[Prediction]) -> str:
    entry = figure_of(best.step, STEP)
    if entry is None:
        return ""
    error = (
        f" The model of the run itself is off by {signed_percent(entry.error_ratio)}."
        if entry.error_ratio is not None
        else ""
    )
    was = f", measured was {plain_words(entry.name, entry.measured)}" if entry.measured is not None else ""
    said = f"a step of {said_words(entry)}{span_words(entry)}{was}{_peak_beside(best)}"
    return f"{_lead(best, timed)}{best.words}: {said}.{_rivals(best, timed)}{error}"


def _lead(best: Prediction, timed: Sequence[Prediction]) -> str:
    """How sure it is that the step gets shorter, and among how many."""
    changes = len(timed)
    if best.saving_ns is None:
        return ""
    if _is_shorter(best):
        whole = "the shortest step of those that save time over their whole range"
        return f"Of {changes} changes, {whole}: " if changes > 1 else ""
    if changes > 1:
        return f"None of {changes} changes is certain to make the step shorter; the shortest predicted is: "
    return "Not certain to be shorter: " if best.saving_ns[1] > 0 else "Longer over its whole range: "


def _peak_beside(best: Prediction) -> str:
    """A peak that grows is part of the answer."""
    peak = figure_of(best.memory, PEAK)
    if peak is None or peak.predicted is None or peak.measured is None or peak.predicted <= peak.measured:
        return ""
    return (
        f", with a higher peak: {said_words(peak)} where {plain_words(peak.name, peak.measured)} was measured"
    )


def _rivals(best: Prediction, timed: Sequence[Prediction]) -> str:
    """How many other predictions lie in the range of the best."""
    entry = figure_of(best.step, STEP)
    high = None if entry is None else entry.high
    count = 0 if high is None else sum(other is not best and _step_of(other) <= high for other in timed)
    if not count:
        return ""
    many = f" {count} of the others lie in that range or below."
    return many if count > 1 else " One of the others lies in that range or below."


def _peak_answers(found: Prediction) -> Iterator[str]:
    entry = figure_of(found.memory, PEAK)
    if entry is not None:
        was = (
            f", measured was {plain_words(entry.name, entry.measured)}" if entry.measured is not None else ""
        )
        peak = f"{said_words(entry)} on the largest rank{span_words(entry)}"
        yield f"{found.words}: peak memory of {peak}{was}."
