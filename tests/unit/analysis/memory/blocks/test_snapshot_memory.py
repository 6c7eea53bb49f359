"""The memory of an imported snapshot: its peak, who holds it, on what that rests, and what is not known."""

import dataclasses
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from history_tables import Told, frames_of, told
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory_device import written
from training_history import MAIN, STATE, Training, at

from tests.support.snapshots import MIB, Allocator, random_history, snapshot_of
from zprof.analysis.memory.history import compute_terms, find_allocated_peak, read_history
from zprof.analysis.memory.rank_result import RankMemoryResult
from zprof.analysis.memory.snapshot import analyse_snapshot_rank
from zprof.analysis.memory.stack_origins import Origin, Stacks
from zprof.analysis.memory.tenant_rules import name_tenants
from zprof.analysis.memory.thinning import thin_history
from zprof.analysis.memory.timeline import find_annotated_phase, find_annotated_step
from zprof.collectors.snapshot.convert import convert_snapshot
from zprof.model.errors import BadInput
from zprof.model.memory import Basis
from zprof.model.tenants import Tenant


def imported(path: Path, *allocators: Allocator) -> RankMemoryResult:
    return analyse_snapshot_rank(written(path, convert_snapshot(snapshot_of(*allocators)).tables()), 0)


def trained() -> Training:
    program = Training()
    program.build()
    program.step()
    program.step()
    return program


def test_the_peak_of_a_training_program_by_tenant(tmp_path: Path) -> None:
    program = trained()
    answer = imported(tmp_path, program.allocator)
    (memory,) = answer.per_rank
    most = max(truth.requested_bytes for truth in program.allocator.truth)
    assert memory.peak_bytes == most
    assert sum(memory.tenants.values()) + memory.untagged_bytes == most
    assert memory.tenants[Tenant.PARAMETERS] == 3 * 4 * MIB
    assert memory.tenants[Tenant.OPTIMIZER_STATE] == 6 * 4 * MIB
    assert memory.untagged_bytes == 0
    assert memory.basis_bytes == {Basis.TAGGED: 0, Basis.RULE: most, Basis.UNKNOWN: 0}
    assert memory.method.startswith("rules on stacks: 100.0 % of the peak")
    assert sum(part.bytes for part in memory.parts) == most
    assert {part.basis for part in memory.parts} == {Basis.RULE}
    assert (memory.peak_step, memory.peak_phase) == (-1, "")
    assert memory.reserved_unused_bytes == (answer.devices[0].reserved_bytes or 0) - most
    assert memory.non_pytorch_bytes is None


def test_the_largest_allocations_carry_their_stacks_and_their_basis(tmp_path: Path) -> None:
    program = trained()
    program.alloc(90 * MIB, [at("evil\x1b[2J.py", "[bold]name\n"), MAIN])
    program.alloc(80 * MIB, STATE, tag="zprof:activations/kept")
    top = imported(tmp_path, program.allocator).top
    assert [(entry.bytes, entry.tenant, entry.basis) for entry in top[:2]] == [
        (90 * MIB, "untagged", Basis.UNKNOWN),
        (80 * MIB, "activations", Basis.TAGGED),
    ]
    assert top[0].stack == ("evil\x1b[2J.py:7 [bold]name\n", "/home/user/train.py:7 main")
    assert top[1].sub == "kept"


def test_equal_allocations_are_one_entry_with_their_count(tmp_path: Path) -> None:
    program = trained()
    for size in (30, 40, 35):
        program.alloc(size * MIB, [at("/home/user/cache.py", "keep"), MAIN])
    program.alloc(90 * MIB, [at("/home/user/once.py", "keep"), MAIN])
    first, second = imported(tmp_path, program.allocator).top[:2]
    assert (first.count, first.bytes, first.total_bytes) == (3, 40 * MIB, 105 * MIB)
    assert (second.count, second.bytes, second.total_bytes) == (1, 90 * MIB, 90 * MIB)


def test_what_has_no_owner_is_a_gap_that_says_why(tmp_path: Path) -> None:
    program = Training()
    program.alloc(10 * MIB, [])
    program.allocator.begin_history()
    program.alloc(20 * MIB, [at("/home/user/x.py", "f")])
    answer = imported(tmp_path, program.allocator)
    assert answer.per_rank[0].untagged_bytes == 30 * MIB
    (gap,) = [gap for gap in answer.gaps if gap.what.startswith("tenants of")]
    assert "100.0 %" in gap.what
    assert "10.0 MiB from before the history, 20.0 MiB made within it" in gap.reason


def test_a_peak_where_the_history_begins_is_a_lower_bound(tmp_path: Path) -> None:
    allocator = Allocator()
    old = allocator.alloc(50 * MIB)
    allocator.begin_history()
    allocator.tick(10)
    allocator.free(old)
    allocator.alloc(10 * MIB)
    gaps = imported(tmp_path, allocator).gaps
    assert [gap.what for gap in gaps if "may be higher" in gap.reason] == ["allocated peak"]


def test_a_peak_within_the_history_is_no_lower_bound(tmp_path: Path) -> None:
    gaps = imported(tmp_path, trained().allocator).gaps
    assert not [gap for gap in gaps if "may be higher" in gap.reason]


def test_several_devices_show_the_fullest_and_name_the_others(tmp_path: Path) -> None:
    small, large = Allocator(0), Allocator(1)
    for allocator, size in ((small, 5 * MIB), (large, 50 * MIB)):
        allocator.begin_history()
        allocator.alloc(size)
    answer = imported(tmp_path, small, large)
    assert [memory.device for memory in answer.per_rank] == ["cuda:1"]
    assert {leaf.device for leaf in answer.devices} == {"cuda:1"}
    (gap,) = [gap for gap in answer.gaps if gap.what == "memory of cuda:0"]
    assert "5.0 MiB" in gap.reason


def test_a_snapshot_without_blocks_says_so(tmp_path: Path) -> None:
    answer = imported(tmp_path, Allocator())
    assert answer.per_rank == ()
    assert "no block" in answer.gaps[0].reason


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_tenants_and_untagged_sum_to_live_bytes_at_each_point(seed: int) -> None:
    allocator = random_history(seed, 60)
    if not allocator.entries:
        return
    frames = frames_of(allocator)
    history = read_history(frames["block"], frames["segment"], "cuda:0")
    if history is None or not len(history.blocks):
        return
    names = name_tenants(history.blocks, Stacks(frames["stack"]).origins(history.blocks.stack))
    timeline = thin_history(0, history, names, points=9)
    _, most = find_allocated_peak(history)
    totals = np.sum([timeline.tenants[name] for name in timeline.tenants], axis=0)
    assert totals.max() == most
    assert len(timeline.time_ns) <= 9
    assert min(min(column) for column in timeline.tenants.values()) >= 0
    for offset, total in zip(timeline.time_ns, totals, strict=True):
        now = history.begin_ns + offset
        blocks = history.blocks
        live = (blocks.begin_ns <= now) & (blocks.freed_ns > now)
        assert blocks.requested_bytes[live].sum() == total


def test_step_and_phase_come_from_the_programs_own_ranges() -> None:
    program = Training()
    program.build()
    program.allocator.tick(10)
    for name, stage in (
        ("ProfilerStep#3", "START"),
        ("forward_of_my_model", "START"),
        ("## backward ##", "START"),
    ):
        program.allocator.tick(10)
        program.allocator.annotate(name, stage)
    now = program.allocator.now_us * 1000
    program.allocator.tick(10)
    program.allocator.annotate("## backward ##", "END")
    program.allocator.annotate("Optimizer.step#AdamW.step", "START")
    program.allocator.annotate("ProfilerStep#3", "END")
    mark = frames_of(program.allocator)["mark"]
    later = program.allocator.now_us * 1000
    assert (find_annotated_step(mark, now), find_annotated_phase(mark, now)) == (3, "backward")
    assert (find_annotated_step(mark, later), find_annotated_phase(mark, later)) == (-1, "optimizer")
    assert (find_annotated_step(mark, 0), find_annotated_phase(mark, 0)) == (-1, "")


@pytest.mark.parametrize(
    "name", ["ProfilerStep#", "ProfilerStep#-1", "ProfilerStep#٣", "other", "ProfilerStep#" + "9" * 40]
)
def test_a_range_of_another_name_tells_nothing(name: str) -> None:
    program = Training()
    program.build()
    program.allocator.annotate(name, "START")
    mark, now = frames_of(program.allocator)["mark"], program.allocator.now_us * 1000
    assert (find_annotated_step(mark, now), find_annotated_phase(mark, now)) == (-1, "")


def repeated(copies: int) -> Told:
    """The history of a training program, one after the other ``copies`` times."""
    seen = told(trained().allocator)
    blocks = seen.history.blocks
    length = seen.history.end_ns - seen.history.begin_ns + 1
    shift = np.repeat(np.arange(copies, dtype=np.int64) * length, len(blocks))
    columns: dict[str, Any] = {
        field.name: np.tile(getattr(blocks, field.name), copies)
        for field in dataclasses.fields(blocks)
        if isinstance(getattr(blocks, field.name), np.ndarray)
    }
    end = seen.history.end_ns
    for name in ("begin_ns", "freed_ns", "released_ns"):
        columns[name] = np.minimum(columns[name], end) + shift
    long = dataclasses.replace(blocks, **columns)
    return Told(dataclasses.replace(seen.history, blocks=long, end_ns=int(shift[-1]) + end), seen.names)


def calls_for(seen: Told) -> int:
    """Calls of any function while a history is analysed."""
    count = 0

    def seen_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    origins = np.array([Origin.SETUP, Origin.FORWARD, Origin.BARE, Origin.OPTIMIZER], dtype=np.int64)
    sys.setprofile(seen_call)
    try:
        names = name_tenants(seen.history.blocks, np.resize(origins, len(seen.history.blocks)))
        time_ns, _ = find_allocated_peak(seen.history)
        compute_terms(seen.history, time_ns)
        thin_history(0, seen.history, names)
    finally:
        sys.setprofile(None)
    return count


def test_no_call_is_made_for_each_block() -> None:
    few, many = repeated(20), repeated(400)
    assert len(many.history.blocks) == 20 * len(few.history.blocks)
    assert calls_for(many) < calls_for(few) + len(few.history.blocks)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("segment", "mapped_ns", -(1 << 62)),
        ("segment", "bytes", 1 << 61),
        ("block", "released_ns", -1),
        ("block", "requested_bytes", 1 << 60),
        ("block", "block_bytes", 1 << 60),
    ],
)
def test_what_no_allocator_has_is_refused(tmp_path: Path, table: str, column: str, value: int) -> None:
    """Each is an int64; their differences and sums would not be."""
    tables = convert_snapshot(snapshot_of(trained().allocator)).tables()
    tables[table][column] = [value] * len(tables[table][column])
    with pytest.raises(BadInput, match=f"{table}.parquet: column '{column}'"):
        analyse_snapshot_rank(written(tmp_path, tables), 0)
