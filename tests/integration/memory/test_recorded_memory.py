"""Every recorded program against an exact count of the allocator on all threads, and against known states.

The counter is a small library preloaded into the ranks; it shares nothing with zprof or the profiler.
"""

import numpy as np
import pytest
from memory_cases import COUNTERS, MEMORY_CASES, PSI
from recorded_memory import Recorded

from tests.support.expected_states import expected_state
from zprof.analysis.memory.live_bytes import compute_live_curve
from zprof.model.tenants import Tenant

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("memory")]

STATES = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)


def cases(*names: str) -> list[object]:
    """Return the named cases (default: all), those marked that only the slow run records."""
    return [
        pytest.param(name, marks=pytest.mark.slow) if MEMORY_CASES[name].slow else name
        for name in names or MEMORY_CASES
    ]


@pytest.mark.parametrize("case", cases())
def test_peak_is_the_exact_count_and_has_owners(recorded: Recorded, case: str) -> None:
    for memory in recorded.ranks(case):
        assert memory.peak_bytes == pytest.approx(recorded.noted(case, memory.rank)["max_bytes"], rel=0.01)
        assert not memory.upper_bound
        assert sum(memory.tenants.values()) + memory.untagged_bytes == memory.peak_bytes
        hidden = MEMORY_CASES[case].untagged_bytes
        assert 0 <= memory.untagged_bytes - hidden <= 0.001 * memory.peak_bytes, f"rank {memory.rank}"
    assert not recorded.run(case).gaps()


@pytest.mark.parametrize("case", cases())
def test_tenants_sum_to_live_bytes_at_every_event(recorded: Recorded, case: str) -> None:
    for lives in recorded.lives(case):
        blocks, parts = lives.blocks, lives.segments
        times, live = compute_live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)
        part_times, part_live = compute_live_curve(parts.begin_ns, parts.end_ns, parts.bytes)
        at = np.searchsorted(part_times, times, side="right") - 1
        assert np.array_equal(np.where(at >= 0, part_live[at], 0), live)


@pytest.mark.parametrize("case", cases(*(name for name, case in MEMORY_CASES.items() if case.states)))
def test_states_are_known_to_the_byte(recorded: Recorded, case: str) -> None:
    assert len(recorded.ranks(case)) == MEMORY_CASES[case].ranks
    for memory in recorded.ranks(case):
        assert memory.state_bytes == dict(zip(STATES, MEMORY_CASES[case].states or (), strict=True))


@pytest.mark.parametrize("case", cases(*(name for name, case in MEMORY_CASES.items() if case.job)))
def test_states_of_jobs_are_those_of_the_formula(recorded: Recorded, case: str) -> None:
    expected = expected_state(recorded.run(case).manifest.training)
    assert expected
    for memory in recorded.ranks(case):
        assert memory.state_bytes == expected, f"rank {memory.rank}"


def test_masters_are_a_third_of_the_optimizer_state(recorded: Recorded) -> None:
    """Of 12 bytes, 4 are the fp32 master weight and 8 the two moments."""
    for lives in recorded.lives("zero3_bf16"):
        parts, end_ns = lives.segments, lives.timeline.end_ns
        alive = (parts.begin_ns <= end_ns) & (parts.end_ns > end_ns)
        held = {sub: int(parts.bytes[alive & (parts.sub == sub)].sum()) for sub in ("master", "state")}
        assert held == {"master": 4 * PSI // 2, "state": 8 * PSI // 2 + COUNTERS}


@pytest.mark.parametrize("case", ["single", "fsdp2", "zero3_bf16"])
def test_largest_allocations_are_ranked_and_named(recorded: Recorded, case: str) -> None:
    top = [allocation for allocation in recorded.memory(case).top if allocation.rank == 0]
    assert len(top) == 10
    assert [allocation.bytes for allocation in top] == sorted((a.bytes for a in top), reverse=True)
    assert all(allocation.tenant != "untagged" and allocation.sub for allocation in top)


def test_peak_is_placed_in_step_and_phase(recorded: Recorded) -> None:
    (memory,) = recorded.ranks("single")
    assert memory.peak_step in (2, 3)
    assert memory.peak_phase == "backward"
    assert recorded.ranks("adam_foreach")[0].peak_phase == "optimizer"
    assert recorded.ranks("adam_fused")[0].peak_phase == "backward", "it needs no temporaries"
