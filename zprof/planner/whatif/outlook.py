"""What single changes would make of a measured run: step and peak, each with its error and a range."""

from collections.abc import Sequence
from dataclasses import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.gaps import Gap
from zprof.model.planning.whatif import Change, Outlook, Predicted, Prediction
from zprof.model.report import Report
from zprof.planner.whatif.assumptions import ASSUMPTIONS
from zprof.planner.whatif.calibrate import Calibrated, calibrated
from zprof.planner.whatif.change_words import refuse, words_of
from zprof.planner.whatif.changes import usual_of
from zprof.planner.whatif.doubt import gaps_of
from zprof.planner.whatif.memory import Measured, measured_memory, predicted_memory
from zprof.planner.whatif.predict import REPRODUCES_RATIO, Base, base_of, predicted_step

_STEP = "step of a changed run"


def outlook(analysis: RunAnalysis, changes: Sequence[Change] | None = None) -> Outlook:
    """Predict what changes would make of a run; without ``changes`` the usual ones.

    Raises:
        BadInput: a change cannot be: a stage that is none, a bandwidth of 0.
    """
    for change in changes or ():
        refuse(change)
    model = calibrated(analysis)
    memory = measured_memory(analysis)
    gaps = [each for each in (model, memory) if isinstance(each, Gap)]
    if isinstance(model, Gap):
        asked = tuple(changes or ())
        predictions = tuple(_of_memory(analysis, memory, change) for change in asked)
        return _outlook(predictions, None, gaps)
    base = base_of(analysis, model)
    asked = usual_of(model) if changes is None else tuple(changes)
    gaps += [*_doubts(base), *gaps_of(model, asked)]
    predictions = tuple(_prediction(analysis, base, memory, change) for change in asked)
    return _outlook(predictions, base, gaps)


def with_outlook(report: Report, analysis: RunAnalysis) -> Report:
    """The report with what the usual changes would make of its run; as it is where nothing is predicted."""
    found = outlook(analysis)
    return replace(report, outlook=found) if found.predictions else report


def _outlook(predictions: tuple[Prediction, ...], base: Base | None, gaps: Sequence[Gap]) -> Outlook:
    named = {row.assumption for each in predictions for row in (*each.step, *each.memory)}
    return Outlook(
        predictions=predictions,
        calibration=None if base is None else base.model.summary,
        assumptions={key: ASSUMPTIONS[key] for key in sorted(named)},
        gaps=tuple(dict.fromkeys(gaps)),
    )


def _prediction(analysis: RunAnalysis, base: Base, memory: Measured | Gap, change: Change) -> Prediction:
    made = _of_memory(analysis, memory, change, base.model)
    step = predicted_step(base, change)
    return replace(made, step=step, saving_ns=saving_of(step))


def _of_memory(
    analysis: RunAnalysis, memory: Measured | Gap, change: Change, model: Calibrated | None = None
) -> Prediction:
    rows = () if isinstance(memory, Gap) else predicted_memory(analysis, memory, model, change)
    return Prediction(change=change, words=words_of(change), memory=rows)


def saving_of(step: Sequence[Predicted]) -> tuple[int, int] | None:
    """What a step gets shorter by, lowest and highest."""
    wall = next((row for row in step if row.name == "wall_ns"), None)
    if wall is None or wall.measured is None or wall.low is None or wall.high is None:
        return None
    return wall.measured - wall.high, wall.measured - wall.low


def _doubts(base: Base) -> list[Gap]:
    """Where the model is not sure of itself."""
    found = []
    if not base.reproduces:
        found.append(
            Gap(
                what=_STEP,
                reason=f"the model of the run misses its measured step by {abs(base.error_ratio):.0%} "
                f"(more than {REPRODUCES_RATIO:.0%}): ranges are twice as wide",
                remedy="record more steps on a machine that does nothing else",
            )
        )
    if not base.model.link.is_known:
        found.append(
            Gap(
                what="latency and bandwidth of the link",
                reason="messages of a kind have one size only: predictions for another link lie between "
                "all bytes and all latency",
                remedy="record with units of different sizes",
            )
        )
    return found
