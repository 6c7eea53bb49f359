"""Frozen parameters: no gradient, no optimizer state, no reduction; gathered as all others."""

from dataclasses import replace

import pytest
from walk_jobs import BF16, by_hand, of_shape, peak_bytes, terms, terms_of, unit

from zprof.model.job import Job, Overlap, Residual, Unit
from zprof.model.plan import Scheme
from zprof.model.tenants import Tenant
from zprof.planner.memory.states import state_bytes, total_state_bytes
from zprof.planner.memory.walk.layout import flat_tensors, model_state_bytes, trained_elements
from zprof.planner.memory.walk.peak import peak_of
from zprof.planner.plan import plan

SCHEMES = {0: Scheme.DATA_PARALLEL, 1: Scheme.ZERO_1, 2: Scheme.ZERO_2, 3: Scheme.ZERO_3}


def frozen(each: Unit, elements: int) -> Unit:
    return replace(each, frozen_elements=elements)


def with_frozen(job: Job) -> Job:
    """As many parameters frozen as the units say."""
    return replace(job, frozen_parameters=sum(each.frozen_elements for each in job.units))


def two_of_four_blocks() -> Job:
    """A GPT, the second and third block of which are frozen, as its units say."""
    job = of_shape(layers=4, hidden=64, vocabulary=32, element_bytes=BF16)
    units = [
        frozen(each, each.elements) if each.name in ("blocks.1", "blocks.2") else each for each in job.units
    ]
    whole = sum(each.elements for each in units)
    return with_frozen(replace(job, parameters=whole, units=tuple(units)))


@pytest.mark.parametrize(
    ("stage", "parameters", "gradients", "state"),
    [(0, 80, 24, 48), (1, 80, 24, 24), (2, 80, 12, 24), (3, 40, 12, 24)],
)
def test_states_of_a_unit_half_and_a_unit_wholly_frozen(
    stage: int, parameters: int, gradients: int, state: int
) -> None:
    job = with_frozen(by_hand(frozen(unit("a", 10), 4), frozen(unit("b", 10, saved=1), 10)))
    # The step count is of what is trained: one unit.
    expected = {
        Tenant.PARAMETERS: parameters,
        Tenant.GRADIENTS: gradients,
        Tenant.OPTIMIZER_STATE: state + 4,
    }
    assert model_state_bytes(job, stage) == expected


def test_each_flat_tensor_of_a_unit_is_padded_by_itself() -> None:
    job = by_hand(frozen(unit("a", 10), 3), dp=4)
    assert flat_tensors(job.units[0], job) == (8, 4)


def test_units_that_do_not_say_have_their_share() -> None:
    job = by_hand(unit("a", 10), unit("b", 7))
    even = replace(job, parameters=17, frozen_parameters=5)
    assert [trained_elements(each, even) for each in even.units] == [
        8,
        5,
    ]  # 10 x 12/17, 7 x 12/17: rounded up
    said = replace(even, units=(frozen(job.units[0], 5), job.units[1]))
    assert [trained_elements(each, said) for each in said.units] == [5, 7]


def test_frozen_units_are_gathered_and_not_reduced() -> None:
    # Stage 2: the buffer and the gradients of a, 10 x 4 each; nothing of b but parameters.
    job = with_frozen(by_hand(unit("a", 10), frozen(unit("b", 10, saved=1), 10)))
    held = terms_of(job, 2)
    assert (held["reduce_scatter_base"], held["unreduced"]) == (40, 40)
    assert "grad" not in held
    ahead = replace(job, overlap=Overlap(prefetch=1, reductions_in_flight=1))
    assert max(terms_of(each, 3).get("gathered_param", 0) for each in (job, ahead)) == 80


def test_a_frozen_unit_that_keeps_nothing_has_no_backward() -> None:
    """The first units, where nothing before them is trained: no checkpoint, no recomputation."""
    first = frozen(unit("first", 10, saved=0, kept=100), 10)
    last = unit("last", 10, saved=1000, kept=100)
    job = with_frozen(by_hand(first, last, residual=Residual(checkpointing=True)))
    # Parameters 80, gradients 40, state 80 + 4; recomputed beside the gradient of its output.
    assert peak_bytes(job, 0) == 80 + 40 + 84 + 1000 + 100
    assert peak_of(job, 0)[1].startswith("recompute of last")


def test_the_optimizer_copies_no_gradient_of_what_is_frozen() -> None:
    job = with_frozen(by_hand(frozen(unit("a", 100), 90), unit("b", 20), element_bytes=BF16))
    assert terms_of(job, 0)["optimizer"] == 20 * 4


@pytest.mark.parametrize("stage", range(4))
def test_two_frozen_blocks_lower_gradients_and_optimizer_state_by_theirs(stage: int) -> None:
    job = two_of_four_blocks()
    plain = replace(
        job, frozen_parameters=0, units=tuple(replace(each, frozen_elements=0) for each in job.units)
    )
    block = job.units[-1].elements
    share = 2 if stage else 1
    state = Tenant.OPTIMIZER_STATE
    assert (
        model_state_bytes(plain, stage)[state] - model_state_bytes(job, stage)[state]
        == 2 * 12 * block // share + 2 * 4
    )
    assert peak_bytes(job, stage) < peak_bytes(plain, stage)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("says", [True, False])
def test_states_of_the_walk_are_those_of_the_law(stage: int, says: bool) -> None:
    """But for padding, one element a flat tensor here, step counts, and shares rounded up."""
    job = two_of_four_blocks()
    units = job.units if says else tuple(replace(each, frozen_elements=0) for each in job.units)
    job = replace(job, units=units)
    law, walked = state_bytes(job, SCHEMES[stage]), model_state_bytes(job, stage)
    for tenant, size in walked.items():
        assert 0 <= size - law[tenant] <= len(units) * (2 * 12 + 4), tenant
    made = plan(job, schemes=(SCHEMES[stage],)).rows[0]
    assert made.state_bytes == total_state_bytes(job, SCHEMES[stage]) == sum(law.values())
    for tenant in (Tenant.PARAMETERS, Tenant.OPTIMIZER_STATE):
        assert made.tenants[tenant] == walked[tenant]
    held = {term.sub: term.bytes or 0 for term in terms(job, stage)}
    if stage < 2:
        assert held["grad"] == walked[Tenant.GRADIENTS]
