"""Changes in words, those that are refused, and what they make of a schedule."""

from dataclasses import replace

import numpy as np
import pytest

from zprof.model.errors import BadInput
from zprof.model.whatif import Calibration, Change
from zprof.planner.whatif.calibration import CalibratedModel, split_shared_work
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

POLICY = EnginePolicy(
    stage=3, prefetch=1, keep="none", overlap_reduce=True, overlap_gather=True, in_flight=1 << 20
)


def model(policy: EnginePolicy = POLICY, *, micro_batches: int = 1, skew_ns: int = 0) -> CalibratedModel:
    """Four units on two ranks; each pass of the second rank takes 1 ns more than that of the first."""
    units = (
        UnitSize(name="root", gather_bytes=8, reduce_bytes=8, encloses=True),
        *(UnitSize(name=f"blocks.{n}", gather_bytes=64, reduce_bytes=64) for n in range(3)),
    )
    passes = list_passes(units, (3, 2, 1), micro_batches, True)
    one, count = np.ones((1, 2)), len(passes)
    ns = np.arange(1, 2 * count + 1, dtype=float).reshape(count, 1, 2)
    skeleton = StepPasses(
        units=units,
        passes=passes,
        work=PassWork(head=one, passes=ns, tail=one, between=one),
        ranks=(0, 1),
        steps=(0,),
        micro_batches=micro_batches,
    )
    summary = Calibration(
        units=4, passes=count, forward_ns=100, backward_ns=200, optimizer_ns=1, links=(),
        slowest_rank=1, skew_ns=skew_ns, prefetch=1, steps=1,
    )  # fmt: skip
    return CalibratedModel(
        skeleton=skeleton,
        habits=policy,
        costs=MessageCosts(launch_ns={}, pick_up_ns=0, queue_ns=0, wake_ns=0, lanes=False),
        link=Link(lines={}, seen={}, group_size=2),
        alone=count,
        summary=summary,
        reduced_element_bytes=4,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change(stage=2, prefetch=2, bandwidth_ratio=2.0), ("stage 2", "prefetch 2", "x2")),
        (Change(latency_ratio=3.0), ("x3",)),
        (Change(keep_after_forward="last"), ("last",)),
        (Change(shard_ranks=8, micro_batches=2), ("8", "2")),
        (Change(units_merged=3), ("3",)),
    ],
)
def test_a_change_is_described_with_its_values(change: Change, words: tuple[str, ...]) -> None:
    assert all(word in describe_change(change) for word in words)


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
def test_a_change_that_cannot_be_is_refused(change: Change) -> None:
    with pytest.raises(BadInput):
        refuse_change(change)


def test_passes_are_in_the_order_of_the_engine() -> None:
    passes = model().skeleton.passes
    assert [each.unit for each in passes] == [0, 1, 2, 3, 0, 3, 2, 1, 0]
    assert [each.reduces for each in passes] == [False] * 5 + [True] * 4
    assert [each.needs for each in passes] == [True] * 8 + [False]
    assert passes[4].phase is Phase.BACKWARD


def test_merged_units_carry_the_bytes_and_the_work_of_both() -> None:
    before, after = model().skeleton, change_passes(model(), Change(units_merged=2))
    assert [unit.gather_bytes for unit in after.units] == [8, 128, 64]
    assert after.work.passes.sum() == before.work.passes.sum()
    assert len(after.passes) == len(before.passes) - 2


def test_micro_batches_share_the_work_and_each_reduces_as_before() -> None:
    before, after = model().skeleton, change_passes(model(), Change(micro_batches=3))
    assert (after.micro_batches, len(after.passes)) == (3, 3 * len(before.passes))
    assert after.work.passes.sum() == pytest.approx(before.work.passes.sum())
    assert sum(each.reduces for each in after.passes) == 3 * 4


def test_below_stage_2_only_the_last_micro_batch_reduces() -> None:
    after = change_passes(model(micro_batches=2), Change(stage=1))
    assert {each.micro_batch for each in after.passes if each.reduces} == {1}
    one = replace(model(replace(POLICY, stage=1), micro_batches=2), skeleton=after)
    back = change_passes(one, Change(stage=2))
    assert [each.micro_batch for each in back.passes if each.reduces] == [0] * 4 + [1] * 4


def test_even_ranks_work_as_long_as_the_median_one() -> None:
    work = change_passes(model(), Change(even=True)).work.passes
    assert work[0].tolist() == [[1.5, 1.5]]


def test_gradients_of_other_bytes_scale_the_reductions_alone() -> None:
    units = change_passes(model(), Change(element_bytes_reduced=2)).units
    assert [(unit.gather_bytes, unit.reduce_bytes) for unit in units] == [(8, 4), *[(64, 32)] * 3]


def test_a_policy_changes_with_the_stage_and_else_stays() -> None:
    assert change_policy(replace(POLICY, stage=0), Change(stage=2)).in_flight == DEFAULT_IN_FLIGHT
    assert change_policy(replace(POLICY, in_flight=3), Change(stage=2)).in_flight == 3
    assert change_policy(replace(POLICY, stage=2, prefetch=0), Change(stage=3)).prefetch == 1
    for stage in range(4):
        policy = replace(POLICY, stage=stage, prefetch=1 if stage == 3 else 0, updates_first=True)
        assert change_policy(policy, Change()) == change_policy(policy, Change(stage=stage)) == policy


def test_the_usual_changes_are_what_the_run_does_not_do() -> None:
    usual = usual_changes(model())
    assert not {Change(stage=3), Change(prefetch=1), Change(even=True)} & set(usual)
    assert {Change(stage=2), Change(prefetch=0), Change(keep_after_forward="all")} <= set(usual)
    assert {Change(bandwidth_ratio=2.0), Change(bandwidth_ratio=0.5)} <= set(usual)
    assert Change(even=True) in usual_changes(model(skew_ns=50))
    assert not any(each.prefetch is not None for each in usual_changes(model(replace(POLICY, stage=1))))


@pytest.mark.parametrize(
    ("sizes", "alone", "shared", "known", "split"),
    [
        # Passes that share a stretch are told apart by what is known of others of their kind.
        ((8, 8), [4.0, np.nan, np.nan, 10.0], {(0, 0, 1, 3): 28.0}, 2, [4.0, 8.0, 20.0, 10.0]),
        # Where nothing is known they share by bytes, and a backward counts twice.
        ((8, 24), [np.nan] * 4, {(0, 0, 0, 4): 96.0}, 0, [8.0, 24.0, 48.0, 16.0]),
    ],
)
def test_shared_work_is_split(
    sizes: tuple[int, int],
    alone: list[float],
    shared: dict[tuple[int, int, int, int], float],
    known: int,
    split: list[float],
) -> None:
    units = tuple(UnitSize(name=str(n), gather_bytes=size, reduce_bytes=size) for n, size in enumerate(sizes))
    passes = list_passes(units, (1, 0), 1, True)
    filled, found = split_shared_work(np.array(alone).reshape(4, 1, 1), shared, passes, units)
    assert (found, filled[:, 0, 0].tolist()) == (known, split)
