"""Who holds what at the moments of a step: closed forms of a model of equal units."""

from dataclasses import replace

import numpy as np

from zprof.model.tenants import Tenant
from zprof.planner.whatif.engine_policy import EnginePolicy
from zprof.planner.whatif.memory import BytesByTenant, MemorySizes, list_moments
from zprof.planner.whatif.passes import PassWork, StepPasses, UnitSize, list_passes

ROOT, UNIT, BLOCKS, RANKS = 10.0, 100.0, 4, 2
WHOLE = ROOT + BLOCKS * UNIT
KEPT = 40.0
SIZES = MemorySizes(gradients=WHOLE, ranks=RANKS, activations=KEPT, scratch=False)
HABITS = EnginePolicy(stage=3, prefetch=1, keep="none", overlap_reduce=True, overlap_gather=True, in_flight=2)


def skeleton(micro_batches: int = 1) -> StepPasses:
    units = (
        UnitSize(name="root", gather_bytes=ROOT, reduce_bytes=ROOT, encloses=True),
        *(UnitSize(name=f"blocks.{n}", gather_bytes=UNIT, reduce_bytes=UNIT) for n in range(BLOCKS)),
    )
    passes = list_passes(units, (4, 3, 2, 1), micro_batches, True)
    none = np.zeros((1, 1))
    work = PassWork(head=none, passes=np.zeros((len(passes), 1, 1)), tail=none, between=none)
    return StepPasses(
        units=units, passes=passes, work=work, ranks=(0,), steps=(0,), micro_batches=micro_batches
    )


def highest(habits: EnginePolicy, sizes: MemorySizes = SIZES, micro_batches: int = 1) -> BytesByTenant:
    held = [held for _, held in list_moments(skeleton(micro_batches), habits, sizes)]
    return max(held, key=lambda each: sum(each.values()))


def test_stage_3_has_the_root_the_unit_and_the_one_ahead() -> None:
    """In the backward of the second block from the end: two shards, and a whole unit of gradients."""
    peak = highest(HABITS)
    assert peak[Tenant.COMMUNICATION_BUFFERS] == ROOT + 2 * UNIT + 2 * UNIT
    assert peak[Tenant.GRADIENTS] == 2 * UNIT / RANKS + UNIT
    assert peak[Tenant.ACTIVATIONS] == KEPT / BLOCKS


def test_without_prefetch_one_unit_less_is_gathered() -> None:
    forward = [held for phase, held in list_moments(skeleton(), HABITS, SIZES) if phase == "forward"]
    without = replace(HABITS, prefetch=0)
    alone = [held for phase, held in list_moments(skeleton(), without, SIZES) if phase == "forward"]
    first = Tenant.COMMUNICATION_BUFFERS
    assert forward[0][first] - alone[0][first] == UNIT
    assert forward[-1][first] == alone[-1][first] == ROOT + UNIT


def test_stage_2_gathers_nothing_and_has_two_reductions_in_flight() -> None:
    peak = highest(replace(HABITS, stage=2))
    assert peak[Tenant.COMMUNICATION_BUFFERS] == 2 * UNIT
    assert peak[Tenant.GRADIENTS] == 3 * UNIT / RANKS + UNIT


def test_stages_0_and_1_keep_whole_gradients_and_no_buckets() -> None:
    for stage in (0, 1):
        peak = highest(replace(HABITS, stage=stage))
        assert peak[Tenant.GRADIENTS] == WHOLE
        assert peak[Tenant.COMMUNICATION_BUFFERS] == 0
        assert peak[Tenant.ACTIVATIONS] == KEPT


def test_units_that_stay_are_all_there_when_the_backward_begins() -> None:
    held = [held for phase, held in list_moments(skeleton(), replace(HABITS, keep="all"), SIZES)]
    assert max(each[Tenant.COMMUNICATION_BUFFERS] for each in held) >= WHOLE


def test_with_accumulation_shards_of_all_gradients_are_there_in_the_forward() -> None:
    phases = [held for phase, held in list_moments(skeleton(2), HABITS, SIZES) if phase == "forward"]
    assert {held[Tenant.GRADIENTS] for held in phases} == {WHOLE / RANKS}


def test_scratch_counts_where_the_backend_takes_any() -> None:
    more = highest(replace(HABITS, stage=2), replace(SIZES, scratch=True))
    assert more[Tenant.COMMUNICATION_BUFFERS] == 3 * UNIT


def test_keeping_all_lowers_the_peak_where_a_running_gather_takes_scratch_and_only_there() -> None:
    """As the engine shows on gloo: no gather runs in the backward then, at the moment of the peak."""

    def peak(keep: str, *, scratch: bool) -> float:
        held = highest(replace(HABITS, keep=keep), replace(SIZES, scratch=scratch))
        return sum(held.values())

    assert peak("all", scratch=True) < peak("none", scratch=True)
    assert peak("all", scratch=False) >= peak("none", scratch=False)
