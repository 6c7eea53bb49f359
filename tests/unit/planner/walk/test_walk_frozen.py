"""Frozen parameters: no gradient, no optimizer state, no reduction; gathered as all others."""

from dataclasses import replace

import pytest
from walk_jobs import BF16, by_hand, of_shape, peak_bytes, terms_at_peak, unit

from zprof.model.job import Degrees, Job, Overlap, Residual
from zprof.model.plan import Scheme
from zprof.model.tenants import Tenant
from zprof.planner.memory.states import state_bytes
from zprof.planner.memory.walk.layout import flat_tensors, model_state_bytes, trained_elements
from zprof.planner.memory.walk.peak import peak_of

SCHEMES = (Scheme.DATA_PARALLEL, Scheme.ZERO_1, Scheme.ZERO_2, Scheme.ZERO_3)


@pytest.mark.parametrize(
    ("stage", "states"), [(0, (80, 24, 52)), (1, (80, 24, 28)), (2, (80, 12, 28)), (3, (40, 12, 28))]
)
def test_states_of_a_unit_half_and_a_unit_wholly_frozen(stage: int, states: tuple[int, ...]) -> None:
    """One step count of 4 bytes: that of the unit which is trained."""
    job = by_hand(unit("a", 10, frozen=4), unit("b", 10, saved=1, frozen=10))
    assert tuple(model_state_bytes(job, stage).values()) == states




def test_units_that_do_not_say_have_their_share() -> None:
    """10 x 12/17 and 7 x 12/17, rounded up."""
    even = replace(by_hand(unit("a", 10), unit("b", 7)), frozen_parameters=5)
    assert [trained_elements(each, even) for each in even.units] == [8, 5]
    stated = by_hand(unit("a", 10, frozen=5), unit("b", 7))
    assert [trained_elements(each, stated) for each in stated.units] == [5, 7]




def test_a_frozen_unit_that_keeps_nothing_has_no_backward() -> None:
    """Nothing before it is trained: no checkpoint, no recomputation."""
    first, last = unit("first", 10, kept=100, frozen=10), unit("last", 10, saved=1000, kept=100)
    job = by_hand(first, last, residual=Residual(checkpointing=True))
    assert peak_bytes(job, 0) == 80 + 40 + 84 + 1000 + 100
    assert peak_of(job, 0)[1].startswith("recompute of last")


def test_the_optimizer_copies_no_gradient_of_what_is_frozen() -> None:
    job = by_hand(unit("a", 100, frozen=90), unit("b", 20), element_bytes=BF16)
    assert terms_at_peak(job, 0)["optimizer"] == 20 * 4


def gpt(frozen_blocks: tuple[str, ...], *, say: bool = True) -> Job:
    job = of_shape(layers=4, hidden=64, vocabulary=32, element_bytes=BF16, degrees=Degrees(dp=2))
    frozen = {each.name: each.elements if each.name in frozen_blocks else 0 for each in job.units}
    units = tuple(replace(each, frozen_elements=frozen[each.name] if say else 0) for each in job.units)
    whole = sum(each.elements for each in units)
    return replace(job, parameters=whole, frozen_parameters=sum(frozen.values()), units=units)


@pytest.mark.parametrize("stage", range(4))
def test_two_frozen_blocks_of_four_lower_the_optimizer_state_by_theirs(stage: int) -> None:
    frozen, plain = gpt(("blocks.1", "blocks.2")), gpt(())
    states = [model_state_bytes(job, stage)[Tenant.OPTIMIZER_STATE] for job in (plain, frozen)]
    block = plain.units[-1].elements
    assert states[0] - states[1] == 2 * 12 * block // (2 if stage else 1) + 2 * 4
    assert peak_bytes(frozen, stage) < peak_bytes(plain, stage)
    for job in (frozen, gpt(("blocks.1", "blocks.2"), say=False)):
        formula, walked = state_bytes(job, SCHEMES[stage]), model_state_bytes(job, stage)
        for tenant, size in walked.items():  # but for padding, step counts, and shares rounded up
            assert 0 <= size - formula[tenant] <= len(job.units) * (2 * 12 + 4), tenant
