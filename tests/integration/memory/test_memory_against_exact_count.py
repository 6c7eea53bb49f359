"""Peaks and tenants of real programs against an exact count of the allocator on all threads.

The counter is a small library preloaded into the ranks; it shares nothing with zprof or the profiler.
"""

from typing import TYPE_CHECKING

import numpy as np
import pytest
from case_names import ENGINE, HIDING, PROGRAMS

from tests.support.expected_states import expected_state
from zprof.analysis.memory.live_bytes import compute_live_curve
from zprof.model.tenants import Tenant

if TYPE_CHECKING:
    from conftest import Recorded


pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("memory")]

#: The parameters of the transformer in bytes (fp32), and its tensors.
P, TENSORS = 13_686_784, 52


@pytest.mark.parametrize("case", [*PROGRAMS, *HIDING])
def test_peak_is_within_one_percent_of_the_exact_count(recorded: "Recorded", case: str) -> None:
    for memory in recorded.ranks(case):
        exact = recorded.exact_bytes(case, memory.rank)
        assert memory.peak_bytes == pytest.approx(exact, rel=0.01), f"rank {memory.rank}"
        assert not memory.upper_bound


@pytest.mark.parametrize("case", PROGRAMS)
def test_untagged_is_at_most_a_thousandth_of_the_peak(recorded: "Recorded", case: str) -> None:
    for memory in recorded.ranks(case):
        assert memory.untagged_bytes <= 0.001 * memory.peak_bytes, f"rank {memory.rank}"


@pytest.mark.parametrize("case", [*PROGRAMS, *HIDING])
def test_tenants_sum_to_live_bytes_at_every_event(recorded: "Recorded", case: str) -> None:
    for lives in recorded.lives(case):
        blocks, parts = lives.blocks, lives.segments
        times, live = compute_live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)
        part_times, part_live = compute_live_curve(parts.begin_ns, parts.end_ns, parts.bytes)
        at = np.searchsorted(part_times, times, side="right") - 1
        assert np.array_equal(np.where(at >= 0, part_live[at], 0), live)


@pytest.mark.parametrize("case", PROGRAMS)
def test_peak_is_the_sum_of_its_tenants(recorded: "Recorded", case: str) -> None:
    for memory in recorded.ranks(case):
        assert sum(memory.tenants.values()) + memory.untagged_bytes == memory.peak_bytes


@pytest.mark.parametrize("case", ENGINE)
def test_states_of_the_engine_equal_the_law_to_the_byte(recorded: "Recorded", case: str) -> None:
    expected = expected_state(recorded.run(case).manifest.training)
    for memory in recorded.ranks(case):
        assert memory.state_bytes == expected, f"rank {memory.rank}"


@pytest.mark.parametrize(
    ("case", "states"),
    [
        ("single_mlp", (1_052_672, 1_052_672, 2_105_376)),
        ("single", (P, P, 2 * P + 4 * TENSORS)),
        ("ddp", (P, P, 2 * P + 4 * TENSORS)),
        ("ddp_bucket_view", (P, P, 2 * P + 4 * TENSORS)),
        ("fsdp2", (P // 2, P // 2, P + 4 * TENSORS)),
        ("fsdp2_bf16", (P // 2, P // 2, P + 4 * TENSORS)),
    ],
)
def test_states_equal_their_golden_value(
    recorded: "Recorded", case: str, states: tuple[int, int, int]
) -> None:
    tenants = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
    for memory in recorded.ranks(case):
        assert memory.state_bytes == dict(zip(tenants, states, strict=True))


def test_buckets_of_ddp_are_communication_only_where_they_are_not_the_gradients(recorded: "Recorded") -> None:
    for memory in recorded.ranks("ddp"):
        assert memory.tenants[Tenant.COMMUNICATION_BUFFERS] == P
    for memory in recorded.ranks("ddp_bucket_view"):
        assert memory.tenants[Tenant.COMMUNICATION_BUFFERS] == 0
        assert memory.tenants[Tenant.GRADIENTS] >= P


def test_activations_equal_what_one_process_saves(recorded: "Recorded") -> None:
    """DDP changes neither the activations nor the temporaries of the same model at its peak."""
    alone = recorded.ranks("single")[0].tenants
    for memory in recorded.ranks("ddp"):
        assert memory.tenants[Tenant.ACTIVATIONS] == alone[Tenant.ACTIVATIONS]


def test_checkpointing_moves_memory_out_of_the_activations(recorded: "Recorded") -> None:
    kept = recorded.ranks("single")[0].tenants[Tenant.ACTIVATIONS]
    recomputed = recorded.ranks("single_checkpointing")[0].tenants[Tenant.ACTIVATIONS]
    assert recomputed < 0.3 * kept


def test_a_tensor_that_nobody_owns_is_untagged(recorded: "Recorded") -> None:
    (hidden,), (plain,) = recorded.ranks("hidden_tensor"), recorded.ranks("single_mlp")
    assert hidden.untagged_bytes - plain.untagged_bytes == 2_000_000
    assert hidden.tenants == plain.tenants


@pytest.mark.parametrize("case", ["single", "fsdp2", "zero3_fp32"])
def test_largest_allocations_are_named(recorded: "Recorded", case: str) -> None:
    top = [allocation for allocation in recorded.memory(case).top if allocation.rank == 0]
    assert len(top) == 10
    assert [allocation.bytes for allocation in top] == sorted((a.bytes for a in top), reverse=True)
    assert all(allocation.tenant != "untagged" and allocation.sub for allocation in top)


def test_peak_is_placed_in_step_and_phase(recorded: "Recorded") -> None:
    (memory,) = recorded.ranks("single")
    assert memory.peak_step in (2, 3)
    assert memory.peak_phase == "backward"
    assert recorded.ranks("single_mlp")[0].peak_phase == "optimizer"


def test_nothing_went_wrong_while_recording(recorded: "Recorded") -> None:
    assert not [gap for case in PROGRAMS for gap in recorded.run(case).gaps()]
