"""What a run leaves open of a change: how wide its range is, what is played beside it, what means nothing."""

from dataclasses import replace as replace_job
from functools import cache

import pytest
from msgspec.structs import replace

from tests.support.whatif_pairs import analysed, predicted, true_step_ns, wall
from zprof.analysis.analysis import RunAnalysis
from zprof.model.plan import Change, Outlook, PredictedFigure
from zprof.planner.whatif import predict_changes
from zprof.simulator.regular import STAGES, make_job
from zprof.step.prediction import MIN_RANGE_RATIO, MIN_STAGE_RANGE_RATIO

#: Without the copies around gathers, which FSDP2 has and engines of other stages have not.
DEVICE = make_job(ranks=2, units=5, steps=3, copy_factor=0.0)
CPU = make_job(ranks=2, units=4, steps=3, vendor="gloo", names_collectives=True)


@cache
def recorded(plan_name: str) -> RunAnalysis:
    return analysed({"device": DEVICE, "cpu": CPU}[plan_name])


@cache
def predict(plan_name: str, change: Change) -> Outlook:
    return predict_changes(recorded(plan_name), [change])


def span(row: PredictedFigure) -> tuple[int, int]:
    assert row.low is not None
    assert row.high is not None
    return row.low, row.high


def predict_wall(plan_name: str, change: Change) -> PredictedFigure:
    return wall(predict(plan_name, change).predictions[0])


def count_gaps(plan_name: str, change: Change) -> int:
    """Beside that of the peak, which a run without memory always has."""
    return len(predict(plan_name, change).gaps) - 1


@pytest.mark.parametrize("stage", [1, 2])
def test_the_range_holds_both_ends_of_what_the_run_does_not_tell(stage: int) -> None:
    """Whether gathers of new parameters are hidden shows in stages 1 and 2 only."""
    made = predict("device", Change(stage=stage))
    low, high = span(wall(made.predictions[0]))
    for hidden in ("hidden", "exposed"):
        assert low < true_step_ns(replace_job(DEVICE, engine=STAGES[stage], optimizer_gather=hidden)) < high
    saving = made.predictions[0].saving_ns
    assert saving is not None
    assert saving[0] < 0 < saving[1]
    assert count_gaps("device", Change(stage=stage)) == 1


def test_a_gather_that_is_stated_to_be_waited_for_comes_after_the_whole_update() -> None:
    found = []
    for hide in (False, True):
        change = Change(stage=2, overlap_gather=hide)
        found.append(predicted(predict_wall("device", change)))
        true = true_step_ns(
            replace_job(DEVICE, engine="zero2", optimizer_gather="hidden" if hide else "exposed")
        )
        assert found[-1] == pytest.approx(true, rel=0.01)
        assert count_gaps("device", change) == 0
    both = predict_wall("device", Change(stage=2))
    assert predicted(both) == pytest.approx(sum(found) / 2, abs=2)


@pytest.mark.parametrize(
    ("change", "least_ratio"),
    [
        (Change(stage=0), MIN_STAGE_RANGE_RATIO),
        (Change(prefetch=2), MIN_RANGE_RATIO),
        (Change(bandwidth_ratio=1.01), MIN_RANGE_RATIO),
        (Change(stage=3, prefetch=2), MIN_RANGE_RATIO),
    ],
)
def test_a_range_is_as_wide_as_the_kind_of_change_is_uncertain(change: Change, least_ratio: float) -> None:
    row = predict_wall("cpu", change)
    low, high = span(row)
    least = least_ratio * (row.measured or 0)
    assert min(predicted(row) - low, high - predicted(row)) >= least - 1
    assert high - low < 4 * least + 0.25 * abs(predicted(row) - (row.measured or 0))


@pytest.mark.parametrize(
    "change",
    [
        Change(stage=3),
        Change(bandwidth_ratio=1.0, latency_ratio=1.0),
        Change(units_merged=1),
        Change(prefetch=1),
    ],
)
def test_a_change_to_what_the_run_is_already_has_its_noise_only_and_a_gap(change: Change) -> None:
    row, same = predict_wall("cpu", change), predict_wall("cpu", Change())
    assert row.predicted == row.measured
    assert span(row) == span(same)
    assert (count_gaps("cpu", change), count_gaps("cpu", Change())) == (1, 0)


def test_a_latency_far_off_may_not_scale_at_all() -> None:
    far, near = (predict_wall("cpu", Change(latency_ratio=ratio)) for ratio in (100.0, 4.0))
    low, high = span(far)
    measured = far.measured or 0
    assert 0.9 * measured < low <= measured < predicted(far) < high
    assert span(near)[1] - span(near)[0] < high - low
    for ratio in (100.0, 0.1):
        assert count_gaps("cpu", Change(latency_ratio=ratio)) == 1
    assert count_gaps("cpu", Change(latency_ratio=4.0)) == 0


@pytest.mark.parametrize("change", [Change(stage=0, overlap_gather=False), Change(stage=2, prefetch=2)])
def test_a_change_that_means_nothing_in_its_stage_is_a_gap(change: Change) -> None:
    stage = f"stage {change.stage}"
    assert any(stage in gap.reason for gap in predict("cpu", change).gaps)
    alone = replace(change, prefetch=None, overlap_gather=None)
    assert count_gaps("cpu", alone) == 0
