"""replicated_state: whole states on several ranks, by plan (stage 0) or against the stage."""

from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, GIB, MIB, gpu, memory_run, tenants, with_rank
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.model.tenants import Tenant
from zprof.rules.memory.replicated_state import replicated_state

WHOLE = {Tenant.PARAMETERS: 32 * MIB, Tenant.GRADIENTS: 32 * MIB, Tenant.OPTIMIZER_STATE: 64 * MIB}
HELD = tenants(parameters=32, gradients=32, optimizer=64, activations=10, temporary=0, buffers=0)
DDP = replace(FACTS, engine="ddp", stage=0)


def replicated(held: dict[Tenant, int] | None = None, **options: object) -> RunAnalysis:
    return with_rank(memory_run(held or HELD, facts=DDP, **options), state_bytes=WHOLE)  # type: ignore[arg-type]


def found(analysis: RunAnalysis) -> Finding:
    answer = replicated_state(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_data_parallel_states_are_named() -> None:
    finding = found(replicated())
    assert finding.id == "ZP205"
    assert finding.confidence is Confidence.MEDIUM
    assert "each of 4 ranks keeps all 128.0 MiB" in finding.sentence
    assert "stage 1) takes 48.0 MiB" in finding.sentence
    # Three quarters of 128 MiB at most, less the eight units of 4 MiB that stage 3 needs at least.
    assert finding.saving_bytes == (64 * MIB, 96 * MIB)
    assert "ZeroRedundancyOptimizer" in finding.fix
    assert "half as many again" in finding.fix


def test_two_ranks_free_half() -> None:
    assert found(replicated(ranks=2)).saving_bytes == (32 * MIB, 64 * MIB)


@pytest.mark.parametrize(("activations", "sure"), [(30, Confidence.MEDIUM), (34, Confidence.LOW)])
def test_four_fifths_of_the_peak_make_it_likely(activations: float, sure: Confidence) -> None:
    """128 MiB are four fifths of 160."""
    assert found(replicated({**HELD, Tenant.ACTIVATIONS: int(activations * MIB)})).confidence is sure


def test_a_device_with_room_makes_it_a_choice() -> None:
    run = replace(gpu(HELD, device_total_bytes=80 * GIB), training=DDP)
    finding = found(with_rank(run, state_bytes=WHOLE))
    assert (finding.confidence, finding.severity) == (Confidence.LOW, Severity.LOW)
    full = replace(gpu(HELD, device_total_bytes=200 * MIB), training=DDP)
    assert found(with_rank(full, state_bytes=WHOLE)).confidence is Confidence.MEDIUM


def test_a_rank_whose_states_nobody_knows_excuses_no_other() -> None:
    analysis = replicated()
    *known, last = analysis.memory.per_rank
    ranks = (*known, replace(last, state_bytes=None))
    finding = found(replace(analysis, memory=replace(analysis.memory, per_rank=ranks)))
    assert finding.saving_bytes == found(analysis).saving_bytes


def test_ranks_that_differ_are_no_replicas() -> None:
    analysis = replicated()
    first, *others = analysis.memory.per_rank
    odd = replace(first, state_bytes={**WHOLE, Tenant.OPTIMIZER_STATE: 48 * MIB})
    assert replicated_state(
        replace(analysis, memory=replace(analysis.memory, per_rank=(odd, *others))), None
    ) is None  # fmt: skip


def test_states_that_should_be_sharded_and_are_not() -> None:
    analysis = with_rank(memory_run(HELD, facts=replace(FACTS, stage=2)), state_bytes=WHOLE)
    finding = found(analysis)
    assert finding.confidence is Confidence.HIGH
    assert finding.sentence.startswith(
        "optimizer state and gradients should be sharded over 4 ranks in stage 2"
    )
    assert finding.saving_bytes == (36 * MIB, 72 * MIB)  # 96 MiB where 24 are its share


@pytest.mark.parametrize(("held_mib", "fires"), [(57, False), (58, True)])
def test_the_boundary_is_nine_tenths_of_the_whole(held_mib: int, *, fires: bool) -> None:
    """0.9 x 64 MiB = 57.6."""
    states = {Tenant.OPTIMIZER_STATE: held_mib * MIB}
    run = with_rank(memory_run(HELD, facts=replace(FACTS, stage=1)), state_bytes=states)
    assert isinstance(replicated_state(run, None), Finding) == fires


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_states_of_the_law_are_left_alone(stage: int) -> None:
    law = {
        Tenant.PARAMETERS: (8 if stage == 3 else 32) * MIB,
        Tenant.GRADIENTS: (8 if stage >= 2 else 32) * MIB,
        Tenant.OPTIMIZER_STATE: 16 * MIB,
    }
    run = with_rank(memory_run(facts=replace(FACTS, stage=stage)), state_bytes=law)
    assert replicated_state(run, None) is None


def test_unknown_is_not_tested() -> None:
    gap = replicated_state(memory_run(HELD, facts=replace(FACTS, stage=None)), None)
    assert isinstance(gap, Gap)
    assert isinstance(replicated_state(memory_run(facts=replace(FACTS, parameters=None)), None), Gap)
    assert isinstance(replicated_state(with_rank(replicated(), state_bytes=None), None), Gap)


def test_one_rank_replicates_nothing() -> None:
    assert replicated_state(replicated(ranks=1), None) is None
    assert replicated_state(memory_run(per_rank=()), None) is None
    split = replace(DDP, model_parallel_ranks=4)
    assert replicated_state(with_rank(memory_run(HELD, facts=split), state_bytes=WHOLE), None) is None


def with_states(analysis: RunAnalysis, **mib: float) -> RunAnalysis:
    """The same where the ranks' states are these."""
    return with_rank(analysis, state_bytes={Tenant(name): int(size * MIB) for name, size in mib.items()})


@pytest.mark.parametrize(("optimizer", "fires"), [(48, True), (47.9, False), (52, True), (52.1, False)])
def test_ranks_within_two_hundredths_are_replicas(optimizer: float, *, fires: bool) -> None:
    """100 MiB on the others; 52 are within 2 % of 102."""
    analysis = with_states(replicated(), parameters=25, gradients=25, optimizer_state=50)
    first, *others = analysis.memory.per_rank
    assert first.state_bytes is not None
    odd = replace(first, state_bytes={**first.state_bytes, Tenant.OPTIMIZER_STATE: int(optimizer * MIB)})
    run = replace(analysis, memory=replace(analysis.memory, per_rank=(odd, *others)))
    assert isinstance(replicated_state(run, None), Finding) == fires


@pytest.mark.parametrize(("optimizer", "fires"), [(8, True), (7.9, False)])
def test_a_twentieth_of_the_peak_is_worth_it(optimizer: float, *, fires: bool) -> None:
    """Three quarters of 8 MiB are 6 of 120."""
    held = tenants(parameters=10, gradients=10, optimizer=20, activations=70, temporary=5, buffers=5)
    run = with_states(memory_run(held, facts=DDP), optimizer_state=optimizer)
    assert isinstance(replicated_state(run, None), Finding) == fires


@pytest.mark.parametrize(
    ("total", "sure"), [(270, Confidence.MEDIUM), (276, Confidence.MEDIUM), (277, Confidence.LOW)]
)
def test_half_of_the_device_is_room(total: int, sure: Confidence) -> None:
    """Beside a peak of 138 MiB."""
    run = replace(gpu(HELD, device_total_bytes=total * MIB), training=DDP)
    assert found(with_rank(run, state_bytes=WHOLE)).confidence is sure


def test_four_fifths_of_the_peak_themselves_make_it_likely() -> None:
    assert found(replicated({**HELD, Tenant.ACTIVATIONS: 32 * MIB})).confidence is Confidence.MEDIUM


@pytest.mark.parametrize(("held_mib", "fires"), [(72, True), (71.9, False)])
def test_nine_tenths_of_the_whole_are_all_of_it(held_mib: float, *, fires: bool) -> None:
    facts = replace(FACTS, stage=1, parameters=10 * MIB)  # 80 MiB of optimizer state
    run = with_states(memory_run(HELD, facts=facts), optimizer_state=held_mib)
    assert isinstance(replicated_state(run, None), Finding) == fires
