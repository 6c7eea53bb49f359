"""What sets each kind of program apart, in bytes that are known beforehand."""

import pytest
from memory_cases import MEMORY_CASES, SMALL, P
from recorded_memory import Recorded, held_at_first_backward, most

from zprof.model.tenants import Tenant
from zprof.model.training import Phase

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("memory")]

#: One activation of the small model (64 x 256), and one of its weights with the bias.
ACTIVATION, LAYER = 64 * 256 * 4, (256 * 256 + 256) * 4
RECORDED_STEPS = 2

slow = pytest.mark.slow


def test_ddp_buckets_are_communication(recorded: Recorded) -> None:
    for memory in recorded.ranks("ddp"):
        assert memory.tenants[Tenant.COMMUNICATION_BUFFERS] == P


@slow
def test_ddp_buckets_that_are_the_gradients_are_no_communication(recorded: Recorded) -> None:
    for memory in recorded.ranks("ddp_bucket_view"):
        assert memory.tenants[Tenant.COMMUNICATION_BUFFERS] == 0
        assert memory.tenants[Tenant.GRADIENTS] >= P


@pytest.mark.parametrize(
    ("case", "graphs"),
    [
        pytest.param("compiled", 1, marks=slow),
        pytest.param("compiled_inductor", 1, marks=slow),
        pytest.param("ddp_compiled", 2, marks=slow),  # the optimizer of DDP cuts the graph in two
        pytest.param("fsdp2_compiled", 4, marks=slow),
    ],
)
def test_recorded_steps_run_compiled_code(recorded: Recorded, case: str, graphs: int) -> None:
    if case not in MEMORY_CASES:
        pytest.skip("torch cannot compile C++ from a path with spaces")
    noted = recorded.noted(case, 0)
    assert (noted["compiled_runs"], noted["compiled_graphs"]) == (graphs * RECORDED_STEPS, 0)


@pytest.mark.parametrize("case", ["checkpointing", pytest.param("checkpointing_reentrant", marks=slow)])
def test_checkpointing_saves_the_inputs_of_layers(recorded: Recorded, case: str) -> None:
    """Four inputs; the output is saved by the loss."""
    (lives,) = recorded.lives(case)
    assert 5 * ACTIVATION <= held_at_first_backward(lives, Tenant.ACTIVATIONS, "saved") < 6 * ACTIVATION
    assert Phase.RECOMPUTE in {name for _, name in lives.timeline.phases}


def test_what_a_function_keeps_for_its_backward_is_an_activation(recorded: Recorded) -> None:
    (lives,) = recorded.lives("retaining")
    assert held_at_first_backward(lives, Tenant.ACTIVATIONS, "retained") >= 4 * ACTIVATION


def test_gradients_that_are_dropped_at_once_never_add_up(recorded: Recorded) -> None:
    (lives,) = recorded.lives("step_in_backward")
    assert 0 < most(lives, Tenant.GRADIENTS) < P / 5


def test_gradients_of_several_backward_passes_are_added_in_place(recorded: Recorded) -> None:
    (memory,) = recorded.ranks("accumulation")
    assert SMALL < memory.tenants[Tenant.GRADIENTS] <= SMALL + LAYER


@pytest.mark.parametrize("case", ["hidden_tensor", "averaged_weights"])
def test_a_tensor_without_an_owner_changes_no_tenant(recorded: Recorded, case: str) -> None:
    assert recorded.ranks(case)[0].tenants == recorded.ranks("single_mlp")[0].tenants


def test_buffers_of_modules_are_parameters(recorded: Recorded) -> None:
    (lives,) = recorded.lives("convolution")
    buffers = 2 * (32 + 64) * 4 + 2 * 8  # mean and variance of both, and how many batches went in
    assert held_at_first_backward(lives, Tenant.PARAMETERS, "buffer") == buffers


@slow
def test_blocks_that_are_not_resharded_stay_gathered(recorded: Recorded) -> None:
    for lives in recorded.lives("fsdp2_kept"):
        assert held_at_first_backward(lives, Tenant.COMMUNICATION_BUFFERS, "gathered_param") == P


@slow
def test_gradients_that_wait_for_the_last_micro_batch_are_whole(recorded: Recorded) -> None:
    for memory in recorded.ranks("fsdp2_accumulation"):
        assert memory.tenants[Tenant.GRADIENTS] > P // 2
