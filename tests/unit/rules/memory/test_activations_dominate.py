"""activations_dominate fires from half of the peak on, unless they are recomputed already."""

from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, MIB, allocation, memory_run, part, phase, phases_of, tenants, with_rank
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant
from zprof.rules.memory.activations_dominate import activations_dominate

HELD = tenants(activations=160)  # 46 MiB of others


def found(analysis: RunAnalysis) -> Finding:
    answer = activations_dominate(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_activations_are_named_with_what_checkpoints_free() -> None:
    finding = found(memory_run(HELD))
    assert finding.id == "ZP203"
    assert finding.confidence is Confidence.HIGH
    # Eight blocks: 1 - 1/8 less a quarter, and less a seventeenth, of 160 MiB.
    assert finding.saving_bytes == (100 * MIB, int(160 * MIB * (1 - 1 / 17 - 1 / 8)))
    assert "77.7 %" in finding.sentence


@pytest.mark.parametrize(("activations", "fires"), [(45.9, False), (46.1, True)])
def test_the_boundary_is_half_of_the_peak(activations: float, *, fires: bool) -> None:
    answer = activations_dominate(memory_run(tenants(activations=activations)), None)
    assert isinstance(answer, Finding) == fires
    if isinstance(answer, Finding):
        assert answer.confidence is Confidence.MEDIUM


def test_the_peak_falls_no_lower_than_a_phase_without_activations() -> None:
    optimizer = phase("optimizer", tenants(activations=0, temporary=150))
    finding = found(memory_run(HELD, phases=(*phases_of(HELD), optimizer)))
    assert finding.saving_bytes == (12 * MIB, 12 * MIB)  # 206 MiB less 194


def test_recomputed_activations_are_left_alone() -> None:
    recompute = phase("recompute", tenants(activations=20))
    assert activations_dominate(memory_run(HELD, phases=(recompute,)), None) is None
    parts = (part(Tenant.ACTIVATIONS, "saved", 150), part(Tenant.ACTIVATIONS, "recomputed", 10))
    assert activations_dominate(with_rank(memory_run(HELD), parts=parts), None) is None
    chance = (part(Tenant.ACTIVATIONS, "saved", 159), part(Tenant.ACTIVATIONS, "recomputed", 1))
    assert isinstance(activations_dominate(with_rank(memory_run(HELD), parts=chance), None), Finding)


def test_logits_are_not_counted_twice() -> None:
    logits = tuple(allocation(60, Tenant.ACTIVATIONS, "lm_head") for _ in range(2))
    assert activations_dominate(memory_run(HELD, top=logits), None) is None


def test_without_blocks_the_range_is_wide_and_less_sure() -> None:
    finding = found(memory_run(HELD, modules=("encoder",)))
    assert finding.confidence is Confidence.MEDIUM
    low, high = finding.saving_bytes or (0, 0)
    assert low == 40 * MIB  # two blocks: 1 - 1/2 - 1/4
    assert high > 140 * MIB


def test_guessed_activations_are_no_certainty() -> None:
    guessed = with_rank(memory_run(HELD), basis_bytes={Basis.TAGGED: 0, Basis.RULE: sum(HELD.values())})
    assert found(guessed).confidence is Confidence.LOW


def test_one_rank_alone_can_checkpoint_too() -> None:
    assert "checkpoint_wrapper" in found(memory_run(HELD, ranks=1, facts=replace(FACTS, engine="ddp"))).fix


def test_small_or_unknown_is_silent() -> None:
    small = {tenant: size // 1000 for tenant, size in HELD.items()}
    assert activations_dominate(memory_run(small), None) is None
    assert activations_dominate(memory_run(per_rank=()), None) is None


def test_a_share_of_a_peak_that_may_be_higher_is_a_guess() -> None:
    assert found(with_rank(memory_run(HELD), lower_bound=True)).confidence is Confidence.LOW


@pytest.mark.parametrize(
    ("activations", "confidence"),
    [(46, Confidence.MEDIUM), (68.9, Confidence.MEDIUM), (69, Confidence.HIGH), (80, Confidence.HIGH)],
)
def test_on_the_thresholds_of_the_share(activations: float, confidence: Confidence) -> None:
    """Beside 46 MiB: half of the peak, and three fifths of it."""
    assert found(memory_run(tenants(activations=activations))).confidence is confidence


@pytest.mark.parametrize(("recomputed", "fires"), [(8, False), (7.9, True)])
def test_a_twentieth_recomputed_is_a_checkpointed_run(recomputed: float, *, fires: bool) -> None:
    parts = (part(Tenant.ACTIVATIONS, "saved", 150), part(Tenant.ACTIVATIONS, "recomputed", recomputed))
    answer = activations_dominate(with_rank(memory_run(HELD), parts=parts), None)
    assert isinstance(answer, Finding) == fires


def test_at_most_thirty_two_blocks_where_none_are_seen() -> None:
    low, high = found(memory_run(HELD, modules=("encoder",))).saving_bytes or (0, 0)
    assert (low, high) == (40 * MIB, int(160 * MIB * (1 - 1 / 17 - 1 / 32)))
