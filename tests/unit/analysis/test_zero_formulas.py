"""The ZeRO formulas against figure 1 of the paper (7.5e9 parameters, 64 ranks) and small whole numbers."""

import pytest
from msgspec.structs import replace

from tests.support.expected_states import expected_state
from zprof.analysis.zero_formulas import (
    compute_expected_volume,
    compute_state_formula,
)
from zprof.model.memory import StateFormula
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts

PAPER = TrainingFacts(
    engine="paper",
    stage=0,
    parameters=7_500_000_000,
    shard_ranks=64,
    parameter_bytes=2,
    gradient_bytes=2,
    optimizer_state_bytes=12,
    communication_bytes=2,
)


@pytest.mark.parametrize(("stage", "printed_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_state_bytes_equal_figure_1(stage: int, printed_gb: float) -> None:
    formula = compute_state_formula(replace(PAPER, stage=stage))
    assert formula is not None
    assert (formula.parameters + formula.gradients + formula.optimizer_state) / 1e9 == pytest.approx(
        printed_gb, abs=0.06
    )


@pytest.mark.parametrize(
    ("stage", "states"),
    [(0, (202, 202, 1212)), (1, (202, 202, 303)), (2, (202, 51, 303)), (3, (51, 51, 303))],
)
def test_each_stage_shards_one_state_more(stage: int, states: tuple[int, int, int]) -> None:
    formula = compute_state_formula(replace(PAPER, stage=stage, parameters=101, shard_ranks=4))
    assert formula is not None
    assert (formula.parameters, formula.gradients, formula.optimizer_state) == states


def test_padding_and_counters_are_not_part_of_the_formula() -> None:
    facts = replace(PAPER, stage=3, parameters=10, shard_ranks=4, padding_elements=2, step_counters=3)
    assert compute_state_formula(facts) == StateFormula(
        parameters=5, gradients=5, optimizer_state=30, padding_bytes=8, scalar_bytes=12
    )
    assert expected_state(facts) == {
        Tenant.PARAMETERS: 6,
        Tenant.GRADIENTS: 6,
        Tenant.OPTIMIZER_STATE: 36 + 12,
    }


@pytest.mark.parametrize(
    ("stage", "micro_batches", "psis"),
    [(0, 1, 2), (1, 1, 2), (2, 1, 2), (3, 1, 3), (0, 4, 2), (1, 4, 2), (2, 4, 5), (3, 4, 12)],
)
def test_volume_per_step(stage: int, micro_batches: int, psis: int) -> None:
    facts = replace(PAPER, stage=stage, parameters=100, padding_elements=28, micro_batches=micro_batches)
    assert compute_expected_volume(facts) == psis * 128 * 2


@pytest.mark.parametrize(("stage", "per_parameter"), [(0, 8), (1, 6), (2, 14), (3, 24)])
def test_gradients_may_be_reduced_in_another_dtype(stage: int, per_parameter: int) -> None:
    facts = replace(
        PAPER, stage=stage, parameters=100, padding_elements=0, micro_batches=3, reduction_bytes=4
    )
    assert compute_expected_volume(facts) == per_parameter * 100


@pytest.mark.parametrize("parameters", [100, None])
def test_one_rank_moves_nothing(parameters: int | None) -> None:
    assert compute_expected_volume(replace(PAPER, shard_ranks=1, parameters=parameters)) == 0


@pytest.mark.parametrize(
    "unknown", [{"stage": None}, {"stage": 7}, {"parameters": None}, {"shard_ranks": None}], ids=str
)
def test_missing_facts_give_no_formula(unknown: dict[str, int | None]) -> None:
    facts = replace(PAPER, **unknown)  # type: ignore[arg-type]
    assert compute_state_formula(facts) is None
    assert compute_expected_volume(facts) is None
    assert compute_state_formula(replace(PAPER, optimizer_state_bytes=None)) is None


@pytest.mark.parametrize(
    ("stage", "ranks", "micro_batches", "elements"),
    [
        (3, 4, 1, 3 * 100 + 50),
        (3, 4, 2, 6 * 100 + 100),
        (2, 4, 2, 3 * 100 + 100),
        (0, 4, 1, 2 * 100),
        (3, 1, 1, 200),
    ],
)
def test_replicas_all_reduce_what_a_rank_holds(
    stage: int, ranks: int, micro_batches: int, elements: int
) -> None:
    facts = TrainingFacts(
        stage=stage,
        parameters=98,
        padding_elements=2,
        shard_ranks=ranks,
        replica_ranks=2,
        communication_bytes=4,
        micro_batches=micro_batches,
    )
    assert compute_expected_volume(facts) == 4 * elements
