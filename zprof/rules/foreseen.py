"""The saving of a fix that is one change: what the model of the run makes of it, where that can be trusted.

The rule's own range rests on what is exposed; the model plays the whole step with the change
(:mod:`zprof.planner.whatif`), so that what then shows instead counts too.  Where both ranges overlap the
finding says what both allow; where they do not, or the model misses the measured step, it keeps its own.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.planning.whatif import Change
from zprof.planner.whatif.saving import predicted_saving_ns


def foreseen_ns(analysis: RunAnalysis, change: Change, own: tuple[float, float]) -> tuple[float, float]:
    """Lowest and highest saving of a step: what the rule and the model of the changed run both allow."""
    model = predicted_saving_ns(analysis, change)
    if model is None:
        return own
    low, high = max(own[0], model[0]), min(own[1], model[1])
    return (low, high) if low < high else own
