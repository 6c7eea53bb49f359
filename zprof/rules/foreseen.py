"""The saving of a fix that is one change: what the rule and the model of the run both allow.

The rule's own range rests on what is exposed; the model plays the whole step with the change
(:mod:`zprof.planner.whatif`), so that what then shows instead counts too.  Where both ranges overlap the
finding says what both allow.  Where they do not, one of them is wrong: the range holds both, and the
confidence falls.  A model that misses the measured step says nothing.
"""

from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.model.planning.whatif import Change
from zprof.planner.whatif.saving import predicted_saving_ns

_LOWER = {Confidence.HIGH: Confidence.MEDIUM}


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """Lowest and highest saving of a step, and how sure the finding still is."""

    saving_ns: tuple[float, float]
    confidence: Confidence


def foreseen(
    analysis: RunAnalysis, change: Change, own: tuple[float, float], confidence: Confidence
) -> Foreseen:
    """Compare a rule's own range and confidence with the model of the changed run."""
    model = predicted_saving_ns(analysis, change)
    if model is None:
        return Foreseen(saving_ns=own, confidence=confidence)
    low, high = max(own[0], model[0]), min(own[1], model[1])
    if low <= high:
        return Foreseen(saving_ns=(low, high) if low < high else own, confidence=confidence)
    both = min(own[0], model[0]), max(own[1], model[1])
    return Foreseen(saving_ns=both, confidence=_LOWER.get(confidence, Confidence.LOW))


def foreseen_ns(analysis: RunAnalysis, change: Change, own: tuple[float, float]) -> tuple[float, float]:
    """Return the range alone."""
    return foreseen(analysis, change, own, Confidence.LOW).saving_ns
