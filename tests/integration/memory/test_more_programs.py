"""What sets each kind of program apart, in bytes that are known beforehand."""

from typing import TYPE_CHECKING

import numpy as np
import pytest
from case_names import INDUCTOR, OPTIMIZERS, PARTITIONED

from zprof.analysis.memory.live_bytes import RankLives, compute_live_curve, find_alive_segments, sum_by_tenant
from zprof.analysis.memory.tables import TENANT_CODES
from zprof.model.tenants import Tenant
from zprof.model.training import Phase

if TYPE_CHECKING:
    from conftest import Recorded


pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("memory")]

#: Bytes of the transformer's and of the small model's parameters (fp32), and the number of their tensors.
P, TENSORS = 13_686_784, 52
SMALL, SMALL_TENSORS = 1_052_672, 8
#: One activation of the small model: 64 x 256 fp32.
ACTIVATION = 64 * 256 * 4
#: A block of the transformer, and the steps of a worker's window.
BLOCK, RECORDED_STEPS = 789_760 * 4, 2


def at_first_backward(lives: RankLives) -> dict[tuple[str, str], int]:
    """Bytes by (tenant, sub) when the window's first backward begins."""
    begins = [t for t, name in lives.timeline.phases if name == Phase.BACKWARD.value]
    rows = find_alive_segments(lives.segments, min(t for t in begins if t >= lives.timeline.begin_ns))
    held: dict[tuple[str, str], int] = {}
    names = [*(tenant.value for tenant in TENANT_CODES), "untagged"]
    for row in rows:
        key = names[lives.segments.tenant[row]], str(lives.segments.sub[row])
        held[key] = held.get(key, 0) + int(lives.segments.bytes[row])
    return held


@pytest.mark.parametrize(
    ("case", "graphs"),
    [("compiled", 1), ("compiled_inductor", 1), ("ddp_compiled", 2), ("fsdp2_compiled", 4)],
)
def test_recorded_steps_run_compiled_code(recorded: "Recorded", case: str, graphs: int) -> None:
    """DDP's optimizer cuts the graph in two; each of FSDP2's four blocks is called by itself."""
    if case == "compiled_inductor" and not INDUCTOR:
        pytest.skip("torch cannot compile C++ from a path with spaces")
    noted = recorded.noted(case, 0)
    assert noted["compiled_runs"] == graphs * RECORDED_STEPS
    assert noted["compiled_graphs"] == 0


def test_compiled_blocks_change_no_tenant_of_fsdp2(recorded: "Recorded") -> None:
    """Gathered parameters and whole gradients are found without a hook on the compiled modules."""
    for compiled, plain in zip(recorded.ranks("fsdp2_compiled"), recorded.ranks("fsdp2"), strict=True):
        assert compiled.tenants[Tenant.TEMPORARY_BUFFERS] <= plain.tenants[Tenant.TEMPORARY_BUFFERS]
    for lives in recorded.lives("fsdp2_compiled"):
        assert most(lives, "gradients", "unreduced") >= BLOCK
        assert most(lives, "communication_buffers", "gathered_param") >= BLOCK


def most(lives: RankLives, tenant: str, sub: str) -> int:
    parts = lives.segments
    ours = (parts.tenant == TENANT_CODES[Tenant(tenant)]) & (parts.sub == sub)
    live = compute_live_curve(parts.begin_ns[ours], parts.end_ns[ours], parts.bytes[ours])[1]
    return int(live.max(initial=0))


def test_a_compiled_model_has_the_states_of_the_plain_one(recorded: "Recorded") -> None:
    (compiled,), (plain,) = recorded.ranks("compiled"), recorded.ranks("single")
    assert compiled.state_bytes == plain.state_bytes
    assert compiled.peak_bytes == pytest.approx(plain.peak_bytes, rel=0.02)


@pytest.mark.parametrize("case", ["reentrant_checkpointing", "other_checkpointing"])
def test_both_kinds_of_checkpointing_keep_the_input_of_each_layer(recorded: "Recorded", case: str) -> None:
    """Four inputs; the output is saved by the loss."""
    (lives,) = recorded.lives(case)
    assert at_first_backward(lives)["activations", "saved"] >= 5 * ACTIVATION
    assert at_first_backward(lives)["activations", "saved"] < 6 * ACTIVATION


@pytest.mark.parametrize("case", ["reentrant_checkpointing", "other_checkpointing"])
def test_what_checkpointing_computes_again_is_an_activation(recorded: "Recorded", case: str) -> None:
    (lives,) = recorded.lives(case)
    recomputed = lives.segments.tenant[lives.segments.sub == "recomputed"]
    assert Phase.RECOMPUTE.value in {name for _, name in lives.timeline.phases}
    assert (recomputed == TENANT_CODES[Tenant.ACTIVATIONS]).all()


def test_what_a_function_keeps_for_itself_is_a_retained_activation(recorded: "Recorded") -> None:
    (lives,) = recorded.lives("retaining")
    assert at_first_backward(lives)["activations", "retained"] >= 4 * ACTIVATION


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_states_of_each_optimizer(recorded: "Recorded", case: str) -> None:
    (memory,) = recorded.ranks(case)
    adam = 2 * SMALL + 4 * SMALL_TENSORS
    assert memory.state_bytes == {
        Tenant.PARAMETERS: SMALL,
        Tenant.GRADIENTS: SMALL,
        Tenant.OPTIMIZER_STATE: SMALL if case == "sgd_momentum" else adam,
    }


def test_a_fused_optimizer_needs_no_temporaries(recorded: "Recorded") -> None:
    """The peak leaves the optimizer; foreach needs a copy of all parameters, one by one of the largest."""
    assert recorded.ranks("adam_fused")[0].peak_phase == Phase.BACKWARD.value
    foreach, single = (
        recorded.ranks(case)[0].tenants[Tenant.TEMPORARY_BUFFERS] for case in ("adam_foreach", "adam_single")
    )
    assert foreach >= SMALL
    assert 2 * 256 * 256 * 4 <= single < SMALL


def test_gradients_that_are_dropped_as_they_come_never_add_up(recorded: "Recorded") -> None:
    for lives in recorded.lives("step_in_backward"):
        gradients = lives.segments.tenant == TENANT_CODES[Tenant.GRADIENTS]
        times = lives.segments.begin_ns[gradients]
        most = max(sum_by_tenant(lives.segments, int(t))[TENANT_CODES[Tenant.GRADIENTS]] for t in times)
        assert 0 < most < P / 5


def test_an_average_of_the_weights_belongs_to_none_of_the_six(recorded: "Recorded") -> None:
    """It was there before the window; an operator that updates it in place makes it nobody's temporary."""
    (averaged,), (plain,) = recorded.ranks("averaged_weights"), recorded.ranks("adam_single")
    assert averaged.untagged_bytes - plain.untagged_bytes == SMALL
    assert averaged.tenants == plain.tenants


def test_gradients_of_several_backward_passes_are_one(recorded: "Recorded") -> None:
    """They are added in place; one gradient of a layer at a time comes on top."""
    (memory,) = recorded.ranks("accumulation")
    assert SMALL < memory.tenants[Tenant.GRADIENTS] <= SMALL + 256 * 256 * 4 + 4 * 256


def test_frozen_parameters_are_parameters_without_gradient_or_state(recorded: "Recorded") -> None:
    added = 4 * (4 * 256 * 8 + 8 + 8 * 4 * 256 + 4 * 256) * 4
    assert recorded.ranks("low_rank")[0].state_bytes == {
        Tenant.PARAMETERS: P + added,
        Tenant.GRADIENTS: added,
        Tenant.OPTIMIZER_STATE: 2 * added + 4 * 4 * 4,
    }


def test_buffers_of_modules_are_parameters(recorded: "Recorded") -> None:
    (lives,) = recorded.lives("convolution")
    buffers = 2 * (32 + 64) * 4 + 2 * 8  # mean and variance of both, and how many batches went in
    assert at_first_backward(lives)["parameters", "buffer"] == buffers


def test_autocast_saves_activations_of_half_the_size(recorded: "Recorded") -> None:
    half, full = (recorded.ranks(case)[0].state_bytes for case in ("autocast", "single"))
    assert half == full
    assert recorded.ranks("autocast")[0].untagged_bytes == 0


def test_tensor_parallel_ranks_hold_half_of_each_split_layer(recorded: "Recorded") -> None:
    half = 3 * (256 * 1024 // 2 + 1024 // 2 + 1024 * 256 // 2 + 256) * 4
    for memory in recorded.ranks("tensor_parallel"):
        assert memory.state_bytes == {
            Tenant.PARAMETERS: half,
            Tenant.GRADIENTS: half,
            Tenant.OPTIMIZER_STATE: 2 * half + 3 * 4 * 4,
        }


@pytest.mark.parametrize("case", ["fsdp2_kept", "fsdp2_accumulation", "fsdp2_offload", "fsdp2_compiled"])
def test_fsdp2_in_all_its_ways_obeys_the_law(recorded: "Recorded", case: str) -> None:
    for memory in recorded.ranks(case):
        assert memory.state_bytes == {
            Tenant.PARAMETERS: P // 2,
            Tenant.GRADIENTS: P // 2,
            Tenant.OPTIMIZER_STATE: P + 4 * TENSORS,
        }


def test_kept_parameters_are_gathered_ones_and_not_parameters(recorded: "Recorded") -> None:
    """Without resharding all blocks are whole when the backward begins: all but the last unit's shards."""
    for lives in recorded.lives("fsdp2_kept"):
        assert at_first_backward(lives)["communication_buffers", "gathered_param"] == P


def test_gradients_that_wait_for_the_last_micro_batch_are_whole(recorded: "Recorded") -> None:
    for memory in recorded.ranks("fsdp2_accumulation"):
        assert memory.tenants[Tenant.GRADIENTS] > P // 2


@pytest.mark.parametrize("case", ["ddp_static", "ddp_unused", "ddp_accumulation", "ddp_compiled"])
def test_ddp_in_all_its_ways_holds_everything(recorded: "Recorded", case: str) -> None:
    for memory in recorded.ranks(case):
        assert memory.state_bytes == {
            Tenant.PARAMETERS: P,
            Tenant.GRADIENTS: P,
            Tenant.OPTIMIZER_STATE: 2 * P + 4 * TENSORS,
        }
        assert memory.tenants[Tenant.COMMUNICATION_BUFFERS] == pytest.approx(P, abs=1000)


def test_a_redundancy_free_optimizer_shares_its_state(recorded: "Recorded") -> None:
    both = recorded.ranks("redundancy_free")
    total = sum(memory.state_bytes[Tenant.OPTIMIZER_STATE] for memory in both if memory.state_bytes)
    assert total == 2 * P + 4 * TENSORS
    assert all(memory.state_bytes[Tenant.PARAMETERS] == P for memory in both if memory.state_bytes)


@pytest.mark.parametrize("case", PARTITIONED)
def test_partitioned_checkpoints_are_half_of_each_input(recorded: "Recorded", case: str) -> None:
    """L x B x T x D x b / N_mp: four blocks' inputs of 8 x 64 x 128 elements, over two ranks."""
    element = 2 if case.endswith("bf16") else 4
    for lives in recorded.lives(case):
        begins = [t for t, name in lives.timeline.phases if name == Phase.BACKWARD.value]
        rows = find_alive_segments(lives.segments, min(t for t in begins if t >= lives.timeline.begin_ns))
        kept = lives.segments.tenant[rows] == TENANT_CODES[Tenant.ACTIVATIONS]
        sizes = lives.segments.bytes[rows][kept]
        assert np.count_nonzero(sizes == 8 * 64 * 128 * element // 2) == 4
