"""Bound a rule's own saving range by the what-if prediction for its fix.

If both ranges overlap, the finding reports the overlap. If not, one of them is wrong: the range covers both,
and the confidence is lowered.
"""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.model.whatif import Change
from zprof.step.from_units.prediction import predict_saving_ns

_NEXT_LOWER = {Confidence.HIGH: Confidence.MEDIUM}


class BoundedSaving(Struct, frozen=True, kw_only=True):
    """Minimum and maximum saving per step, in ns, and the resulting confidence."""

    saving_ns: tuple[float, float]
    confidence: Confidence


def bound_by_prediction(
    analysis: RunAnalysis, change: Change, own_range: tuple[float, float], confidence: Confidence
) -> BoundedSaving:
    """Bound a rule's own range and confidence by the prediction for the changed run."""
    predicted_range = predict_saving_ns(analysis, change)
    if predicted_range is None:
        return BoundedSaving(saving_ns=own_range, confidence=confidence)
    low, high = max(own_range[0], predicted_range[0]), min(own_range[1], predicted_range[1])
    if low <= high:
        return BoundedSaving(saving_ns=(low, high) if low < high else own_range, confidence=confidence)
    union = min(own_range[0], predicted_range[0]), max(own_range[1], predicted_range[1])
    return BoundedSaving(saving_ns=union, confidence=_NEXT_LOWER.get(confidence, Confidence.LOW))


def bound_range_by_prediction(
    analysis: RunAnalysis, change: Change, own_range: tuple[float, float]
) -> tuple[float, float]:
    """Return only the range of ``bound_by_prediction``."""
    return bound_by_prediction(analysis, change, own_range, Confidence.LOW).saving_ns
