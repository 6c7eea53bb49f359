"""What a run leaves open of a change: how wide its range is, what is played beside it, what means nothing."""

from dataclasses import replace

import pytest

from tests.support.whatif_pairs import analysed, predicted, true_step_ns, wall
from zprof.analysis.analysis import RunAnalysis
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.whatif import Change, Outlook, PredictedFigure
from zprof.planner.whatif.changes import refuse_merging
from zprof.planner.whatif.outlook import predict_changes
from zprof.planner.whatif.prediction import MIN_RANGE_RATIO, MIN_STAGE_RANGE_RATIO
from zprof.simulator.plan import Plan, Vendor

DEVICE = Plan(ranks=2, units=5)
CPU = Plan(ranks=2, units=4, vendor=Vendor.GLOO)
OPEN = "hide the gather of new parameters"


@pytest.fixture(scope="module")
def device() -> RunAnalysis:
    return analysed(DEVICE)


@pytest.fixture(scope="module")
def cpu() -> RunAnalysis:
    return analysed(CPU)


def span(row: PredictedFigure) -> tuple[int, int]:
    assert row.low is not None
    assert row.high is not None
    return row.low, row.high


def about(made: Outlook, words: str) -> list[Gap]:
    return [gap for gap in made.gaps if words in gap.what]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("hidden", [True, False])
def test_the_range_holds_both_ends_of_what_the_run_does_not_tell(
    device: RunAnalysis, stage: int, *, hidden: bool
) -> None:
    made = predict_changes(device, [Change(stage=stage)])
    low, high = span(wall(made.predictions[0]))
    true = true_step_ns(replace(DEVICE, stage=stage, hide_optimizer_gather=hidden))
    assert low < true < high
    saving = made.predictions[0].saving_ns
    assert saving is not None
    assert saving[0] < 0 < saving[1]
    assert about(made, OPEN)


def test_a_gather_that_is_said_to_be_waited_for_comes_after_the_whole_update(device: RunAnalysis) -> None:
    made = predict_changes(
        device, [Change(stage=2, overlap_gather=False), Change(stage=2, overlap_gather=True)]
    )
    waited, hidden = (predicted(wall(each)) for each in made.predictions)
    true = (true_step_ns(replace(DEVICE, stage=2, hide_optimizer_gather=hide)) for hide in (False, True))
    assert (waited, hidden) == pytest.approx(tuple(true), rel=0.01)
    assert not about(made, OPEN)
    both = wall(predict_changes(device, [Change(stage=2)]).predictions[0])
    assert predicted(both) == pytest.approx((waited + hidden) / 2, abs=2)


def test_cpu_ranks_and_the_reference_engine_are_taken_to_hide_it(
    cpu: RunAnalysis, device: RunAnalysis
) -> None:
    assert not about(predict_changes(cpu, [Change(stage=2)]), OPEN)
    known = replace(device, training=replace(device.training, engine="reference"))
    assert not about(predict_changes(known, [Change(stage=2)]), OPEN)


@pytest.mark.parametrize(
    ("change", "floor"),
    [
        (Change(stage=0), MIN_STAGE_RANGE_RATIO),
        (Change(prefetch=2), MIN_RANGE_RATIO),
        (Change(keep_after_forward="all"), MIN_RANGE_RATIO),
        (Change(bandwidth_ratio=1.01), MIN_RANGE_RATIO),
        (Change(stage=3, prefetch=2), MIN_RANGE_RATIO),
    ],
)
def test_a_range_is_as_wide_as_the_kind_of_change_is_doubtful(
    cpu: RunAnalysis, change: Change, floor: float
) -> None:
    row = wall(predict_changes(cpu, [change]).predictions[0])
    low, high = span(row)
    least = floor * (row.measured or 0)
    assert predicted(row) - low >= least - 1
    assert high - predicted(row) >= least - 1
    assert high - low < 4 * least + 0.25 * abs(predicted(row) - (row.measured or 0))


@pytest.mark.parametrize(
    "change",
    [
        Change(stage=3),
        Change(bandwidth_ratio=1.0, latency_ratio=1.0),
        Change(units_merged=1),
        Change(prefetch=1),
        Change(overlap_reduce=True),
    ],
)
def test_what_the_run_is_already_has_its_noise_only_and_a_gap(cpu: RunAnalysis, change: Change) -> None:
    made = predict_changes(cpu, [change])
    row = wall(made.predictions[0])
    assert row.predicted == row.measured
    assert span(row) == span(wall(predict_changes(cpu, [Change()]).predictions[0]))
    assert [gap.reason for gap in about(made, "effect on the step")] == ["the run is like that already"]


def test_nothing_changed_leaves_nothing_open(cpu: RunAnalysis) -> None:
    made = predict_changes(cpu, [Change(), Change(stage=2), Change(latency_ratio=4.0)])
    assert {gap.what for gap in made.gaps} == {"peak of a changed run"}


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        (Change(overlap_gather=False), "stages 1 and 2, not in stage 3"),
        (Change(stage=0, overlap_gather=True), "stages 1 and 2, not in stage 0"),
        (Change(stage=2, prefetch=2), "stage 3, not in stage 2"),
        (Change(stage=1, keep_after_forward="all"), "stage 3, not in stage 1"),
    ],
)
def test_a_change_that_means_nothing_there_says_where_it_does(
    cpu: RunAnalysis, change: Change, stages: str
) -> None:
    assert [
        gap for gap in about(predict_changes(cpu, [change]), "effect on the step") if stages in gap.reason
    ]


@pytest.mark.parametrize("ratio", [100.0, 0.1])
def test_a_latency_far_off_may_not_scale_at_all(cpu: RunAnalysis, ratio: float) -> None:
    made = predict_changes(
        cpu, [Change(latency_ratio=ratio), Change(latency_ratio=4.0), Change(latency_ratio=0.25)]
    )
    row, *near = (wall(each) for each in made.predictions)
    low, high = span(row)
    measured = row.measured or 0
    assert low <= measured <= high
    assert about(made, "latency")
    for other in near:
        assert span(other)[1] - span(other)[0] < high - low or ratio < 1
    if ratio > 1:
        assert low > 0.9 * measured
        assert measured < predicted(row) < high


def test_more_units_than_there_are_become_one_and_are_refused_where_they_are_typed(cpu: RunAnalysis) -> None:
    more, all_of_them = (predict_changes(cpu, [Change(units_merged=count)]) for count in (100, 4))
    assert wall(more.predictions[0]).predicted == wall(all_of_them.predictions[0]).predicted
    assert [gap.reason for gap in about(more, "100 units")] == ["the run has 4 units: all of them become one"]
    assert not about(all_of_them, "effect on the step")
    with pytest.raises(BadInput, match="units merged 100: the run has 4 units"):
        refuse_merging(Change(units_merged=100), 4)
    refuse_merging(Change(units_merged=4), 4)
