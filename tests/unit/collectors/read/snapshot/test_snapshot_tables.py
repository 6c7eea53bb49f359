"""The tables and gaps of a snapshot, one property at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.snapshot_truth.allocator import START_US, Allocator
from benchmarks.snapshot_truth.segments import MIB
from benchmarks.snapshot_truth.write_snapshot import snapshot_of, write_snapshot
from tests.support.snapshots import frames
from zprof.collectors.read.snapshot.convert import SnapshotTables, convert_snapshot
from zprof.collectors.read.snapshot.reader import read_snapshot
from zprof.run.schema import TABLES

Snapshot = dict[str, Any]


def recorded(**options: Any) -> Allocator:
    allocator = Allocator(**options)
    allocator.begin_history()
    return allocator


def blocks(tables: SnapshotTables) -> list[dict[str, Any]]:
    return pa.table(tables.block).to_pylist()


def gaps(tables: SnapshotTables) -> dict[str, str]:
    return {gap.what: gap.reason for gap in tables.gaps}


@pytest.mark.parametrize("protocol", [2, 5])
def test_the_reader_gives_the_tables_of_each_protocol(protocol: int, tmp_path: Path) -> None:
    allocator = recorded()
    allocator.free(allocator.alloc(5000, frames=frames("a", "b"), tag="t"))
    allocator.alloc(700, frames=frames("c"))
    snapshot = snapshot_of(allocator)
    with read_snapshot(write_snapshot(tmp_path / "s.pickle", snapshot, protocol)) as read:
        for name, columns in convert_snapshot(snapshot).tables().items():
            assert read.tables[name].to_pydict() == pa.table(columns, schema=TABLES[name]).to_pydict()
        assert read.history_begin_ns == {"cuda:0": START_US * 1000 - 1}
        assert read.gaps == ()


def test_tags_contexts_streams_pools_and_stacks_are_of_the_allocation() -> None:
    allocator = recorded()
    stack = frames("linear", "main")
    address = allocator.alloc(
        1000, stream=7, pool=(0, 3), frames=stack, tag="act", compile_context="region 0"
    )
    allocator.alloc(1000, frames=frames("linear", "main"))
    allocator.alloc(1000, frames=frames("other"))
    allocator.free(address)
    tables = convert_snapshot(snapshot_of(allocator))
    rows = blocks(tables)
    assert [rows[0][name] for name in ("tag", "compile_context", "stream", "pool")] == [
        "act", "region 0", 7, "0,3",
    ]  # fmt: skip
    assert [row["stack"] for row in rows] == [0, 0, 1]
    assert pa.table(tables.stack).to_pylist()[:2] == [
        {"stack": 0, "depth": 0, "file": "train.py", "line": 10, "function": "linear"},
        {"stack": 0, "depth": 1, "file": "train.py", "line": 11, "function": "main"},
    ]


def test_blocks_from_before_the_history_are_known_and_a_gap() -> None:
    allocator = Allocator()
    freed, kept = allocator.alloc(1000), allocator.alloc(3000, frames=frames("init"))
    allocator.begin_history()
    allocator.tick(5)
    allocator.free(freed)
    tables = convert_snapshot(snapshot_of(allocator))
    rows = {row["address"]: row for row in blocks(tables)}
    assert all(row["before_history"] for row in rows.values())
    assert {row["allocated_ns"] for row in rows.values()} == {tables.history_begin_ns["cuda:0"]}
    assert (rows[freed]["requested_bytes"], rows[kept]["requested_bytes"]) == (1000, 3000)
    assert rows[freed]["stack"] is None  # the stack of a free says nothing about the allocation
    assert rows[kept]["stack"] == 0
    reason = gaps(tables)["allocator history"]
    assert "2 blocks (3.9 KiB)" in reason
    assert "2025-10-09 08:53:20.000005 UTC" in reason


def trace_of(snapshot: Snapshot) -> list[Snapshot]:
    return snapshot["device_traces"][0]


def first_block(snapshot: Snapshot) -> Snapshot:
    return snapshot["segments"][0]["blocks"][0]


def drop_kind(snapshot: Snapshot, kind: str) -> None:
    trace_of(snapshot)[:] = [entry for entry in trace_of(snapshot) if entry["action"] != kind]


UNKNOWN = {"action": "\x1b[31m\u202e" + "x" * 5000, "time_us": START_US + 60_000}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda snapshot: None, None),
        (lambda snapshot: drop_kind(snapshot, "free_requested"), "blocks awaiting free"),
        (lambda snapshot: drop_kind(snapshot, "free_completed"), "blocks awaiting free"),
        (lambda snapshot: first_block(snapshot).update(state="inactive"), "allocator history disagrees"),
        (lambda snapshot: first_block(snapshot).update(requested_size=1999), "allocator history disagrees"),
        (lambda snapshot: trace_of(snapshot)[0].update(size=4 * MIB), "allocator history disagrees"),
        (lambda snapshot: snapshot["segments"].clear(), "allocator state"),
        (lambda snapshot: trace_of(snapshot)[-1].update(time_us=START_US), "times of the allocator history"),
        (lambda snapshot: trace_of(snapshot).append(UNKNOWN), "allocator history"),
    ],
)
def test_a_doubtful_trace_is_a_gap(change: Callable[[Snapshot], None], what: str | None) -> None:
    allocator = recorded()
    allocator.tick(50_000)
    for _ in range(2):
        allocator.free(allocator.alloc(1000))
    allocator.alloc(2000)
    snapshot = snapshot_of(allocator)
    change(snapshot)
    tables = convert_snapshot(snapshot)
    assert list(gaps(tables)) == ([what] if what else [])
    assert all(reason.isprintable() and len(reason) < 300 for reason in gaps(tables).values())
    freed = [row for row in blocks(tables) if None not in (row["freed_ns"], row["released_ns"])]
    assert len(freed) == 2
    assert all(row["allocated_ns"] < row["freed_ns"] <= row["released_ns"] for row in freed)


def test_failed_allocations_and_named_ranges_are_marks() -> None:
    allocator = recorded()
    allocator.annotate("forward", "START")
    allocator.tick(3)
    allocator.oom(123_456, device_free=789)
    allocator.tick(3)
    allocator.annotate("forward", "END")
    allocator.annotate("forward", "LATER")
    marks = pa.table(convert_snapshot(snapshot_of(allocator)).mark).to_pylist()
    assert [(mark["time_ns"] - START_US * 1000, *list(mark.values())[1:4]) for mark in marks] == [
        (0, "annotation_begin", 0, "forward"),
        (3000, "oom", 789, "cuda:0"),
        (3000, "oom_request", 123_456, "cuda:0"),
        (3000, "oom_driver_request", 2 * MIB, "cuda:0"),
        (6000, "annotation_end", 0, "forward"),
    ]


def test_a_failed_allocation_keeps_its_stack_and_its_private_pool() -> None:
    allocator = recorded()
    allocator.oom(30 * MIB, device_free=5)
    snapshot = snapshot_of(allocator)
    snapshot["device_traces"][0][-1] |= {"pool_id": [3, 1], "frames": frames("attention")}
    tables = convert_snapshot(snapshot)
    marks = {mark["kind"]: (mark["number"], mark["name"]) for mark in pa.table(tables.mark).to_pylist()}
    stack, device = marks.pop("oom_stack")
    assert device == "cuda:0"
    rows = [row["function"] for row in pa.table(tables.stack).to_pylist() if row["stack"] == stack]
    assert rows == ["attention"]
    assert marks == {
        "oom": (5, "cuda:0"),
        "oom_request": (30 * MIB, "cuda:0"),
        "oom_driver_request": (30 * MIB, "cuda:0"),
        "oom_pool": (0, "3,1"),
    }


@pytest.mark.parametrize(
    ("entry", "marks", "is_gap"),
    [
        ({"action": "annotate", "user_metadata": "epoch 3"}, [("annotation", "epoch 3")], False),
        ({"action": "user_defined", "metadata": {"a": 1}, "name": "x"}, [("annotation", "x")], False),
        ({"action": "annotate"}, [], False),
        ({"action": "internal_metadata"}, [], False),
        ({"action": "workspace_snapshot"}, [], False),
        ({"action": "from the future", "what": object}, [], True),
    ],
)
def test_entries_that_are_not_about_memory(
    entry: dict[str, object], marks: list[tuple[str, str]], is_gap: bool
) -> None:
    allocator = recorded()
    allocator.alloc(1)
    snapshot = snapshot_of(allocator)
    snapshot["device_traces"][0].append({"time_us": START_US + 9} | entry)
    tables = convert_snapshot(snapshot)
    found = pa.table(tables.mark).to_pylist()
    assert [(mark["kind"], mark["name"]) for mark in found] == marks
    assert bool(gaps(tables)) is is_gap


def segments(tables: SnapshotTables) -> list[tuple[int, int, int, int | None]]:
    """Return MiB from the first address, MiB, and µs of mapping and unmapping."""
    rows = pa.table(tables.segment).to_pylist()
    first, begin = min(row["address"] for row in rows), START_US * 1000
    return [
        (
            (row["address"] - first) // MIB,
            row["bytes"] // MIB,
            (row["mapped_ns"] - begin) // 1000,
            None if row["unmapped_ns"] is None else (row["unmapped_ns"] - begin) // 1000,
        )
        for row in rows
    ]


def test_an_expandable_segment_falls_into_the_pieces_that_were_mapped() -> None:
    """The middle one of three pieces goes, and comes back smaller."""
    allocator = recorded(expandable=True)
    addresses = []
    for _ in range(3):
        addresses.append(allocator.alloc(40 * MIB))
        allocator.tick(10)
    allocator.free(addresses[1])
    allocator.empty_cache()
    allocator.tick(10)
    allocator.alloc(30 * MIB)
    tables = convert_snapshot(snapshot_of(allocator))
    assert segments(tables) == [(0, 40, 0, None), (40, 40, 10, 30), (80, 40, 20, None), (40, 30, 40, None)]
    assert tables.gaps == ()
