"""The memory of an imported snapshot: its peak, who holds it, on what that rests, and what is not known."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import MIB
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.snapshot_histories import MAIN, STATE, Training, at, tables_of, trained, written
from tests.support.snapshots import random_history
from zprof.analysis.memory.attribution.assign import attribute_history
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.breakdown import thin_recording
from zprof.analysis.memory.history import find_allocated_peak, read_history
from zprof.analysis.memory.snapshot import analyse_snapshot_rank, make_history_lives
from zprof.analysis.memory.state_checks import RankMemoryResult
from zprof.analysis.memory.tables import (
    find_annotated_phase,
    find_annotated_step,
    list_annotated_phases,
    list_annotated_steps,
)
from zprof.collectors.read.snapshot.convert import convert_snapshot
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant


def imported(path: Path, *allocators: Allocator) -> RankMemoryResult:
    return analyse_snapshot_rank(written(path, convert_snapshot(snapshot_of(*allocators)).tables()), 0)


def test_the_peak_of_a_training_program_by_tenant(tmp_path: Path) -> None:
    program = trained()
    answer = imported(tmp_path, program.allocator)
    (memory,) = answer.per_rank
    most = max(truth.requested_bytes for truth in program.allocator.states)
    assert memory.peak_bytes == most == sum(memory.tenants.values())
    assert memory.tenants[Tenant.PARAMETERS] == 3 * 4 * MIB
    assert memory.tenants[Tenant.OPTIMIZER_STATE] == 6 * 4 * MIB
    assert memory.untagged_bytes == 0
    assert memory.basis_bytes == {Basis.TAGGED: 0, Basis.RULE: most, Basis.SIZES: 0, Basis.UNKNOWN: 0}
    assert sum(part.bytes for part in memory.parts) == most
    assert (memory.peak_step, memory.peak_phase, memory.non_pytorch_bytes) == (-1, "optimizer", None)
    assert memory.reserved_unused_bytes == (answer.devices[0].reserved_bytes or 0) - most
    assert "allocated peak" not in [gap.what for gap in answer.gaps]


def test_the_largest_allocations_carry_stack_basis_and_count(tmp_path: Path) -> None:
    program = trained()
    program.alloc(90 * MIB, [at("evil\x1b[2J.py", "[bold]name\n"), MAIN])
    program.alloc(80 * MIB, STATE, tag="zprof:activations/kept")
    for size in (60, 70, 65):
        program.alloc(size * MIB, [at("/home/user/cache.py", "keep"), MAIN])
    cache, once, tagged = imported(tmp_path, program.allocator).top[:3]
    assert (cache.count, cache.bytes, cache.total_bytes) == (3, 70 * MIB, 195 * MIB)
    assert (once.tenant, once.basis, once.bytes) == ("untagged", Basis.UNKNOWN, 90 * MIB)
    assert once.stack == ("evil\x1b[2J.py:7 [bold]name\n", "/home/user/train.py:7 main")
    assert (tagged.tenant, tagged.sub, tagged.basis) == ("activations", "kept", Basis.TAGGED)


def test_memory_without_an_owner_is_a_gap(tmp_path: Path) -> None:
    program = Training()
    program.alloc(10 * MIB, [])
    program.allocator.begin_history()
    program.alloc(20 * MIB, [at("/home/user/x.py", "f")])
    answer = imported(tmp_path, program.allocator)
    assert answer.per_rank[0].untagged_bytes == 30 * MIB
    (gap,) = [gap for gap in answer.gaps if gap.what.startswith("tenants of")]
    assert "10.0 MiB" in gap.reason, "from before the history"
    assert "20.0 MiB" in gap.reason, "from within it"


def test_of_several_devices_the_fullest_is_analysed(tmp_path: Path) -> None:
    small, large = Allocator(0), Allocator(1)
    for allocator, size in ((small, 5 * MIB), (large, 50 * MIB)):
        allocator.begin_history()
        allocator.alloc(size)
    answer = imported(tmp_path, small, large)
    assert [memory.device for memory in answer.per_rank] == ["cuda:1"]
    assert {leaf.device for leaf in answer.devices} == {"cuda:1"}
    assert [gap.what for gap in answer.gaps if "cuda:0" in gap.what] == ["memory of cuda:0"]


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_tenants_of_the_timeline_sum_to_the_live_bytes(seed: int) -> None:
    allocator = random_history(seed, 60)
    tables = tables_of(allocator)
    history = read_history(tables["block"], tables["segment"], "cuda:0")
    if history is None or not len(history.blocks):
        return
    blocks = history.blocks
    names, passes, _ = attribute_history(blocks, StackIndex(tables["stack"]))
    timeline = thin_recording(0, "cuda:0", make_history_lives(history, names, passes), points=9)
    totals = np.sum(list(timeline.tenants.values()), axis=0)
    assert totals.max() == find_allocated_peak(history)[1]
    assert len(timeline.time_ns) <= 9
    assert min(min(column) for column in timeline.tenants.values()) >= 0
    for offset, total in zip(timeline.time_ns, totals, strict=True):
        now = history.begin_ns + offset
        assert blocks.requested_bytes[(blocks.begin_ns <= now) & (blocks.freed_ns > now)].sum() == total


def test_step_and_phase_come_from_the_programs_own_ranges() -> None:
    allocator = trained(0).allocator
    moments = []
    for opens, closes in (
        (["ProfilerStep#3", "forward_of_my_model", "## backward ##"], []),
        (["Optimizer.step#AdamW.step"], ["## backward ##", "ProfilerStep#3"]),
    ):
        for name, stage in [(name, "END") for name in closes] + [(name, "START") for name in opens]:
            allocator.tick(10)
            allocator.annotate(name, stage)
        moments.append(allocator.now_us * 1000)
        allocator.tick(10)
    mark = tables_of(allocator)["mark"]
    found = [(find_annotated_step(mark, now), find_annotated_phase(mark, now)) for now in (0, *moments)]
    assert found == [(-1, ""), (3, "backward"), (-1, "optimizer")]
    assert [step for _, step in list_annotated_steps(mark)] == [3]
    assert [span.phase for span in list_annotated_phases(mark)] == ["backward", "optimizer"]
