"""ZeRO-R by the tenants of recorded jobs (arXiv 1910.02054, section 6), to the byte."""

import pytest
from memory_cases import BUFFER_ELEMENTS
from recorded_memory import Recorded, held_at_first_backward, most

from zprof.model.tenants import Tenant

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("memory")]

#: The inputs of all blocks: 4 of 8 x 64 x 128 elements, fp32.
CHECKPOINTS = 4 * 8 * 64 * 128 * 4

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("case", "kept"),
    [
        ("pa", CHECKPOINTS // 2),
        pytest.param("md", CHECKPOINTS, marks=slow),
        pytest.param("pa_md", CHECKPOINTS // 2, marks=slow),
        pytest.param("pa_cpu", 0, marks=slow),
    ],
)
def test_checkpoints_are_divided_by_pa_and_leave_the_device_with_cpu(
    recorded: Recorded, case: str, kept: int
) -> None:
    for whole, other in zip(recorded.lives("whole"), recorded.lives(case), strict=True):
        before = held_at_first_backward(whole, Tenant.ACTIVATIONS)
        assert before > CHECKPOINTS
        assert before - held_at_first_backward(other, Tenant.ACTIVATIONS) == CHECKPOINTS - kept


@pytest.mark.parametrize("case", ["cb", pytest.param("cb_larger", marks=slow)])
def test_constant_buffers_are_all_that_communication_takes(recorded: Recorded, case: str) -> None:
    """What gloo allocates for itself within a collective (``backend_scratch``) is left out."""
    for lives in recorded.lives(case):
        assert most(lives, Tenant.COMMUNICATION_BUFFERS, but="backend_scratch") == 2 * BUFFER_ELEMENTS * 4


@slow
def test_without_constant_buffers_communication_takes_more(recorded: Recorded) -> None:
    for lives in recorded.lives("no_cb"):
        assert most(lives, Tenant.COMMUNICATION_BUFFERS, but="backend_scratch") > 4 * BUFFER_ELEMENTS * 4
