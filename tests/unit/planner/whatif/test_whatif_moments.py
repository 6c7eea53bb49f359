"""Who holds what at the moments of a step: closed forms of a model of equal units."""

import numpy as np
import pytest
from msgspec.structs import replace

from zprof.model.tenants import Tenant
from zprof.planner.whatif import BytesByTenant, MemorySizes, list_moments
from zprof.step.schedule import EnginePolicy, UnitSize, list_passes
from zprof.step.unit_replay import PassWork, StepPasses

ROOT, UNIT, BLOCKS, RANKS = 10.0, 100.0, 4, 2
WHOLE = ROOT + BLOCKS * UNIT
KEPT = 40.0
SIZES = MemorySizes(gradients=WHOLE, ranks=RANKS, activations=KEPT, scratch=False)
POLICY = EnginePolicy(stage=3, prefetch=1, keep="none", overlap_reduce=True, overlap_gather=True, in_flight=2)
BUFFERS = Tenant.COMMUNICATION_BUFFERS


def moments(
    policy: EnginePolicy, sizes: MemorySizes = SIZES, micro_batches: int = 1, phase: str | None = None
) -> list[BytesByTenant]:
    units = (
        UnitSize(name="root", gather_bytes=ROOT, reduce_bytes=ROOT, encloses=True),
        *(UnitSize(name=f"blocks.{n}", gather_bytes=UNIT, reduce_bytes=UNIT) for n in range(BLOCKS)),
    )
    passes = list_passes(units, (4, 3, 2, 1), micro_batches, True)
    none = np.zeros((1, 1))
    work = PassWork(head=none, passes=np.zeros((len(passes), 1, 1)), tail=none, between=none)
    skeleton = StepPasses(
        units=units, passes=passes, work=work, ranks=(0,), steps=(0,), micro_batches=micro_batches
    )
    return [held for name, held in list_moments(skeleton, policy, sizes) if phase in (None, name)]


def highest(policy: EnginePolicy, *, scratch: bool = False) -> BytesByTenant:
    held = moments(policy, replace(SIZES, scratch=scratch))
    return max(held, key=lambda each: sum(each.values()))


@pytest.mark.parametrize(
    ("stage", "scratch", "buffers", "gradients", "activations"),
    [
        # The root, a unit, the one ahead and two reductions.
        (3, False, ROOT + 2 * UNIT + 2 * UNIT, 2 * UNIT / RANKS + UNIT, KEPT / BLOCKS),
        (2, False, 2 * UNIT, 3 * UNIT / RANKS + UNIT, 0.0),
        (2, True, 3 * UNIT, 3 * UNIT / RANKS + UNIT, 0.0),
        (1, False, 0.0, WHOLE, KEPT),
        (0, False, 0.0, WHOLE, KEPT),
    ],
)
def test_the_highest_moment_of_a_stage(
    stage: int, scratch: bool, buffers: float, gradients: float, activations: float
) -> None:
    peak = highest(replace(POLICY, stage=stage), scratch=scratch)
    assert (peak[BUFFERS], peak[Tenant.GRADIENTS]) == (buffers, gradients)
    assert peak[Tenant.ACTIVATIONS] == activations


def test_without_prefetch_one_unit_less_is_gathered() -> None:
    ahead, alone = (moments(replace(POLICY, prefetch=count), phase="forward") for count in (1, 0))
    assert ahead[0][BUFFERS] - alone[0][BUFFERS] == UNIT
    assert ahead[-1][BUFFERS] == alone[-1][BUFFERS] == ROOT + UNIT


def test_units_that_stay_are_all_there_when_the_backward_starts() -> None:
    assert max(each[BUFFERS] for each in moments(replace(POLICY, keep="all"))) >= WHOLE


def test_with_accumulation_shards_of_all_gradients_are_there_in_the_forward() -> None:
    found = moments(POLICY, micro_batches=2, phase="forward")
    assert {held[Tenant.GRADIENTS] for held in found} == {WHOLE / RANKS}


@pytest.mark.parametrize("scratch", [True, False])
def test_keeping_all_lowers_the_peak_only_where_a_running_gather_takes_scratch(scratch: bool) -> None:
    """As the engine shows on gloo: no gather runs in the backward then, at the moment of the peak."""
    kept, gathered = (
        sum(highest(replace(POLICY, keep=keep), scratch=scratch).values()) for keep in ("all", "none")
    )
    assert (kept < gathered) == scratch
