"""Units of a shape, by hand: elements of model-parallel ranks, what is not counted, moments of a block."""

import pytest
from msgspec.structs import replace

from zprof.model.job import Batch, Degrees, ElementBytes, Job, Shape
from zprof.planner.gpt_units import moments_by_unit, with_units

FP32 = ElementBytes(parameter=4, gradient=4, optimizer_state=8, gathered=4, reduced=4, gradient_copy=0)
SHAPE = Shape(layers=2, hidden=8, heads=2, vocabulary=12, context=6, tied=False)
JOB = Job(parameters=1, shape=SHAPE, batch=Batch(samples=2, sequence=5), element_bytes=FP32)
#: Tokens x hidden x 4 bytes.
STREAM = 2 * 5 * 8 * 4
TIED = replace(JOB, shape=replace(SHAPE, tied=True))
TWO_RANKS = replace(JOB, degrees=Degrees(mp=2))


@pytest.mark.parametrize(
    ("job", "root", "block"),
    [
        (JOB, 2 * 12 * 8 + 6 * 8 + 2 * 8, 12 * 64 + 13 * 8),
        (TIED, 12 * 8 + 6 * 8 + 2 * 8, 12 * 64 + 13 * 8),
        # Matrices and the biases between them are divided.
        (TWO_RANKS, 12 * 8 + 6 * 8 + 2 * 8, (12 * 64 + 3 * 8 + 4 * 8) // 2 + 2 * 8 + 4 * 8),
        (replace(JOB, shape=replace(SHAPE, vocabulary=0, context=0)), 2 * 8, 12 * 64 + 13 * 8),
    ],
)
def test_elements_of_the_root_and_of_a_block(job: Job, root: int, block: int) -> None:
    units = with_units(job).units
    assert [(unit.name, unit.encloses) for unit in units[1:]] == [("blocks.0", False), ("blocks.1", False)]
    assert (units[0].encloses, units[0].elements) == (True, root)
    assert {unit.elements for unit in units[1:]} == {block}


def test_flop_of_units_and_bytes_that_model_parallel_ranks_divide() -> None:
    """What stands between the matrices is divided; statistics of norms are not."""
    root, block, _ = with_units(JOB).units
    assert block.forward_flop == 24 * 10 * 64 + 4 * 10 * 5 * 8
    assert root.forward_flop == 2 * 10 * 8 * 12
    statistics, log_sums = 2 * 2 * 10 * 4, 4 * 10 * 2
    part = with_units(TWO_RANKS).units[1]
    assert part.saved_bytes == 4 * STREAM + 12 * STREAM // 2 + statistics + log_sums // 2


def test_the_backward_of_a_block_is_highest_at_its_gelu_and_in_its_attention() -> None:
    job = with_units(JOB)
    moments = moments_by_unit(job)(job.units[1])
    assert moments is not None
    work = {moment.operator: moment.work_bytes for moment in moments.backward}
    assert work["gelu"] == job.units[1].backward_work_bytes == (1 + 4 + 4) * STREAM
    assert work["stack"] == work["clone"] == (1 + 3 + 3) * STREAM
    assert moments.backward[-1].work_bytes == STREAM  # the gradient of its input


@pytest.mark.parametrize("job", [JOB, TIED, TWO_RANKS, replace(JOB, shape=replace(SHAPE, context=0))])
def test_the_backward_makes_the_gradient_of_each_parameter_once(job: Job) -> None:
    job = with_units(job)
    for unit in job.units:
        moments = moments_by_unit(job)(unit)
        assert moments is not None
        last = (moments.backward_end or moments.backward)[-1]
        assert last.gradient_elements == unit.elements
        assert (last.saved_bytes, last.fresh_elements) == (0, 0)
