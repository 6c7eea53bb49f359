"""Changes that are refused, and what the others make of the engine's policy and of a step's passes."""

import numpy as np
import pytest
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.plan import Change
from zprof.step.prediction import change_policy, refuse_change, refuse_merging
from zprof.step.schedule import EnginePolicy, PassPhase, UnitSize, list_passes
from zprof.step.unit_calibration import split_shared_work
from zprof.step.units import DEFAULT_IN_FLIGHT

POLICY = EnginePolicy(
    stage=3, prefetch=1, keep="none", overlap_reduce=True, overlap_gather=True, in_flight=1 << 20
)


def units(*sizes: int, root: bool = False) -> tuple[UnitSize, ...]:
    return tuple(
        UnitSize(name=str(n), gather_bytes=size, reduce_bytes=size, encloses=root and n == 0)
        for n, size in enumerate(sizes)
    )


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


def test_more_units_than_there_are_cannot_be_merged() -> None:
    refuse_merging(Change(units_merged=4), 4)
    with pytest.raises(BadInput, match="5"):
        refuse_merging(Change(units_merged=5), 4)


def test_a_policy_changes_with_the_stage_and_else_stays() -> None:
    assert change_policy(replace(POLICY, stage=0), Change(stage=2)).in_flight == DEFAULT_IN_FLIGHT
    assert change_policy(replace(POLICY, in_flight=3), Change(stage=2)).in_flight == 3
    assert change_policy(replace(POLICY, stage=2, prefetch=0), Change(stage=3)).prefetch == 1
    for stage in range(4):
        policy = replace(POLICY, stage=stage, prefetch=1 if stage == 3 else 0, updates_first=True)
        assert change_policy(policy, Change()) == change_policy(policy, Change(stage=stage)) == policy


def test_passes_are_in_the_order_of_the_engine() -> None:
    passes = list_passes(units(8, 64, 64, 64, root=True), (3, 2, 1), 1, True)
    assert [each.unit for each in passes] == [0, 1, 2, 3, 0, 3, 2, 1, 0]
    assert [each.reduces for each in passes] == [False] * 5 + [True] * 4
    assert [each.needs for each in passes] == [True] * 8 + [False]
    assert passes[4].phase is PassPhase.BACKWARD


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
    passes = list_passes(units(*sizes), (1, 0), 1, True)
    filled, found = split_shared_work(np.array(alone).reshape(4, 1, 1), shared, passes, units(*sizes))
    assert (found, filled[:, 0, 0].tolist()) == (known, split)
