"""Predict step time and memory peak of a measured run after single changes, with error and range."""

from collections.abc import Sequence

from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.gaps import Gap, GapKind
from zprof.model.hang import is_stuck
from zprof.model.report import Report
from zprof.model.whatif import Change, Outlook, Prediction
from zprof.planner.whatif.memory import MeasuredMemory, measure_memory, predict_memory
from zprof.step.from_units.assumptions import ASSUMPTIONS
from zprof.step.from_units.calibration import CalibratedModel
from zprof.step.from_units.changes import describe_change, refuse_change, usual_changes
from zprof.step.from_units.prediction import (
    REPRODUCES_RATIO,
    ModelledRun,
    find_change_gaps,
    model_run,
    predict_step,
    saving_range_ns,
)

_STEP_GAP = "step of a changed run"


def predict_changes(analysis: RunAnalysis, changes: Sequence[Change] | None = None) -> Outlook:
    """Predict the effect of changes on a run; ``changes=None`` means the usual ones.

    Raises:
        BadInput: a change is impossible, such as stage 4 or bandwidth 0.
    """
    for change in changes or ():
        refuse_change(change)
    base = model_run(analysis)
    memory = measure_memory(analysis)
    gaps = [result for result in (base, memory) if isinstance(result, Gap)]
    if isinstance(base, Gap):
        requested = tuple(changes or ())
        predictions = tuple(_predict_memory_only(analysis, memory, change) for change in requested)
        return _make_outlook(analysis, predictions, None, gaps)
    requested = usual_changes(base.model) if changes is None else tuple(changes)
    gaps += [*_model_gaps(base), *find_change_gaps(base.model, requested)]
    predictions = tuple(_predict_change(analysis, base, memory, change) for change in requested)
    return _make_outlook(analysis, predictions, base, gaps)


def add_outlook(report: Report, analysis: RunAnalysis) -> Report:
    """Return the report with predictions for the usual changes; unchanged if nothing can be predicted.

    A job that is stuck has no step that could be shorter.
    """
    if is_stuck(report.hang):
        return report
    outlook = predict_changes(analysis)
    return replace(report, outlook=outlook) if outlook.predictions else report


def _make_outlook(
    analysis: RunAnalysis,
    predictions: tuple[Prediction, ...],
    base: ModelledRun | None,
    gaps: Sequence[Gap],
) -> Outlook:
    keys = {row.assumption for prediction in predictions for row in (*prediction.step, *prediction.memory)}
    return Outlook(
        predictions=predictions,
        calibration=None if base is None else base.model.summary,
        assumptions={key: ASSUMPTIONS[key] for key in sorted(keys)},
        gaps=tuple(dict.fromkeys(gaps)),
        is_window=analysis.time.is_whole,
    )


def _predict_change(
    analysis: RunAnalysis, base: ModelledRun, memory: MeasuredMemory | Gap, change: Change
) -> Prediction:
    prediction = _predict_memory_only(analysis, memory, change, base.model)
    step = predict_step(base, change)
    return replace(prediction, step=step, saving_ns=saving_range_ns(step))


def _predict_memory_only(
    analysis: RunAnalysis, memory: MeasuredMemory | Gap, change: Change, model: CalibratedModel | None = None
) -> Prediction:
    rows = () if isinstance(memory, Gap) else predict_memory(analysis, memory, model, change)
    return Prediction(change=change, words=describe_change(change), memory=rows)


def _model_gaps(base: ModelledRun) -> list[Gap]:
    """Return the gaps that make the model uncertain."""
    gaps = []
    if not base.reproduces:
        gaps.append(
            Gap(
                kind=GapKind.PREDICTION,
                what=_STEP_GAP,
                reason=f"the model of the run differs from the measured step by {abs(base.error_ratio):.0%} "
                f"(more than {REPRODUCES_RATIO:.0%}): ranges are twice as wide",
                remedy="record more steps on an otherwise idle machine",
            )
        )
    if not base.model.link.is_known:
        gaps.append(
            Gap(
                kind=GapKind.PREDICTION,
                what="latency and bandwidth of the link",
                reason="messages of each kind have only one size: predictions for another link assume "
                "anything between bandwidth-bound and latency-bound",
                remedy="record with units of different sizes",
            )
        )
    return gaps
