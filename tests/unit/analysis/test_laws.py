"""The laws against figure 1 of the ZeRO paper (7.5e9 parameters, 64 ranks) and small whole numbers."""

from dataclasses import replace

import pytest

from tests.support.expected_states import expected_state
from zprof.analysis.zero_formulas import compute_expected_volume, compute_state_formula
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


def total(law: StateFormula) -> int:
    return law.parameters + law.gradients + law.optimizer_state


@pytest.mark.parametrize(
    ("stage", "printed_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)], ids=lambda value: str(value)
)
def test_state_law_equals_figure_1(stage: int, printed_gb: float) -> None:
    law = compute_state_formula(replace(PAPER, stage=stage))
    assert law is not None
    assert total(law) / 1e9 == pytest.approx(printed_gb, abs=0.06)


@pytest.mark.parametrize(
    ("stage", "states"),
    [(0, (200, 200, 1200)), (1, (200, 200, 300)), (2, (200, 50, 300)), (3, (50, 50, 300))],
)
def test_each_stage_shards_one_state_more(stage: int, states: tuple[int, int, int]) -> None:
    law = compute_state_formula(replace(PAPER, stage=stage, parameters=100, shard_ranks=4))
    assert law is not None
    assert (law.parameters, law.gradients, law.optimizer_state) == states


def test_padding_and_counters_stand_apart() -> None:
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
def test_volume_law(stage: int, micro_batches: int, psis: int) -> None:
    facts = replace(PAPER, stage=stage, parameters=100, padding_elements=28, micro_batches=micro_batches)
    assert compute_expected_volume(facts) == psis * 128 * 2


@pytest.mark.parametrize(
    ("stage", "expected"), [(0, 2 * 4), (1, 2 + 4), (2, 2 + 3 * 4), (3, 3 * (2 + 2 + 4))]
)
def test_gradients_may_be_reduced_in_another_size_than_parameters_are_gathered(
    stage: int, expected: int
) -> None:
    facts = replace(
        PAPER, stage=stage, parameters=100, padding_elements=0, micro_batches=3, reduction_bytes=4
    )
    assert compute_expected_volume(facts) == expected * 100


def test_one_rank_alone_moves_nothing() -> None:
    assert compute_expected_volume(replace(PAPER, shard_ranks=1)) == 0


@pytest.mark.parametrize("missing", ["stage", "parameters", "shard_ranks", "optimizer_state_bytes"])
def test_unknown_facts_give_no_law(missing: str) -> None:
    facts = replace(PAPER, **{missing: None})
    assert compute_state_formula(facts) is None
    assert expected_state(facts) is None


def test_unknown_stage_gives_no_law() -> None:
    assert compute_state_formula(replace(PAPER, stage=7)) is None
    assert compute_expected_volume(replace(PAPER, stage=7)) is None


def test_one_rank_moves_nothing_whatever_else_is_unknown() -> None:
    assert compute_expected_volume(replace(PAPER, shard_ranks=1, parameters=None)) == 0
