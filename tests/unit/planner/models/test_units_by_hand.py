"""Units of a shape, by hand: elements of model-parallel ranks, what is not counted, moments of a block."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.model.job import Batch, Degrees, ElementBytes, Job, Shape, Unit
from zprof.planner.gpt_units import moments_by_unit, with_units

FP32 = ElementBytes(parameter=4, gradient=4, optimizer_state=8, gathered=4, reduced=4, gradient_copy=0)
SHAPE = Shape(layers=2, hidden=8, heads=2, vocabulary=12, context=6, tied=False)
JOB = Job(parameters=1, shape=SHAPE, batch=Batch(samples=2, sequence=5), element_bytes=FP32)
#: Tokens x hidden x 4 bytes.
STREAM = 2 * 5 * 8 * 4


def test_elements_of_a_block_and_of_the_root() -> None:
    root, *blocks = with_units(JOB).units
    assert [unit.name for unit in blocks] == ["blocks.0", "blocks.1"]
    assert {unit.elements for unit in blocks} == {12 * 64 + 13 * 8}
    assert root.elements == 2 * 12 * 8 + 6 * 8 + 2 * 8
    assert root.encloses
    assert not any(unit.encloses for unit in blocks)


def test_model_parallel_ranks_divide_matrices_and_their_biases_only() -> None:
    root, block, _ = with_units(replace(JOB, degrees=Degrees(mp=2))).units
    assert block.elements == (12 * 64 + 3 * 8 + 4 * 8) // 2 + 2 * 8 + 4 * 8
    assert root.elements == 2 * 12 * 8 // 2 + 6 * 8 + 2 * 8


def test_a_vocabulary_of_nought_is_not_counted() -> None:
    bare = with_units(replace(JOB, shape=replace(SHAPE, vocabulary=0, context=0))).units[0]
    assert bare.elements == 2 * 8
    assert with_units(JOB).units[0].saved_bytes == (
        8 * (2 * 6 + 5)  # tokens of the step, and positions
        + 2 * STREAM  # inputs of the norm and of the head
        + 2 * 10 * 4  # mean and 1/std
        + 4 * 10 * 12  # log-softmax
        + 8 * 10  # targets
        + 4  # and their number
    )


def test_tied_weights_count_once() -> None:
    tied = with_units(replace(JOB, shape=replace(SHAPE, tied=True))).units[0]
    assert with_units(JOB).units[0].elements - tied.elements == 12 * 8


def test_what_a_block_keeps() -> None:
    block = with_units(JOB).units[1]
    inputs = 1 + 1 + 3 + 1 + 1 + 1 + 4 + 4
    assert block.saved_bytes == inputs * STREAM + 2 * 2 * 10 * 4 + 4 * 10 * 2
    assert block.checkpoint_bytes == STREAM


def test_model_parallel_ranks_divide_what_stands_between_the_matrices() -> None:
    block = with_units(replace(JOB, degrees=Degrees(mp=2))).units[1]
    assert block.saved_bytes == 4 * STREAM + 12 * STREAM // 2 + 2 * 2 * 10 * 4 + 4 * 10 * 2 // 2


def test_flop_of_a_block_and_of_the_head() -> None:
    root, block, _ = with_units(JOB).units
    assert block.forward_flop == 24 * 10 * 64 + 4 * 10 * 5 * 8
    assert root.forward_flop == 2 * 10 * 8 * 12


def test_the_backward_of_a_block_is_highest_at_its_gelu_and_in_its_attention() -> None:
    job = with_units(JOB)
    moments = moments_by_unit(job)(job.units[1])
    assert moments is not None
    work = {moment.operator: moment.work_bytes for moment in moments.backward}
    assert work["gelu"] == (1 + 4 + 4) * STREAM
    assert work["stack"] == work["clone"] == (1 + 3 + 3) * STREAM
    assert job.units[1].backward_work_bytes == work["gelu"]
    assert moments.backward[-1].work_bytes == STREAM  # the gradient of its input


@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, tied=True), replace(SHAPE, context=0)])
@pytest.mark.parametrize("mp", [1, 2])
def test_the_backward_makes_the_gradient_of_each_parameter_once(shape: Shape, mp: int) -> None:
    job = with_units(replace(JOB, shape=shape, degrees=Degrees(mp=mp)))
    for unit in job.units:
        moments = moments_by_unit(job)(unit)
        assert moments is not None
        last = (moments.backward_end or moments.backward)[-1]
        assert last.gradient_elements == unit.elements
        assert (last.saved_bytes, last.fresh_elements) == (0, 0)


def test_gradients_of_tied_weights_wait_for_the_embedding() -> None:
    job = with_units(replace(JOB, shape=replace(SHAPE, tied=True)))
    moments = moments_by_unit(job)(job.units[0])
    assert moments is not None
    words = 12 * 8
    # The head's is a temporary buffer, and the embedding's too when a third, their sum, is the gradient.
    assert (moments.backward[-1].held_bytes, moments.backward[-1].gradient_elements) == (words * 4, 2 * 8)
    added = moments.backward_end[-2]
    assert (added.operator, added.held_bytes, added.work_bytes) == ("add", words * 4, words * 4)
    assert added.fresh_elements == words
    assert (moments.backward_end[-1].held_bytes, moments.backward_end[-1].fresh_elements) == (0, 0)


def test_other_units_have_no_moments_and_stay() -> None:
    own = Unit(name="own", elements=5)
    job = replace(JOB, units=(own,))
    assert with_units(job) is job
    assert moments_by_unit(job)(own) is None
    bare = Job(parameters=7)
    assert with_units(bare) is bare


@given(
    hidden=st.sampled_from([8, 16, 32]),
    mp=st.sampled_from([1, 2, 4]),
    samples=st.integers(1, 4),
    element=st.sampled_from([2, 4]),
)
def test_more_model_parallel_ranks_never_keep_more(hidden: int, mp: int, samples: int, element: int) -> None:
    def saved(ranks: int) -> int:
        job = replace(
            JOB,
            shape=replace(SHAPE, hidden=hidden, heads=4),
            batch=Batch(samples=samples, sequence=8),
            degrees=Degrees(mp=ranks),
            element_bytes=replace(FP32, parameter=element),
        )
        return with_units(job).units[1].saved_bytes or 0

    assert saved(2 * mp) < saved(mp)
