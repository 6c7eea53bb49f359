"""Bound the saving of a finding by the what-if prediction for its fix, and by the noise of the steps.

If the rule's own range and the predicted one overlap, the finding reports the overlap. If not, one of them is
wrong: the range covers both, and the confidence is lowered. Ratings follow the range.
"""

from dataclasses import dataclass, replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.whatif import Change
from zprof.replay.whatif.prediction import predict_saving_ns
from zprof.rules.rule import rate_severity

_NEXT_LOWER = {Confidence.HIGH: Confidence.MEDIUM}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedSaving:
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


_MAX_WIDENING_RATIO = 0.25


def widen_by_noise(finding: Finding, step_noise_ns: int | None) -> Finding:
    """Return the finding with its saving range widened by the noise of the run, by 25 % at most."""
    low, high = finding.saving_ns
    noise = step_noise_ns or 0
    low = int(low - min(noise, _MAX_WIDENING_RATIO * low))
    return replace(finding, saving_ns=(low, int(high + min(noise, _MAX_WIDENING_RATIO * high))))


#: Above this ratio of the ends of a range, it does not say what the fix is worth.
_MAX_SURE_SPAN = 4.0
_SEVERITY_RANK = {Severity.LOW: 0, Severity.MEDIUM: 1, Severity.HIGH: 2}


def rate_by_range(finding: Finding, wall_ns: float) -> Finding:
    """Return the finding with no more severity than its saving has, and no more confidence than its range.

    A finding without a saving of time is returned unchanged.
    """
    low, high = finding.saving_ns
    if high <= 0:
        return finding
    is_wide = high > _MAX_SURE_SPAN * low and finding.confidence is Confidence.HIGH
    severity = finding.severity
    if finding.saving_bytes is None:
        severity = min(severity, rate_severity(high, wall_ns), key=_SEVERITY_RANK.__getitem__)
    return replace(
        finding, severity=severity, confidence=Confidence.MEDIUM if is_wide else finding.confidence
    )
