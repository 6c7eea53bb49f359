"""What is predicted, in words: what a step and the peak save, and between what; or why that is not known."""

from zprof.model.errors import ZprofError
from zprof.model.planning.whatif import Predicted, Prediction
from zprof.tui.figures import Unit
from zprof.tui.plan.cells import Row, entry_of
from zprof.tui.plan.planned import Planned, gap_said
from zprof.tui.plan.said import error_words, plain, range_words
from zprof.tui.shell import one_line
from zprof.tui.tables import Mark, Word

_STEP = Row(part="step", name="wall_ns", title="step", unit=Unit.NS)
_PEAK = Row(part="memory", name="peak_bytes", title="peak", unit=Unit.BYTES)


#: 0.0 in milliseconds with one decimal.
_NOTHING_NS = 50_000


def headline(planned: Planned) -> list[Word]:
    """A word for what it is, and the sentence."""
    if isinstance(planned.answer, ZprofError):
        return [Word("NOT PREDICTED", Mark.DOUBTFUL), Word(one_line(planned.answer))]
    if planned.answer is None:
        return [
            Word("predicting", Mark.MUTED),
            Word(f"{planned.words or 'the run as it is'} ...", Mark.MUTED),
        ]
    if planned.prediction is None:
        return [Word("NOT PREDICTED", Mark.DOUBTFUL), Word(planned.words or "the run as it is")]
    if not planned.words:
        return [Word("AS MEASURED", Mark.TITLE), Word(f"turn a knob: left and right. {_model_said(planned)}")]
    parts = [said for said in (_step_said(planned), _peak_said(planned)) if said]
    sentence = "; ".join(parts) or "neither the step nor the peak"
    return [Word("~ PREDICTED", Mark.PREDICTED), Word(f"{planned.said}: {sentence}.")]


def gaps_word(planned: Planned) -> Word:
    """What is not predicted and why: the first of it, and that there is more."""
    said = [gap_said(gap) for gap in planned.gaps if not isinstance(planned.answer, ZprofError)]
    more = f" (g: all {len(said)})" if len(said) > 1 else ""
    what = "not known" if planned.is_whole else "not predicted"
    return Word(f"! {what}{more}: {said[0]}" if said else "", Mark.DOUBTFUL)


def _model_said(planned: Planned) -> str:
    entry = entry_of(planned, _STEP)
    if entry is None or entry.modelled is None or entry.measured is None:
        return "The step of this run could not be modelled."
    return (
        f"The model of this run gives a step of {plain(entry.modelled, Unit.NS)} where "
        f"{plain(entry.measured, Unit.NS)} was measured: {error_words(entry)}."
    )


def _step_said(planned: Planned) -> str:
    entry, prediction = entry_of(planned, _STEP), planned.prediction
    if entry is None or prediction is None or entry.predicted is None or entry.measured is None:
        return ""
    saved = entry.measured - entry.predicted
    if abs(saved) < _NOTHING_NS:
        return f"a step stays {plain(entry.measured, Unit.NS)}{_between(prediction, entry)}"
    share = f", {plain(abs(saved) / entry.measured, Unit.RATIO)}" if entry.measured else ""
    verb, more = ("saves", "of") if saved > 0 else ("costs", "more than")
    whole = f"{plain(abs(saved), Unit.NS)} {more} {plain(entry.measured, Unit.NS)} a step{share}"
    return f"{verb} {whole}{_between(prediction, entry)}"


def _between(prediction: Prediction, entry: Predicted) -> str:
    """The range of the saving; where it holds 0, that it may be nothing."""
    if prediction.saving_ns is None:
        return ", range unknown"
    low, high = sorted(prediction.saving_ns)
    if low < 0 < high:
        return f", anything from {plain(-low, Unit.NS)} longer to {plain(high, Unit.NS)} shorter"
    if entry.predicted is not None and entry.measured is not None and high <= 0:
        low, high = -high, -low
    return f", between {range_words(low, high, Unit.NS).replace('..', ' and ')}"


def _peak_said(planned: Planned) -> str:
    entry = entry_of(planned, _PEAK)
    if entry is None or entry.predicted is None or entry.measured is None:
        return ""
    freed = entry.measured - entry.predicted
    if freed == 0:
        return f"the peak stays {plain(entry.measured, Unit.BYTES)}"
    spread = ""
    if entry.low is not None and entry.high is not None:
        spread = f", peak between {range_words(entry.low, entry.high, Unit.BYTES).replace('..', ' and ')}"
    verb, more = ("frees", "of") if freed > 0 else ("takes", "more than")
    return (
        f"{verb} {plain(abs(freed), Unit.BYTES)} {more} {plain(entry.measured, Unit.BYTES)} of memory{spread}"
    )
