"""Steps that were walked by hand, to the byte: units with a few elements, NCCL where nothing else is said."""

import pytest
from msgspec.structs import replace
from walk_jobs import BF16, by_hand, peak_bytes, terms_at_peak

from tests.support.planned_jobs import known_unit as unit
from zprof.model.job import Backend, Job, Overlap, Residual
from zprof.model.tenants import Tenant
from zprof.planner.memory.walk.layout import compute_model_states, trained_elements
from zprof.planner.memory.walk.peak import find_peak

#: Two units of 10 and 6 elements, on two ranks: as stored, and a rank's part of them.
PAIR = (unit("a", 10, saved=1000, kept=100, backward=50), unit("b", 6, saved=1000, kept=100, backward=50))
#: Of all stages: parameters, gradients and optimizer state of the pair, with two step counts.
STATES = {0: (64, 64, 128 + 8), 1: (64, 64, 64 + 8), 2: (64, 32, 64 + 8), 3: (32, 32, 64 + 8)}
EIGHTS = [unit(name, 8) for name in "abcd"]
WIDE = replace(BF16, reduced=4, gradient_copy=0)
#: Recomputed beside the gradient of its output, which is as large as its input.
CHECKPOINTED = Residual(checkpointing=True)


@pytest.mark.parametrize("stage", STATES)
def test_states_of_two_units_on_two_ranks(stage: int) -> None:
    assert tuple(compute_model_states(by_hand(*PAIR), stage).values()) == STATES[stage]


def test_states_are_padded_and_gradients_have_the_wire_type_from_stage_2_on() -> None:
    padded = by_hand(*PAIR, overlap=Overlap(alignment_elements=8))
    assert compute_model_states(padded, 3)[Tenant.PARAMETERS] == (16 + 16) // 2 * 4
    gradients = [compute_model_states(by_hand(*PAIR, element_bytes=WIDE), stage) for stage in (1, 2)]
    assert [each[Tenant.GRADIENTS] for each in gradients] == [16 * 2, 16 // 2 * 4]


AHEAD = Overlap(prefetch=1, reductions_in_flight=1)
BARE = (unit("a", 10), unit("b", 6))
FROZEN_LAST = (unit("a", 10, saved=1000), unit("b", 10, saved=1000, backward=50, frozen=10))
FROZEN_FIRST = (unit("a", 10, kept=100, frozen=10), unit("b", 10, saved=1000, kept=100))


@pytest.mark.parametrize(
    ("job", "stage", "peak", "moment"),
    [
        (by_hand(*PAIR), 0, sum(STATES[0]) + 2000 + 50, "backward of b"),
        (by_hand(*PAIR, residual=CHECKPOINTED), 0, sum(STATES[0]) + 100 + 1000 + 100, "recompute of b"),
        (by_hand(*PAIR), 3, 32 + STATES[3][2] + 2000 + 50 + 6 * 4, "backward of b"),
        (by_hand(*PAIR, overlap=AHEAD), 3, 32 + STATES[3][2] + 2000 + 50 + 16 * 4, "backward of b"),
        # A frozen unit has a backward where it keeps something: units before it are trained.
        (by_hand(*FROZEN_LAST), 0, 80 + 40 + 84 + 2000 + 50, "backward of b"),
        (by_hand(*FROZEN_FIRST, residual=CHECKPOINTED), 0, 80 + 40 + 84 + 1000 + 100, "recompute of b"),
        # a's 10 gradients loose, b's part there, and b's buffer is given back for a's, of another size.
        (by_hand(*BARE), 2, 64 + STATES[2][2] + 40 + 12 + 40, "backward of a (reduction)"),
    ],
)
def test_the_highest_moment(job: Job, stage: int, peak: int, moment: str) -> None:
    assert find_peak(job, stage)[1].startswith(moment)
    assert peak_bytes(job, stage) == peak


def test_reductions_in_flight_hold_a_buffer_each_and_gloo_copies_them() -> None:
    """Stage 1 waits at the end: three are there when the first gradients come.  Stage 0 is in place."""
    one, two = (by_hand(*EIGHTS, overlap=Overlap(prefetch=0, reductions_in_flight=count)) for count in (1, 2))
    assert peak_bytes(two, 2) - peak_bytes(one, 2) == 8 * 4
    gloo = by_hand(*EIGHTS, backend=Backend.GLOO)
    assert peak_bytes(gloo, 1) - peak_bytes(one, 1) == 3 * 8 * 4
    assert terms_at_peak(gloo, 1)["backend_scratch"] == 3 * 8 * 4
    assert "backend_scratch" not in terms_at_peak(gloo, 0) | terms_at_peak(one, 1)


def test_micro_batches_but_the_first_find_gradients_of_this_rank() -> None:
    once, twice = by_hand(*PAIR), by_hand(*PAIR, micro_batches=2)
    assert peak_bytes(twice, 2) - peak_bytes(once, 2) == (10 + 6) // 2 * 4
    assert peak_bytes(twice, 0) == peak_bytes(once, 0)


@pytest.mark.parametrize(
    ("stage", "ranks", "buffer", "copied"), [(0, 2, None, 10), (1, 1, None, 10), (0, 2, 8, 8)]
)
def test_the_optimizer_copies_16_bit_gradients_of_a_unit(
    stage: int, ranks: int, buffer: int | None, copied: int
) -> None:
    residual = Residual(constant_buffer_elements=buffer)
    job = by_hand(unit("a", 10), dp=ranks, element_bytes=BF16, residual=residual)
    assert terms_at_peak(job, stage)["optimizer"] == copied * 4


def test_buffers_that_are_made_once_stay() -> None:
    """Whole parts of both ranks: 4 of 5 elements, of which two may be in flight; else of the largest unit."""
    overlap = Overlap(prefetch=0, reductions_in_flight=2)
    constant = terms_at_peak(
        by_hand(*PAIR, residual=Residual(constant_buffer_elements=5), overlap=overlap), 2
    )
    assert constant["kept_buffers"] == 2 * 4 * 4
    assert "reduce_scatter_base" not in constant
    job = by_hand(*PAIR, residual=Residual(defragment=True))
    assert terms_at_peak(job, 2)["kept_buffers"] == 10 * 4
    assert terms_at_peak(job, 2)["grad"] == 16 // 2 * 4
    assert "kept_buffers" not in terms_at_peak(job, 0)


def with_checkpoints(count: int, residual: Residual) -> Job:
    units = [unit(f"{index}", 8, saved=9000, kept=1000) for index in range(count)]
    return by_hand(*units, mp=4, residual=residual)


@pytest.mark.parametrize(
    ("residual", "first", "more"),
    [
        (Residual(checkpointing=True), {"recomputed": 8000, "checkpoint": 1000}, 1000),
        (
            Residual(checkpointing=True, partition=True),
            {"recomputed": 8000, "checkpoint": 250, "allgather_base": 1000},
            250,
        ),
        (
            Residual(checkpointing=True, partition=True, offload=True),
            {"recomputed": 8000, "allgather_base": 1000},
            0,
        ),
        # From the host the input itself comes back; Pa: in a buffer of the all-gather.
        (Residual(checkpointing=True, offload=True), {"recomputed": 9000}, 0),
        (
            Residual(checkpointing=True, partition=True, defragment=True),
            {"recomputed": 8000, "checkpoint": 256, "allgather_base": 1000},
            256,
        ),
    ],
)
def test_recomputed_units_beside_checkpoints(residual: Residual, first: dict[str, int], more: int) -> None:
    """``more``: of each unit that is kept beside the one that is recomputed."""
    kinds = ("saved", "recomputed", "checkpoint", "allgather_base")
    one, forty = (terms_at_peak(with_checkpoints(count, residual), 0) for count in (1, 40))
    assert sum(one.get(kind, 0) for kind in kinds) == sum(first.values())
    assert one["recomputed"] == first["recomputed"]
    assert sum(forty.get(kind, 0) for kind in kinds) == sum(first.values()) + 39 * more
    # All-gathers read from the chunk: it is theirs.
    tenants = {term.sub: term.tenant for term in find_peak(with_checkpoints(40, residual), 0)[0]}
    is_theirs = tenants.get("checkpoint") is Tenant.COMMUNICATION_BUFFERS
    assert is_theirs == (residual.partition and residual.defragment)


def test_units_must_know_their_bytes() -> None:
    with pytest.raises(ValueError, match="unit a "):
        find_peak(by_hand(replace(PAIR[0], saved_bytes=None)), 0)


@pytest.mark.parametrize(
    ("stage", "states"), [(0, (80, 24, 52)), (1, (80, 24, 28)), (2, (80, 12, 28)), (3, (40, 12, 28))]
)
def test_frozen_parameters_have_no_gradient_and_no_optimizer_state(
    stage: int, states: tuple[int, ...]
) -> None:
    """A unit half and a unit wholly frozen; one step count of 4 bytes, that of the unit which is trained."""
    job = by_hand(unit("a", 10, frozen=4), unit("b", 10, saved=1, frozen=10))
    assert tuple(compute_model_states(job, stage).values()) == states


def test_units_that_do_not_say_what_is_frozen_have_their_share() -> None:
    """10 x 12/17 and 7 x 12/17, rounded up."""
    even = replace(by_hand(unit("a", 10), unit("b", 7)), frozen_parameters=5)
    assert [trained_elements(each, even) for each in even.units] == [8, 5]
    stated = by_hand(unit("a", 10, frozen=5), unit("b", 7))
    assert [trained_elements(each, stated) for each in stated.units] == [5, 7]
