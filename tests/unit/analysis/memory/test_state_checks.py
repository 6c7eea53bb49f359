"""Measured states against the ZeRO formula; a cause is named where it gives the bytes to 1 %."""

import pytest
from msgspec.structs import replace

from zprof.analysis.memory.state_checks import (
    COUNTERS,
    PADDING,
    MeasuredStates,
    StateDifference,
    check_formulas,
    explain_difference,
    find_formula_gaps,
)
from zprof.model.memory import NOT_EXPLAINED
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts

STATES = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
PARAMETERS = StateDifference(
    tenant=Tenant.PARAMETERS,
    formula_bytes=100_000,
    padding_bytes=0,
    scalar_bytes=0,
    measured_bytes=100_000,
    element_bytes=4,
    ranks=4,
    sharded=True,
)
GRADIENTS = replace(PARAMETERS, tenant=Tenant.GRADIENTS)
STATE = replace(PARAMETERS, tenant=Tenant.OPTIMIZER_STATE, element_bytes=8)


def test_stated_additions_are_the_cause() -> None:
    assert explain_difference(PARAMETERS) == ""
    assert explain_difference(replace(STATE, padding_bytes=64, measured_bytes=100_064)) == PADDING
    assert explain_difference(replace(STATE, scalar_bytes=20, measured_bytes=100_020)) == COUNTERS
    both = explain_difference(replace(STATE, padding_bytes=64, scalar_bytes=20, measured_bytes=100_084))
    assert PADDING in both
    assert COUNTERS in both


EXPLAINED = {
    "replicated": replace(PARAMETERS, measured_bytes=400_000),
    "replicated, within 1 %": replace(PARAMETERS, measured_bytes=403_900),
    "replicated, beside padding and counters": replace(
        STATE, formula_bytes=1_000, padding_bytes=100, scalar_bytes=400, measured_bytes=4_800
    ),
    "sharded beyond the formula": replace(STATE, ranks=8, sharded=False, measured_bytes=12_500),
    "a copy of the parameters": replace(PARAMETERS, measured_bytes=200_000),
    "a copy of the gradients": replace(GRADIENTS, measured_bytes=200_000),
    "a copy of the state": replace(STATE, measured_bytes=200_000),
    "buffers are not counted": replace(PARAMETERS, measured_bytes=95_000, buffer_bytes=5_000),
    "blocks are rounded up": replace(PARAMETERS, measured_bytes=103_000, rounding_bytes=3_000),
    "padding that another state shows": replace(PARAMETERS, measured_bytes=100_024, excess_elements=6),
    "no gradients": replace(GRADIENTS, measured_bytes=0),
    "no parameters": replace(PARAMETERS, measured_bytes=0),
}
UNEXPLAINED = {
    "replicated, not within 1 %": replace(PARAMETERS, measured_bytes=404_100),
    "four times what nobody shards": replace(PARAMETERS, measured_bytes=400_000, sharded=False),
    "an eighth of what is sharded": replace(STATE, ranks=8, measured_bytes=12_500),
    "padding where nothing is sharded": replace(
        PARAMETERS, measured_bytes=100_024, excess_elements=6, sharded=False
    ),
    "a formula of no bytes": replace(PARAMETERS, formula_bytes=0, measured_bytes=7),
} | {
    f"{size} bytes": replace(
        PARAMETERS, element_bytes=8, measured_bytes=size, buffer_bytes=9, rounding_bytes=9
    )
    for size in (50_000, 97_000, 103_000, 150_000, 300_000)
}


def test_each_difference_has_a_cause_of_its_own() -> None:
    causes = {name: explain_difference(state) for name, state in EXPLAINED.items()}
    assert not {name for name, cause in causes.items() if cause in ("", NOT_EXPLAINED)}
    assert causes["padding that another state shows"].startswith(PADDING)
    assert "4" in causes["replicated"]
    assert causes["replicated"] == causes["replicated, within 1 %"]
    assert causes["replicated"] == causes["replicated, beside padding and counters"]
    assert len(set(causes.values())) == len(causes) - 2


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_what_fits_no_cause_stays_unexplained(name: str) -> None:
    assert explain_difference(UNEXPLAINED[name]) == NOT_EXPLAINED


@pytest.mark.parametrize(
    ("state", "sizes"),
    [
        (PARAMETERS, [(2, 4), (4, 2), (2, 6), (4, 6)]),
        (GRADIENTS, [(2, 4), (4, 2), (2, 6)]),
        (STATE, [(8, 12), (12, 8), (8, 4), (12, 4), (8, 2), (12, 6)]),
    ],
    ids=lambda value: value.tenant if isinstance(value, StateDifference) else "",
)
def test_element_sizes_are_told_from_the_ratio(state: StateDifference, sizes: list[tuple[int, int]]) -> None:
    causes = {
        explain_difference(replace(state, element_bytes=expected, measured_bytes=100_000 * there // expected))
        for expected, there in sizes
    }
    assert len(causes - {NOT_EXPLAINED, ""}) == len(sizes)


FACTS = TrainingFacts(
    engine="zero",
    stage=3,
    parameters=1_000,
    shard_ranks=2,
    parameter_bytes=4,
    gradient_bytes=4,
    optimizer_state_bytes=8,
)


def measured(rank: int, parameters: int, gradients: int, optimizer: int, **more: int) -> MeasuredStates:
    sizes = (parameters, gradients, optimizer)
    return MeasuredStates(rank=rank, bytes=dict(zip(STATES, sizes, strict=True)), **more)  # type: ignore[arg-type]


def test_checks_are_per_rank_and_state_and_sum_to_what_was_measured() -> None:
    facts = replace(FACTS, padding_elements=4, step_counters=2)
    checks = check_formulas(facts, [measured(0, 2_008, 2_100, 4_024), measured(1, 2_008, 0, 8_024)])
    assert [(check.rank, check.tenant) for check in checks] == [
        (r, state) for r in (0, 1) for state in STATES
    ]
    for check in checks:
        terms = check.formula_bytes + check.padding_bytes + check.scalar_bytes + check.unexplained_bytes
        assert terms == check.measured_bytes
    assert [check.unexplained_bytes for check in checks] == [0, 92, 0, 0, -2_008, 4_000]


@pytest.mark.parametrize(("stated", "seen", "counted"), [(0, 208, 208), (52, 4, 208)])
def test_stated_counters_come_before_those_that_were_seen(stated: int, seen: int, counted: int) -> None:
    facts = replace(FACTS, step_counters=stated)
    check = check_formulas(facts, [measured(0, 2_000, 2_000, 4_208, counter_bytes=seen)])[2]
    assert (check.scalar_bytes, check.unexplained_bytes) == (counted, 0)


def test_unstated_padding_must_be_equal_in_two_states() -> None:
    padded = check_formulas(FACTS, [measured(0, 2_024, 2_000, 4_048)])
    assert [check.cause.startswith(PADDING) for check in padded] == [True, False, True]
    different = check_formulas(FACTS, [measured(0, 2_024, 2_000, 4_040)])
    assert [check.cause for check in different] == [NOT_EXPLAINED, "", NOT_EXPLAINED]


def uneven(facts: TrainingFacts, ranks: list[MeasuredStates]) -> list[tuple[int, Tenant]]:
    """The states with a cause that each rank's own bytes do not give."""
    alone = [check_formulas(facts, [states]) for states in ranks]
    together = check_formulas(facts, ranks)
    return [
        (check.rank, check.tenant)
        for check, lone in zip(together, [check for checks in alone for check in checks], strict=True)
        if lone.cause == NOT_EXPLAINED != check.cause
    ]


@pytest.mark.parametrize(
    ("second", "explained"), [(None, False), (1_950, False), (1_960, True), (2_000, False)]
)
def test_uneven_shards_need_all_ranks_and_the_sum(second: int | None, explained: bool) -> None:
    ranks = [measured(0, 2_040, 2_000, 4_000)]
    ranks += [measured(1, second, 2_000, 4_000)] if second else []
    found = uneven(FACTS, ranks)
    assert found == ([(0, Tenant.PARAMETERS), (1, Tenant.PARAMETERS)] if explained else [])


def test_ranks_that_own_whole_parameters_hold_as_many_step_counters() -> None:
    """ZeroRedundancyOptimizer: one large parameter on rank 0, five small ones on rank 1."""
    facts = replace(FACTS, stage=1, step_counters=5)
    ranks = [
        measured(0, 4_000, 4_000, 6_404, counter_bytes=4),
        measured(1, 4_000, 4_000, 1_620, counter_bytes=20),
    ]
    rows = [check for check in check_formulas(facts, ranks) if check.tenant is Tenant.OPTIMIZER_STATE]
    assert [(row.scalar_bytes, row.unexplained_bytes) for row in rows] == [(4, 2_400), (20, -2_400)]
    assert NOT_EXPLAINED not in {row.cause for row in rows}


@pytest.mark.parametrize("missing", ["parameters", "stage", "shard_ranks"])
def test_without_a_formula_there_is_one_gap_and_no_check(missing: str) -> None:
    facts = replace(FACTS, **{missing: None})
    ranks = [measured(0, 2_000, 2_000, 4_000)]
    assert check_formulas(facts, ranks) == ()
    assert len(find_formula_gaps(facts, ranks)) == 1
    assert find_formula_gaps(facts, []) == ()
    assert find_formula_gaps(FACTS, ranks) == ()


def test_padding_that_one_state_lacks_is_an_uneven_shard() -> None:
    """FSDP2: shards of 502 elements for 1,000; the optimizer has no state for the padding."""
    facts = replace(FACTS, padding_elements=4)
    ranks = [measured(0, 2_008, 2_008, 4_016), measured(1, 2_008, 2_008, 3_984)]
    rows = [check for check in check_formulas(facts, ranks) if check.tenant is Tenant.OPTIMIZER_STATE]
    assert NOT_EXPLAINED not in {row.cause for row in rows}
    missing = [ranks[0], measured(1, 2_008, 2_008, 3_960)]
    rows = [check for check in check_formulas(facts, missing) if check.tenant is Tenant.OPTIMIZER_STATE]
    assert rows[1].cause == NOT_EXPLAINED


@pytest.mark.parametrize("replicas", [1, 2])
def test_uneven_shards_sum_to_the_formula_in_every_replica(replicas: int) -> None:
    facts = replace(FACTS, replica_ranks=replicas)
    ranks = [measured(rank, 2_040 - 80 * (rank % 2), 2_000, 4_000) for rank in range(4)]
    causes = {check.cause for check in check_formulas(facts, ranks) if check.tenant is Tenant.PARAMETERS}
    assert (NOT_EXPLAINED in causes) is (replicas == 1)
