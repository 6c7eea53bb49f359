"""The range in which the saving of a change lies, for the rules whose fix is that change."""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.gaps import Gap
from zprof.model.planning.whatif import Change
from zprof.planner.whatif.calibrate import calibrated
from zprof.planner.whatif.outlook import saving_of
from zprof.planner.whatif.predict import base_of, predicted_step


def predicted_saving_ns(analysis: RunAnalysis, change: Change) -> tuple[int, int] | None:
    """Lowest and highest saving of a step, not below 0.

    None where the run cannot be modelled, or the model misses its measured step by more than 15 %.
    """
    model = calibrated(analysis)
    if isinstance(model, Gap):
        return None
    base = base_of(analysis, model)
    if not base.reproduces:
        return None
    saving = saving_of(predicted_step(base, change))
    return None if saving is None else (max(0, saving[0]), max(0, saving[1]))
