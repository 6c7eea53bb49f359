"""Steps that were walked by hand, to the byte: units with a few elements, NCCL where nothing else is said."""

from dataclasses import replace

import pytest
from walk_jobs import BF16, by_hand, of_shape, peak_bytes, terms_of, unit

from zprof.model.job import Backend, Degrees, Overlap, Residual
from zprof.model.tenants import Tenant
from zprof.planner.memory.walk.layout import model_state_bytes
from zprof.planner.memory.walk.ledger import ASSUMPTIONS
from zprof.planner.memory.walk.live import StoredCheckpoint, chunk_bytes, stored_checkpoint
from zprof.planner.memory.walk.peak import peak_of

_WITH_CHECKPOINTS = {"saved", "recomputed", "checkpoint", "allgather_base"}
#: Two units of 10 and 6 elements, on two ranks: as stored, and a rank's part of them.
PAIR = (unit("a", 10, saved=1000, kept=100, backward=50), unit("b", 6, saved=1000, kept=100, backward=50))
COUNTERS = 2 * 4


@pytest.mark.parametrize(
    ("stage", "parameters", "gradients", "state"),
    [(0, 64, 64, 128), (1, 64, 64, 64), (2, 64, 32, 64), (3, 32, 32, 64)],
)
def test_states_of_two_units_on_two_ranks(stage: int, parameters: int, gradients: int, state: int) -> None:
    assert model_state_bytes(by_hand(*PAIR), stage) == {
        Tenant.PARAMETERS: parameters,
        Tenant.GRADIENTS: gradients,
        Tenant.OPTIMIZER_STATE: state + COUNTERS,
    }


def test_states_are_padded_to_ranks_times_alignment() -> None:
    job = by_hand(*PAIR, dp=2, overlap=Overlap(alignment_elements=8))
    assert model_state_bytes(job, 3)[Tenant.PARAMETERS] == (16 + 16) // 2 * 4


def test_the_backward_of_the_last_unit_holds_all_that_was_kept() -> None:
    # Stage 0: parameters and gradients 64 each, state 128, counters 8; 2000 kept and 50 of work.
    assert peak_bytes(by_hand(*PAIR), 0) == 64 + 64 + 136 + 2000 + 50
    assert peak_of(by_hand(*PAIR), 0)[1] == "backward of b (backward)"


def test_checkpointing_keeps_inputs_and_one_unit_whole() -> None:
    job = by_hand(*PAIR, residual=Residual(checkpointing=True))
    # Recomputed beside the gradient of its output, which is as large as its input.
    assert peak_bytes(job, 0) == 64 + 64 + 136 + 100 + 1000 + 100
    assert terms_of(job, 0)["recomputed"] == 900


def test_stage_3_holds_one_unit_and_those_ahead() -> None:
    alone, ahead = by_hand(*PAIR), by_hand(*PAIR, overlap=Overlap(prefetch=1, reductions_in_flight=1))
    states = 32 + 64 + COUNTERS
    assert peak_bytes(alone, 3) == states + 2000 + 50 + 6 * 4
    assert peak_bytes(ahead, 3) == states + 2000 + 50 + (6 + 10) * 4


def test_a_reduction_holds_gradients_and_their_buffer() -> None:
    # No activations.  The last moment of stage 2: a's 10 gradients loose, b's part there, and b's buffer is
    # given back for a's, of another size: 40 + 12 + 40.
    bare = (unit("a", 10), unit("b", 6))
    assert peak_bytes(by_hand(*bare), 2) == 64 + 64 + COUNTERS + 40 + 12 + 40
    assert peak_of(by_hand(*bare), 2)[1] == "backward of a (reduction)"


def test_reductions_in_flight_hold_a_buffer_each() -> None:
    bare = [unit(name, 8) for name in "abcd"]
    one, two = (by_hand(*bare, overlap=Overlap(prefetch=0, reductions_in_flight=n)) for n in (1, 2))
    assert peak_bytes(two, 2) - peak_bytes(one, 2) == 8 * 4


def test_gloo_copies_what_it_reduces_until_that_is_waited_for() -> None:
    bare = [unit(name, 8) for name in "abcd"]
    nccl, gloo = by_hand(*bare), by_hand(*bare, backend=Backend.GLOO)
    # Stage 1 waits at the end: three are there when the first unit's gradients come.  Stage 0 works in place.
    assert peak_bytes(gloo, 1) - peak_bytes(nccl, 1) == 3 * 8 * 4
    assert terms_of(gloo, 1)["backend_scratch"] == 3 * 8 * 4
    assert "backend_scratch" not in terms_of(gloo, 0)
    assert "backend_scratch" not in terms_of(nccl, 1)


def test_micro_batches_but_the_first_find_gradients_of_this_rank() -> None:
    once, twice = by_hand(*PAIR), by_hand(*PAIR, micro_batches=2)
    assert peak_bytes(twice, 2) - peak_bytes(once, 2) == (10 + 6) // 2 * 4
    assert peak_bytes(twice, 0) == peak_bytes(once, 0)


@pytest.mark.parametrize(("stage", "ranks", "copied"), [(0, 2, 10 * 4), (1, 1, 10 * 4)])
def test_the_optimizer_copies_16_bit_gradients_of_a_unit(stage: int, ranks: int, copied: int) -> None:
    job = by_hand(unit("a", 10), dp=ranks, element_bytes=BF16)
    held = terms_of(job, stage)
    assert held["optimizer"] == copied
    constant = replace(job, residual=Residual(constant_buffer_elements=8), element_bytes=BF16)
    assert terms_of(constant, 0)["optimizer"] == 8 * 4


def test_gradients_of_another_wire_type_have_that_type_from_stage_2_on() -> None:
    wide = replace(BF16, reduced=4, gradient_copy=0)
    job = by_hand(*PAIR, element_bytes=wide)
    assert model_state_bytes(job, 1)[Tenant.GRADIENTS] == 16 * 2
    assert model_state_bytes(job, 2)[Tenant.GRADIENTS] == 16 // 2 * 4


def test_buffers_of_constant_size_stay() -> None:
    residual = Residual(constant_buffer_elements=5)
    job = by_hand(*PAIR, residual=residual, overlap=Overlap(prefetch=0, reductions_in_flight=2))
    # Whole parts of both ranks: 4 elements, of which two may be in flight.
    assert terms_of(job, 2)["kept_buffers"] == 2 * 4 * 4
    assert "reduce_scatter_base" not in terms_of(job, 2)


def test_memory_that_is_allocated_once_holds_the_largest_units() -> None:
    job = by_hand(*PAIR, residual=Residual(defragment=True))
    assert terms_of(job, 2)["kept_buffers"] == 10 * 4
    assert terms_of(job, 2)["grad"] == 16 // 2 * 4
    assert "kept_buffers" not in terms_of(job, 0)


@pytest.mark.parametrize(
    ("residual", "stays", "copied", "input_is_new", "chunk"),
    [
        (Residual(checkpointing=True), 1000, 0, False, 0),
        (Residual(checkpointing=True, partition=True), 250, 0, True, 0),
        (Residual(checkpointing=True, partition=True, offload=True), 0, 250, True, 0),
        (Residual(checkpointing=True, offload=True), 0, 0, True, 0),
        (Residual(checkpointing=True, defragment=True), 0, 0, False, 2 * 1024),
        (Residual(checkpointing=True, partition=True, defragment=True), 0, 0, True, 2 * 256),
    ],
)
def test_what_stays_of_a_checkpoint(
    residual: Residual, stays: int, copied: int, input_is_new: bool, chunk: int
) -> None:
    units = [unit("a", 8, saved=9000, kept=1000), unit("b", 8, saved=9000, kept=1000)]
    job = replace(by_hand(*units, residual=residual), degrees=Degrees(dp=2, mp=4))
    assert stored_checkpoint(units[0], job) == StoredCheckpoint(
        stays_bytes=stays,
        copied_bytes=copied,
        input_is_new=input_is_new,
        is_gathered=residual.partition,
    )
    assert chunk_bytes(job) == chunk


@pytest.mark.parametrize(
    ("residual", "first", "more"),
    [
        (Residual(checkpointing=True), 9000, 1000),
        (Residual(checkpointing=True, partition=True), 9000 + 250, 250),
        (Residual(checkpointing=True, partition=True, offload=True), 9000, 0),
        (Residual(checkpointing=True, offload=True), 9000, 0),
        (Residual(checkpointing=True, partition=True, defragment=True), 9000 + 256, 256),
    ],
)
def test_recomputed_units_beside_checkpoints(residual: Residual, first: int, more: int) -> None:
    """``first``: of one unit; ``more``: of each that is kept beside it."""

    def with_checkpoints(count: int) -> int:
        units = [unit(f"{index}", 8, saved=9000, kept=1000) for index in range(count)]
        job = replace(by_hand(*units, residual=residual), degrees=Degrees(dp=2, mp=4))
        terms, at = peak_of(job, 0)
        assert at.startswith(f"recompute of {count - 1}")
        # From the host the input itself comes back; Pa: in a buffer of the all-gather.
        held = terms_of(job, 0)
        comes_back = residual.offload and not residual.partition
        assert held["recomputed"] == (9000 if comes_back else 8000)
        part = 0 if residual.offload or residual.defragment else 250
        assert held.get("allgather_base", 0) == (1000 + part if residual.partition else 0)
        buffers = {term.sub for term in terms if term.tenant is Tenant.COMMUNICATION_BUFFERS}
        # All-gathers read from the chunk: it is theirs.
        assert ("checkpoint" in buffers) == (residual.partition and residual.defragment)
        return sum(term.bytes or 0 for term in terms if term.sub in _WITH_CHECKPOINTS)

    assert with_checkpoints(1) == first
    assert with_checkpoints(40) == first + 39 * more


def test_each_term_names_an_assumption() -> None:
    job = of_shape(backend=Backend.GLOO, element_bytes=BF16, residual=Residual(checkpointing=True))
    for stage in range(4):
        for term in peak_of(job, stage)[0]:
            assert ASSUMPTIONS[term.assumption].formula


def test_units_must_know_their_bytes() -> None:
    with pytest.raises(ValueError, match="unit a does not know its bytes"):
        peak_of(by_hand(replace(PAIR[0], saved_bytes=None)), 0)
