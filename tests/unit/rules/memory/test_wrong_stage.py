"""wrong_stage: measured against a lower stage, or guessed from the law; nobody is accused of other work."""

from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, GIB, MIB, gpu, memory_run, part, phase, tenants, with_rank
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.memory import MemoryTimeline
from zprof.model.tenants import Tenant
from zprof.rules.memory.model_structure import read_sharding
from zprof.rules.memory.wrong_stage import wrong_stage

STAGE_2 = replace(FACTS, stage=2)
GATHERED = Tenant.COMMUNICATION_BUFFERS


def found(analysis: RunAnalysis, baseline: RunAnalysis | None = None) -> Finding:
    answer = wrong_stage(analysis, baseline)
    assert isinstance(answer, Finding), answer
    return answer


def test_a_higher_stage_with_a_higher_peak() -> None:
    """Support cases: stage 3 at 56.1 GB where stage 2 is at 52.4."""
    finding = found(memory_run(tenants(buffers=30)), memory_run(tenants(buffers=20), facts=STAGE_2))
    assert finding.id == "ZP206"
    assert finding.confidence is Confidence.HIGH
    assert finding.saving_bytes == (10 * MIB, 10 * MIB)
    assert "stage 3 peaks at 80.0 MiB, not below stage 2's 70.0 MiB" in finding.sentence


@pytest.mark.parametrize(("buffers", "fires"), [(18.7, True), (18.5, False)])
def test_the_boundary_is_two_hundredths_below(buffers: float, *, fires: bool) -> None:
    """70 MiB less 2 % is 68.6; stage 3 holds 50 MiB beside its buffers."""
    answer = wrong_stage(memory_run(tenants(buffers=buffers)), memory_run(tenants(buffers=20), facts=STAGE_2))
    assert isinstance(answer, Finding) == fires


@pytest.mark.parametrize(
    "other",
    [
        {"parameters": 9_000_000},
        {"micro_batches": 4},
    ],
)
def test_other_work_is_no_comparison(other: dict[str, int]) -> None:
    before = memory_run(tenants(buffers=2), facts=replace(STAGE_2, **other))  # type: ignore[arg-type]
    assert wrong_stage(memory_run(tenants(buffers=30)), before) is None


def test_another_batch_or_number_of_ranks_is_no_comparison() -> None:
    mine = memory_run(tenants(buffers=30, activations=26))
    assert wrong_stage(mine, memory_run(tenants(buffers=2), facts=STAGE_2)) is None
    assert wrong_stage(memory_run(), memory_run(tenants(buffers=2), facts=STAGE_2, ranks=2)) is None


def test_a_quarter_more_activations_is_the_same_batch() -> None:
    before = memory_run(tenants(buffers=2), facts=STAGE_2)
    assert isinstance(wrong_stage(memory_run(tenants(buffers=30, activations=25)), before), Finding)


def test_two_hundredths_below_is_as_high() -> None:
    """Stage 2 peaks at 100 MiB; 98 and one byte less."""
    before = memory_run(tenants(activations=20, buffers=50), facts=STAGE_2)
    assert isinstance(wrong_stage(memory_run(tenants(activations=20, buffers=48)), before), Finding)
    lower = tenants(activations=20, buffers=48)
    lower[GATHERED] -= 1
    assert wrong_stage(memory_run(lower), before) is None


def test_the_largest_activations_of_any_phase_are_compared() -> None:
    """At its peak a run may be past its activations: the batch is the same if some phase holds as many."""
    before = memory_run(tenants(buffers=2), facts=STAGE_2)
    late = with_rank(before, tenants=tenants(activations=0, buffers=22))
    assert isinstance(wrong_stage(memory_run(), late), Finding)
    phases = (phase("forward", tenants(activations=8, buffers=2)),)
    curve = MemoryTimeline(rank=0, device="cpu", time_ns=(0, 5), tenants={"activations": (0, 20 * MIB)})
    blind = replace(late, memory=replace(late.memory, phases=phases))
    assert wrong_stage(memory_run(), blind) is None
    seen = replace(blind, memory=replace(blind.memory, timelines=(curve,)))
    assert isinstance(wrong_stage(memory_run(), seen), Finding)


def test_a_higher_baseline_says_nothing() -> None:
    """Stage 2 against stage 3: a higher peak is what that costs."""
    assert wrong_stage(memory_run(tenants(buffers=30), facts=STAGE_2), memory_run()) is None


def test_what_cannot_be_compared_is_judged_by_the_law() -> None:
    run = gathered(25, buffers=26)
    lower = memory_run(tenants(buffers=60), facts=STAGE_2)
    assert wrong_stage(run, lower) is None  # measured: stage 3 is below it
    assert found(run, memory_run(tenants(buffers=60), facts=STAGE_2, ranks=2)).confidence is Confidence.LOW
    plain = memory_run(tenants(buffers=60), facts=replace(FACTS, stage=0))
    assert found(run, plain).confidence is Confidence.LOW  # below stage 0 says nothing of stage 2


def gathered(mib: float, **held: float) -> RunAnalysis:
    return with_rank(memory_run(tenants(**held)), parts=(part(GATHERED, "gathered_param", mib),))


@pytest.mark.parametrize(("mib", "fires"), [(23.9, False), (24.1, True)])
def test_gathered_units_that_eat_up_what_is_freed(mib: float, *, fires: bool) -> None:
    """Three quarters of 32 MiB are freed."""
    answer = wrong_stage(gathered(mib, buffers=26), None)
    assert isinstance(answer, Finding) == fires
    if isinstance(answer, Finding):
        assert answer.confidence is Confidence.LOW
        assert "half as many bytes again" in answer.sentence


@pytest.mark.parametrize(("activations", "fires"), [(430, False), (440, True)])
def test_parameters_that_are_small_beside_the_peak(activations: float, *, fires: bool) -> None:
    """24 MiB are a twentieth of 480."""
    assert isinstance(wrong_stage(gathered(4, activations=activations), None), Finding) == fires


def test_a_device_with_room_for_stage_2_makes_it_likely() -> None:
    roomy = with_rank(gpu(tenants(activations=500), device_total_bytes=GIB), parts=())
    assert found(roomy).confidence is Confidence.MEDIUM
    full = with_rank(gpu(tenants(activations=500), device_total_bytes=600 * MIB), parts=())
    assert found(full).confidence is Confidence.LOW


@pytest.mark.parametrize(("parameters", "fires"), [(41, False), (43, True)])
def test_frozen_parameters_need_stage_3(parameters: float, *, fires: bool) -> None:
    """42 MiB beside them."""
    held = tenants(parameters=parameters, gradients=0, optimizer=4, activations=20, buffers=16)
    answer = wrong_stage(memory_run(held, facts=STAGE_2), None)
    assert isinstance(answer, Finding) == fires
    if isinstance(answer, Finding):
        assert "stage 3 leaves a share of 1/4" in answer.sentence
        assert answer.confidence is Confidence.MEDIUM


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_healthy_stages_are_left_alone(stage: int) -> None:
    assert wrong_stage(memory_run(facts=replace(FACTS, stage=stage)), None) is None


def test_unknown_is_not_tested_and_one_rank_has_no_stage() -> None:
    assert isinstance(wrong_stage(memory_run(facts=replace(FACTS, stage=None)), None), Gap)
    assert wrong_stage(memory_run(ranks=1), None) is None
    assert wrong_stage(memory_run(per_rank=()), None) is None


def test_two_sizes_on_the_wire_are_tested_with_the_larger_element() -> None:
    """FSDP2 that gathers in 16 bit and reduces in 32 has no one number of bytes on the wire."""
    mixed = memory_run(facts=replace(FACTS, communication_bytes=None, parameter_bytes=2, gradient_bytes=4))
    assert wrong_stage(mixed, None) is None
    sharding = read_sharding(mixed)
    assert sharding is not None
    assert sharding.wire_bytes == 4 * (FACTS.parameters or 0)
    nothing = replace(FACTS, communication_bytes=None, parameter_bytes=None, gradient_bytes=None)
    assert isinstance(wrong_stage(memory_run(facts=nothing), None), Gap)


def test_on_the_thresholds_against_a_baseline() -> None:
    """2 % below 100 MiB, and activations a quarter larger."""
    before = memory_run(tenants(buffers=50), facts=STAGE_2)
    assert isinstance(wrong_stage(memory_run(tenants(buffers=48)), before), Finding)
    mine = memory_run(tenants(buffers=30, activations=25))
    assert found(mine, memory_run(tenants(buffers=2), facts=STAGE_2)).confidence is Confidence.HIGH


def test_on_the_thresholds_of_the_law() -> None:
    assert isinstance(wrong_stage(gathered(24, buffers=26), None), Finding)
    assert wrong_stage(gathered(4, activations=434), None) is None  # 24 of 480 MiB
    one = {"parameters": 1.0, "gradients": 0, "optimizer": 0, "activations": 0, "temporary": 0, "buffers": 0}
    assert isinstance(wrong_stage(gathered(24, **one), None), Finding)  # a peak of 1 MiB
    assert wrong_stage(gathered(24, **(one | {"parameters": 0.99})), None) is None
    half = tenants(parameters=42, gradients=0, optimizer=4, activations=20, buffers=16)
    assert isinstance(wrong_stage(memory_run(half, facts=STAGE_2), None), Finding)


def test_two_ranks_can_shard() -> None:
    two = memory_run(tenants(buffers=26), facts=replace(FACTS, shard_ranks=2), ranks=2)
    parts = (part(GATHERED, "gathered_param", 17),)
    assert isinstance(wrong_stage(with_rank(two, parts=parts), None), Finding)


@pytest.mark.parametrize(("total_mib", "sure"), [(712.5, Confidence.MEDIUM), (712, Confidence.LOW)])
def test_four_fifths_of_the_device_are_room_for_stage_2(total_mib: float, sure: Confidence) -> None:
    """546 MiB, and 24 more."""
    run = with_rank(gpu(tenants(activations=500), device_total_bytes=int(total_mib * MIB)), parts=())
    assert found(run).confidence is sure
