"""States of ranks against the law: one check a rank and state, and a gap where no law can be given."""

from dataclasses import replace

import pytest

from zprof.analysis.memory.state_checks import (
    COUNTERS,
    NOT_EXPLAINED,
    MeasuredStates,
    check_formulas,
    find_formula_gaps,
)
from zprof.analysis.zero_formulas import compute_state_formula, compute_tenant_formulas
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts

FACTS = TrainingFacts(
    engine="zero",
    stage=3,
    parameters=1_000,
    shard_ranks=2,
    parameter_bytes=4,
    gradient_bytes=4,
    optimizer_state_bytes=8,
)


def states(rank: int, parameters: int, gradients: int, optimizer: int, **more: int) -> MeasuredStates:
    sizes = (parameters, gradients, optimizer)
    names = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
    return MeasuredStates(rank=rank, bytes=dict(zip(names, sizes, strict=True)), **more)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("padding", [0, 3])
def test_the_law_of_each_state_is_that_of_all(stage: int, padding: int) -> None:
    facts = replace(FACTS, stage=stage, parameters=1_001, padding_elements=padding, step_counters=5)
    law, each = compute_state_formula(facts), compute_tenant_formulas(facts)
    assert law is not None
    assert [each[tenant].law_bytes for tenant in (Tenant.PARAMETERS, Tenant.GRADIENTS)] == [
        law.parameters,
        law.gradients,
    ]
    assert each[Tenant.OPTIMIZER_STATE].law_bytes == law.optimizer_state
    assert sum(one.padding_bytes for one in each.values()) == law.padding_bytes
    assert sum(one.scalar_bytes for one in each.values()) == law.scalar_bytes == 20


def test_terms_sum_to_what_was_measured() -> None:
    facts = replace(FACTS, padding_elements=4, step_counters=2)
    for check in check_formulas(facts, [states(0, 2_008, 2_100, 4_024), states(1, 2_008, 0, 4_024)]):
        terms = check.law_bytes + check.padding_bytes + check.scalar_bytes + check.unexplained_bytes
        assert terms == check.measured_bytes


def test_one_check_a_rank_and_state() -> None:
    checks = check_formulas(FACTS, [states(0, 2_000, 2_000, 4_000), states(1, 2_000, 2_000, 8_000)])
    assert [(check.rank, check.tenant) for check in checks] == [
        (rank, tenant)
        for rank in (0, 1)
        for tenant in (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
    ]
    assert [check.cause for check in checks[:5]] == [""] * 5
    assert checks[5].cause.startswith("equals 2 x the law")


def test_counters_that_nobody_stated_are_those_that_were_seen() -> None:
    check = check_formulas(FACTS, [states(0, 2_000, 2_000, 4_208, counter_bytes=208)])[2]
    assert (check.scalar_bytes, check.unexplained_bytes, check.cause) == (208, 0, COUNTERS)


def test_stated_counters_come_first() -> None:
    facts = replace(FACTS, step_counters=52)
    check = check_formulas(facts, [states(0, 2_000, 2_000, 4_208, counter_bytes=4)])[2]
    assert (check.scalar_bytes, check.unexplained_bytes) == (208, 0)


def test_padding_that_nobody_stated_is_the_same_in_every_state() -> None:
    padded = check_formulas(FACTS, [states(0, 2_024, 2_000, 4_048)])
    assert [check.cause for check in padded] == [
        "padding of shards to equal size: 6 elements in each state",
        "",
        "padding of shards to equal size: 6 elements in each state",
    ]
    different = check_formulas(FACTS, [states(0, 2_024, 2_000, 4_040)])
    assert [check.cause for check in different] == [NOT_EXPLAINED, "", NOT_EXPLAINED]


def test_shards_of_unequal_size_hold_the_law_together() -> None:
    checks = check_formulas(FACTS, [states(0, 2_040, 2_000, 4_000), states(1, 1_960, 2_000, 4_000)])
    causes = {(check.rank, check.tenant): check.cause for check in checks}
    assert causes[0, Tenant.PARAMETERS] == "shards of unequal size: all ranks together hold the law"
    assert causes[1, Tenant.PARAMETERS] == causes[0, Tenant.PARAMETERS]
    assert causes[0, Tenant.GRADIENTS] == ""


def test_ranks_that_own_whole_parameters_hold_as_many_step_counters() -> None:
    """ZeroRedundancyOptimizer: one large parameter on rank 0, five small ones on rank 1."""
    facts = replace(FACTS, stage=1, step_counters=5)
    measured = [
        states(0, 4_000, 4_000, 6_404, counter_bytes=4),
        states(1, 4_000, 4_000, 1_620, counter_bytes=20),
    ]
    rows = {
        check.rank: check
        for check in check_formulas(facts, measured)
        if check.tenant is Tenant.OPTIMIZER_STATE
    }
    assert [(rows[r].scalar_bytes, rows[r].unexplained_bytes) for r in (0, 1)] == [(4, 2_400), (20, -2_400)]
    assert {row.cause for row in rows.values()} == {"shards of unequal size: all ranks together hold the law"}


def test_padded_parameters_beside_states_of_unequal_size() -> None:
    """FSDP2: each rank's parameter is padded to the largest shard, the optimizer's states are not."""
    checks = check_formulas(FACTS, [states(0, 2_024, 2_024, 4_048), states(1, 2_024, 2_024, 3_952)])
    causes = [(check.rank, check.tenant, check.cause[:7]) for check in checks]
    assert causes == [
        (rank, tenant, "shards " if tenant is Tenant.OPTIMIZER_STATE else "padding")
        for rank in (0, 1)
        for tenant in (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
    ]


@pytest.mark.parametrize("others", [[], [(1_950,)], [(1_960,), (2_000,)]])
def test_unequal_shards_need_all_ranks_and_the_sum(others: list[tuple[int]]) -> None:
    measured = [states(0, 2_040, 2_000, 4_000)]
    measured += [states(rank, size, 2_000, 4_000) for rank, (size,) in enumerate(others, 1)]
    assert check_formulas(FACTS, measured)[0].cause == NOT_EXPLAINED


def test_a_state_without_a_known_size_has_no_check() -> None:
    facts = replace(FACTS, optimizer_state_bytes=None)
    measured = [states(0, 2_000, 2_000, 4_000)]
    assert [check.tenant for check in check_formulas(facts, measured)] == [
        Tenant.PARAMETERS,
        Tenant.GRADIENTS,
    ]
    (gap,) = find_formula_gaps(facts, measured)
    assert gap.reason == "no law of optimizer state: the bytes of an element are unknown"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("parameters", "some are frozen or lazy"),
        ("stage", "how the program shards"),
        ("shard_ranks", "over how many ranks"),
    ],
)
def test_no_law_is_a_gap_that_names_the_missing_fact(missing: str, said: str) -> None:
    facts = replace(FACTS, **{missing: None})
    measured = [states(0, 2_000, 2_000, 4_000)]
    assert check_formulas(facts, measured) == ()
    (gap,) = find_formula_gaps(facts, measured)
    assert said in gap.reason
    assert "parameters and gradients and optimizer state" in gap.reason


def test_nothing_measured_nothing_missing() -> None:
    assert find_formula_gaps(replace(FACTS, stage=None), []) == ()
    assert find_formula_gaps(FACTS, [states(0, 1, 1, 1)]) == ()
