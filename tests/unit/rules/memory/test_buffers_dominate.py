"""buffers_dominate fires on more than six units of buffers, and leaves what a sharded step needs alone."""

from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, MIB, allocation, memory_run, part, phase, tenants, with_rank
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant
from zprof.rules.memory.buffers_dominate import buffers_dominate

BUFFERS = Tenant.COMMUNICATION_BUFFERS


def found(analysis: RunAnalysis) -> Finding:
    answer = buffers_dominate(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_buffers_of_the_wrong_size_are_named() -> None:
    finding = found(memory_run(tenants(buffers=80)))
    assert (finding.id, finding.cause) == ("ZP201", Cause.BUFFERS_DOMINATE)
    assert finding.confidence is Confidence.HIGH  # more than twice the 32 MiB of the model
    assert "80.0 MiB" in finding.sentence
    assert "need 24.0 MiB" in finding.sentence  # six units of 4 MiB
    # Six units may stay, two must; nothing falls below the 70 MiB that are left without any buffers.
    assert finding.saving_bytes == (56 * MIB, 72 * MIB)
    assert finding.saving_ns == (0, 0)


def test_what_a_step_needs_is_left_alone() -> None:
    assert buffers_dominate(memory_run(tenants(buffers=24)), None) is None


@pytest.mark.parametrize(("buffers", "fires"), [(27.8, False), (28, True)])
def test_the_boundary_is_a_twentieth_of_the_peak_beyond_six_units(buffers: float, *, fires: bool) -> None:
    """24 MiB are allowed, 50 MiB stand beside the buffers: 0.95 b = 26.5."""
    assert isinstance(buffers_dominate(memory_run(tenants(buffers=buffers)), None), Finding) == fires


@pytest.mark.parametrize(("activations", "fires"), [(63, True), (64, False)])
def test_a_small_share_counts_only_beyond_what_sharding_saves(activations: float, *, fires: bool) -> None:
    """40 MiB are 30 % of 133.  Sharding saves 96 MiB here; where it saves 30, they are more."""
    held = tenants(buffers=40, activations=activations)
    assert isinstance(buffers_dominate(memory_run(held), None), Finding) == fires
    states = {Tenant.PARAMETERS: 10 * MIB, Tenant.GRADIENTS: 0, Tenant.OPTIMIZER_STATE: 0}
    little = with_rank(memory_run(held), state_bytes=states)
    assert isinstance(buffers_dominate(little, None), Finding)


def test_another_phase_bounds_what_the_peak_can_fall() -> None:
    held = tenants(buffers=80)
    analysis = memory_run(held)
    optimizer = phase("optimizer", {**held, BUFFERS: 0, Tenant.TEMPORARY_BUFFERS: 72 * MIB})
    bounded = replace(analysis, memory=replace(analysis.memory, phases=(optimizer,)))
    assert found(bounded).saving_bytes == (10 * MIB, 10 * MIB)


def test_what_the_backend_allocates_is_not_held_against_the_program() -> None:
    analysis = with_rank(memory_run(tenants(buffers=40)), parts=(part(BUFFERS, "backend_scratch", 20),))
    assert buffers_dominate(analysis, None) is None
    assert found(memory_run(tenants(buffers=40))).confidence is Confidence.MEDIUM


def test_an_embedding_that_is_gathered_whole_counts_by_itself() -> None:
    held = tenants(buffers=44)
    embedding = allocation(12, BUFFERS, "embedding", sub="gathered_param")
    assert isinstance(buffers_dominate(memory_run(held), None), Finding)
    assert buffers_dominate(memory_run(held, top=(embedding,)), None) is None
    block = replace(embedding, module="layers.3")
    assert isinstance(buffers_dominate(memory_run(held, top=(block,)), None), Finding)


def test_a_whole_model_that_is_gathered_is_no_embedding() -> None:
    """A model of one unit: both its parameters and its gradients are whole."""
    whole = allocation(32, BUFFERS, "", sub="gathered_param")
    assert "36" not in found(memory_run(tenants(buffers=64), top=(whole,))).sentence


def test_a_model_without_numbered_blocks_is_its_own_unit() -> None:
    assert buffers_dominate(memory_run(tenants(buffers=64), modules=("encoder", "head")), None) is None
    assert isinstance(buffers_dominate(memory_run(tenants(buffers=240), modules=()), None), Finding)


def test_buckets_beside_gradients_in_ddp() -> None:
    facts = replace(FACTS, engine="ddp", stage=0)
    held = tenants(parameters=32, gradients=30, optimizer=64, buffers=32)
    finding = found(memory_run(held, facts=facts))
    assert finding.fix == "DistributedDataParallel(model, gradient_as_bucket_view=True)"
    # The forward has no gradients: there nothing is doubled, and it holds 30 MiB less.
    assert finding.saving_bytes == (15 * MIB, 30 * MIB)
    early = tenants(parameters=32, gradients=1, optimizer=64, buffers=32)
    assert buffers_dominate(memory_run(early, facts=facts), None) is None
    kept = memory_run(held, facts=facts, phases=(phase("forward", held), phase("backward", held)))
    assert buffers_dominate(kept, None) is None  # alive in the forward: retained_gradients
    view = tenants(parameters=32, gradients=32, optimizer=64, buffers=0)
    assert buffers_dominate(memory_run(view, facts=facts), None) is None


def test_buffers_that_rest_on_rules_are_no_certainty() -> None:
    analysis = memory_run(tenants(buffers=80))
    some = with_rank(analysis, parts=(part(BUFFERS, "nccl", 16, Basis.RULE), part(BUFFERS, "bucket", 64)))
    assert found(some).confidence is Confidence.MEDIUM
    all_of_it = with_rank(analysis, parts=(part(BUFFERS, "nccl", 80, Basis.RULE),))
    assert found(all_of_it).confidence is Confidence.LOW
    assert found(with_rank(analysis, upper_bound=True)).confidence is Confidence.MEDIUM


def test_unknown_facts_are_not_tested_where_buffers_are_large() -> None:
    facts = replace(FACTS, parameters=None)
    assert isinstance(buffers_dominate(memory_run(tenants(buffers=80), facts=facts), None), Gap)
    assert buffers_dominate(memory_run(tenants(buffers=8), facts=facts), None) is None


def test_tiny_models_and_single_ranks_are_silent() -> None:
    small = {tenant: size // 1000 for tenant, size in tenants(buffers=80).items()}
    assert buffers_dominate(memory_run(small), None) is None
    assert buffers_dominate(memory_run(tenants(buffers=80), ranks=1), None) is None
    assert buffers_dominate(memory_run(per_rank=()), None) is None


@pytest.mark.parametrize(
    ("engine", "word"),
    [("fsdp2", "fully_shard"), ("deepspeed", "reduce_bucket_size"), ("reference", "constant_buffers")],
)
def test_the_fix_is_the_engines(engine: str, word: str) -> None:
    fix = found(memory_run(tenants(buffers=80), facts=replace(FACTS, engine=engine))).fix
    assert word in fix
    assert ("fully_shard" in fix) == (engine == "fsdp2")


@pytest.mark.parametrize(("alone", "fires"), [(15, False), (15.9, False), (16, True), (18, True)])
def test_half_of_the_model_and_more_is_no_embedding(alone: float, *, fires: bool) -> None:
    """The model has 32 MiB.  58 MiB of buffers are too many, unless an embedding is gathered among them."""
    embedding = allocation(alone, BUFFERS, "embedding", sub="gathered_param")
    answer = buffers_dominate(memory_run(tenants(buffers=58), top=(embedding,)), None)
    assert isinstance(answer, Finding) == fires


def saving_little(analysis: RunAnalysis, mib: int) -> RunAnalysis:
    """Sharding saves three times as much."""
    states = {Tenant.PARAMETERS: mib * MIB, Tenant.GRADIENTS: 0, Tenant.OPTIMIZER_STATE: 0}
    return with_rank(analysis, state_bytes=states)


def test_on_the_thresholds() -> None:
    at_share = tenants(buffers=30, activations=40)  # 100 MiB in all
    assert found(memory_run(at_share)).confidence is Confidence.MEDIUM
    unknown = replace(FACTS, parameters=None)
    assert isinstance(buffers_dominate(memory_run(at_share, facts=unknown), None), Gap)
    at_excess = tenants(buffers=30, activations=60)  # 6 of 120 MiB beyond six units
    assert isinstance(buffers_dominate(saving_little(memory_run(at_excess), 5), None), Finding)
    assert found(memory_run(tenants(buffers=64))).confidence is Confidence.MEDIUM  # twice the model


def test_as_much_as_sharding_saves_is_not_more() -> None:
    held = tenants(buffers=39, activations=64)
    assert buffers_dominate(saving_little(memory_run(held), 13), None) is None
    assert isinstance(buffers_dominate(saving_little(memory_run(held), 12), None), Finding)
    none = memory_run(held, facts=replace(FACTS, stage=0))
    assert buffers_dominate(none, None) is None  # what saves nothing is not eaten up


def test_a_twentieth_of_the_peak_twice_in_ddp() -> None:
    held = tenants(parameters=30, gradients=5, optimizer=30, activations=20, temporary=5, buffers=10)
    analysis = memory_run(held, facts=replace(FACTS, engine="ddp", stage=0))
    assert found(analysis).saving_bytes == (2.5 * MIB, 5 * MIB)
