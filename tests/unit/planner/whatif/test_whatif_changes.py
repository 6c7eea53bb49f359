"""Changes in words, those that are refused, and what they make of a schedule."""

from dataclasses import replace

import numpy as np
import pytest

from zprof.model.errors import BadInput
from zprof.model.whatif import Calibration, Change
from zprof.planner.whatif.calibration import CalibratedModel
from zprof.planner.whatif.changes import (
    change_passes,
    change_policy,
    describe_change,
    refuse_change,
    usual_changes,
)
from zprof.planner.whatif.engine_policy import DEFAULT_IN_FLIGHT, EnginePolicy
from zprof.planner.whatif.links import Link, MessageCosts
from zprof.planner.whatif.passes import PassWork, Phase, StepPasses, UnitSize, list_passes

HABITS = EnginePolicy(
    stage=3, prefetch=1, keep="none", overlap_reduce=True, overlap_gather=True, in_flight=1 << 20
)


def model(habits: EnginePolicy = HABITS, *, micro_batches: int = 1, skew_ns: int = 0) -> CalibratedModel:
    units = (
        UnitSize(name="root", gather_bytes=8, reduce_bytes=8, encloses=True),
        *(UnitSize(name=f"blocks.{n}", gather_bytes=64, reduce_bytes=64) for n in range(3)),
    )
    passes = list_passes(units, (3, 2, 1), micro_batches, True)
    ns = np.arange(1, 2 * len(passes) + 1, dtype=float).reshape(len(passes), 1, 2)
    one = np.ones((1, 2))
    skeleton = StepPasses(
        units=units,
        passes=passes,
        work=PassWork(head=one, passes=ns, tail=one, between=one),
        ranks=(0, 1),
        steps=(0,),
        micro_batches=micro_batches,
    )
    summary = Calibration(
        units=4, passes=len(passes), forward_ns=100, backward_ns=200, optimizer_ns=1, links=(),
        slowest_rank=1, skew_ns=skew_ns, prefetch=1, steps=1,
    )  # fmt: skip
    return CalibratedModel(
        skeleton=skeleton,
        habits=habits,
        costs=MessageCosts(launch_ns={}, pick_up_ns=0, queue_ns=0, wake_ns=0, lanes=False),
        link=Link(lines={}, seen={}, group_size=2),
        alone=len(passes),
        summary=summary,
        reduced_element_bytes=4,
    )


def changed(change: Change, made: CalibratedModel | None = None) -> StepPasses:
    return change_passes(made or model(), change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change(stage=2, prefetch=2, bandwidth_ratio=2.0), "stage 2, prefetch 2, bandwidth x2"),
        (Change(bandwidth_ratio=0.5, latency_ratio=3.0), "bandwidth x0.5, latency x3"),
        (Change(keep_after_forward="last"), "keep last after the forward"),
        (Change(even=True), "even ranks"),
        (Change(overlap_reduce=False), "reductions waited for at once"),
        (Change(shard_ranks=8, micro_batches=2), "the same samples in 2 micro-batches, sharded over 8 ranks"),
        (Change(micro_batches=1), "the same samples in 1 micro-batch"),
        (Change(units_merged=1), "no units merged"),
        (Change(units_merged=3), "3 units merged into one"),
        (Change(), "nothing changed"),
    ],
)
def test_a_change_has_words(change: Change, words: str) -> None:
    assert describe_change(change) == words


@pytest.mark.parametrize(
    "change",
    [
        Change(stage=4),
        Change(stage=-1),
        Change(prefetch=-1),
        Change(keep_after_forward="some"),
        Change(bandwidth_ratio=0.0),
        Change(bandwidth_ratio=float("nan")),
        Change(bandwidth_ratio=float("inf")),
        Change(latency_ratio=-1.0),
        Change(units_merged=0),
        Change(micro_batches=0),
        Change(element_bytes_reduced=0),
        Change(shard_ranks=1),
    ],
)
def test_what_cannot_be_is_refused(change: Change) -> None:
    with pytest.raises(BadInput):
        refuse_change(change)


def test_merged_units_carry_the_bytes_and_the_work_of_both() -> None:
    before, after = model().skeleton, changed(Change(units_merged=2))
    assert [unit.name for unit in after.units] == ["root", "blocks.0 to blocks.1", "blocks.2"]
    assert [unit.gather_bytes for unit in after.units] == [8, 128, 64]
    assert after.work.passes.sum() == before.work.passes.sum()
    assert len(after.passes) == len(before.passes) - 2


def test_micro_batches_share_the_work_and_each_reduces_as_before() -> None:
    before, after = model().skeleton, changed(Change(micro_batches=3))
    assert after.micro_batches == 3
    assert len(after.passes) == 3 * len(before.passes)
    assert after.work.passes.sum() == pytest.approx(before.work.passes.sum())
    assert sum(each.reduces for each in after.passes) == 3 * 4


def test_below_stage_2_only_the_last_micro_batch_reduces() -> None:
    after = changed(Change(stage=1), model(micro_batches=2))
    assert {each.micro_batch for each in after.passes if each.reduces} == {1}
    back = change_passes(
        replace(model(replace(HABITS, stage=1), micro_batches=2), skeleton=after), Change(stage=2)
    )
    assert {each.micro_batch for each in back.passes if each.reduces} == {0, 1}
    assert sum(each.reduces for each in back.passes) == 8


def test_even_ranks_work_as_long_as_the_median_one() -> None:
    after = changed(Change(even=True))
    assert (after.work.passes[:, :, 0] == after.work.passes[:, :, 1]).all()
    assert after.work.passes[0, 0, 0] == 1.5


def test_gradients_of_other_bytes_scale_the_reductions_alone() -> None:
    after = changed(Change(element_bytes_reduced=2))
    assert [unit.reduce_bytes for unit in after.units] == [4, 32, 32, 32]
    assert [unit.gather_bytes for unit in after.units] == [8, 64, 64, 64]


def test_from_stage_2_on_few_reductions_are_in_flight() -> None:
    assert change_policy(replace(HABITS, stage=0), Change(stage=2)).in_flight == DEFAULT_IN_FLIGHT
    assert change_policy(replace(HABITS, in_flight=3), Change(stage=2)).in_flight == 3
    assert change_policy(replace(HABITS, stage=2, prefetch=0), Change(stage=3)).prefetch == 1


@pytest.mark.parametrize("stage", range(4))
def test_without_a_change_the_habits_stay(stage: int) -> None:
    habits = replace(HABITS, stage=stage, prefetch=1 if stage == 3 else 0, updates_first=True)
    assert change_policy(habits, Change()) == habits
    assert change_policy(habits, Change(stage=stage)) == habits


def test_the_usual_changes_are_what_the_run_does_not_do() -> None:
    usual = usual_changes(model())
    assert not {Change(stage=3), Change(prefetch=1)} & set(usual)
    assert {Change(stage=2), Change(prefetch=0), Change(keep_after_forward="all")} <= set(usual)
    assert {Change(bandwidth_ratio=2.0), Change(bandwidth_ratio=0.5)} <= set(usual)
    assert Change(even=True) not in usual
    assert Change(even=True) in usual_changes(model(skew_ns=50))
    assert not any(each.prefetch is not None for each in usual_changes(model(replace(HABITS, stage=1))))


def test_passes_are_in_the_order_of_the_engine() -> None:
    passes = model().skeleton.passes
    assert [each.unit for each in passes] == [0, 1, 2, 3, 0, 3, 2, 1, 0]
    assert [each.reduces for each in passes] == [False] * 5 + [True] * 4
    assert [each.needs for each in passes] == [True] * 8 + [False]
    assert passes[4].phase is Phase.BACKWARD
