"""What the tables of a snapshot say, one thing at a time."""

import pickle
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tests.support.snapshots import AWAITING, MIB, START_US, Allocator, frames, snapshot_of, write_snapshot
from zprof.collectors.snapshot.convert import SnapshotTables, convert_snapshot
from zprof.collectors.snapshot.reader import read_snapshot
from zprof.run.schema import TABLES


def recorded(**options: Any) -> Allocator:
    allocator = Allocator(**options)
    allocator.begin_history()
    return allocator


def blocks(tables: SnapshotTables) -> pd.DataFrame:
    return pa.table(tables.block).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def gaps(tables: SnapshotTables) -> dict[str, str]:
    return {gap.what: gap.reason for gap in tables.gaps}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_all_protocols_give_the_same_tables(protocol: int, tmp_path: Path) -> None:
    allocator = recorded()
    allocator.free(allocator.alloc(5000, frames=frames("a", "b"), tag="t"))
    allocator.alloc(700, frames=frames("c"))
    snapshot = snapshot_of(allocator)
    with read_snapshot(write_snapshot(tmp_path / "s.pickle", snapshot, protocol)) as read:
        for name, columns in convert_snapshot(snapshot).tables().items():
            assert read.tables[name].to_pydict() == pa.table(columns, schema=TABLES[name]).to_pydict()
        assert read.history_begin_ns == {"cuda:0": START_US * 1000 - 1}


@pytest.mark.parametrize("spelling", [AWAITING, "active_awaiting_free"])
def test_a_block_that_awaits_its_free_is_given_back_but_not_released(spelling: str) -> None:
    allocator = recorded()
    allocator.free(allocator.alloc(1000), awaiting=True)
    block = blocks(convert_snapshot(snapshot_of(allocator, awaiting=spelling))).iloc[0]
    assert block["freed_ns"] > block["allocated_ns"]
    assert block["released_ns"] is pd.NA


def test_tags_contexts_streams_pools_and_stacks_are_of_the_allocation() -> None:
    allocator = recorded()
    address = allocator.alloc(
        1000, stream=7, pool=(0, 3), frames=frames("linear", "main"), tag="act", compile_context="region 0"
    )
    allocator.alloc(1000, frames=frames("linear", "main"))
    allocator.free(address)
    tables = convert_snapshot(snapshot_of(allocator))
    first, second = blocks(tables).to_dict("records")
    assert (first["tag"], first["compile_context"], first["stream"], first["pool"]) == (
        "act", "region 0", 7, "0,3",
    )  # fmt: skip
    assert second["tag"] is None or pd.isna(second["tag"])
    assert first["stack"] == second["stack"] == 0
    assert pa.table(tables.stack).to_pylist() == [
        {"stack": 0, "depth": 0, "file": "train.py", "line": 10, "function": "linear"},
        {"stack": 0, "depth": 1, "file": "train.py", "line": 11, "function": "main"},
    ]


def test_pools_of_older_torch_come_from_the_segments() -> None:
    """Its entries have no pool_id; what is known is the pool of the segment at the end."""
    allocator = recorded()
    gone = allocator.alloc(30 * MIB, pool=(0, 9))
    allocator.free(gone)
    allocator.empty_cache()
    kept = allocator.alloc(30 * MIB, pool=(0, 3))
    allocator.free(kept)
    snapshot = snapshot_of(allocator)
    for entry in snapshot["device_traces"][0]:
        del entry["pool_id"]
    assert gone == kept, "the device hands out the address again"
    first, second = blocks(convert_snapshot(snapshot))["pool"].tolist()
    assert second == "0,3"
    assert pd.isna(first), "its segment is gone: nothing says its pool"


def test_what_was_there_before_is_told() -> None:
    allocator = Allocator()
    freed, kept = allocator.alloc(1000), allocator.alloc(3000, frames=frames("init"))
    allocator.begin_history()
    allocator.tick(5)
    allocator.free(freed)
    tables = convert_snapshot(snapshot_of(allocator))
    table = blocks(tables).set_index("address")
    assert table["before_history"].all()
    assert set(table["allocated_ns"]) == {tables.history_begin_ns["cuda:0"]}
    assert (table.loc[freed, "requested_bytes"], table.loc[kept, "requested_bytes"]) == (1000, 3000)
    assert pd.isna(table.loc[freed, "stack"]), "the stack of a free says nothing about the allocation"
    assert table.loc[kept, "stack"] == 0
    reason = gaps(tables)["allocator history"]
    assert "blocks that were there already: 2 (4000 bytes)" in reason
    assert "2025-10-09 08:53:20.000005 UTC" in reason


def test_a_wrapped_ring_says_from_when_it_is_true() -> None:
    allocator = Allocator()
    allocator.begin_history(max_entries=4)
    for _ in range(5):
        allocator.tick(1000)
        allocator.alloc(1000)
    tables = convert_snapshot(snapshot_of(allocator))
    assert len(allocator.entries) == 4
    assert (
        "it begins at 2025-10-09 08:53:20.002000 UTC; blocks that were there already: 1 (1000 bytes)"
        in " ".join(gaps(tables).values())
    )


def test_a_history_from_the_beginning_has_no_gap() -> None:
    allocator = recorded()
    allocator.free(allocator.alloc(1000))
    assert convert_snapshot(snapshot_of(allocator)).gaps == ()


def test_without_a_trace_there_is_only_the_end() -> None:
    allocator = Allocator()
    allocator.alloc(1000)
    snapshot = snapshot_of(allocator)
    tables = convert_snapshot(snapshot)
    assert tables.history_begin_ns == {}
    assert "no trace of it" in gaps(tables)["allocator history"]
    assert blocks(tables)["before_history"].tolist() == [True]
    del snapshot["device_traces"], snapshot["external_annotations"]
    assert len(blocks(convert_snapshot(snapshot))) == 1


@pytest.mark.parametrize("missing", ["free_requested", "free_completed"])
def test_a_skipped_kind_of_entry_is_told(missing: str) -> None:
    allocator = recorded()
    for _ in range(3):
        allocator.free(allocator.alloc(1000))
    snapshot = snapshot_of(allocator)
    trace = snapshot["device_traces"][0]
    trace[:] = [entry for entry in trace if entry["action"] != missing]
    tables = convert_snapshot(snapshot)
    table = blocks(tables)
    assert (table["freed_ns"] == table["released_ns"]).all()
    assert missing in gaps(tables)["blocks awaiting free"]
    assert set(gaps(tables)) == {"blocks awaiting free"}


def test_a_trace_that_disagrees_with_the_segments_is_told() -> None:
    allocator = recorded()
    for size in (1000, 2000, 3000):
        allocator.alloc(size)
    snapshot = snapshot_of(allocator)
    snapshot["segments"][0]["blocks"][0]["state"] = "inactive"
    snapshot["segments"][0]["blocks"][1]["requested_size"] = 1999
    trace = snapshot["device_traces"][0]
    trace.append(dict(trace[-1]))
    reason = gaps(convert_snapshot(snapshot))["allocator history disagrees"]
    assert "blocks in use that the segments do not have: 1" in reason
    assert "blocks of another size than in the segments: 1" in reason
    assert "blocks allocated where one was still in use: 1" in reason


def test_segments_that_do_not_fit_are_told() -> None:
    allocator = recorded()
    allocator.alloc(1000)
    snapshot = snapshot_of(allocator)
    snapshot["device_traces"][0][0]["size"] *= 2
    assert (
        "entries about segments that do not fit them: 1"
        in gaps(convert_snapshot(snapshot))["allocator history disagrees"]
    )


def test_block_sizes_that_the_rule_does_not_give_are_told() -> None:
    allocator = recorded()
    allocator.alloc(1000)
    snapshot = snapshot_of(allocator)
    first, rest = snapshot["segments"][0]["blocks"]
    first["size"] += 512
    rest |= {"address": rest["address"] + 512, "size": rest["size"] - 512}
    tables = convert_snapshot(snapshot)
    assert "blocks in use of another size than torch's rule gives: 1" in gaps(tables)["sizes of freed blocks"]
    assert blocks(tables)["block_bytes"].tolist() == [1536], "what the segments state is believed"


def test_a_large_block_takes_a_rest_that_is_not_worth_splitting() -> None:
    allocator = recorded()
    whole = allocator.alloc(20 * MIB - 5)
    allocator.free(whole)
    allocator.free(allocator.alloc(19 * MIB))
    allocator.free(allocator.alloc(18 * MIB))
    assert blocks(convert_snapshot(snapshot_of(allocator)))["block_bytes"].tolist() == [
        20 * MIB,
        20 * MIB,
        18 * MIB,
    ]


def test_failed_allocations_and_named_ranges_are_marks() -> None:
    allocator = recorded()
    allocator.annotate("forward", "START")
    allocator.tick(3)
    allocator.oom(123_456, device_free=789)
    allocator.tick(3)
    allocator.annotate("forward", "END")
    allocator.annotate("forward", "LATER")
    assert pa.table(convert_snapshot(snapshot_of(allocator)).mark).to_pylist() == [
        {"time_ns": START_US * 1000, "kind": "annotation_begin", "number": 0, "name": "forward"},
        {"time_ns": START_US * 1000 + 3000, "kind": "oom", "number": 789, "name": "cuda:0"},
        {"time_ns": START_US * 1000 + 3000, "kind": "oom_request", "number": 123_456, "name": "cuda:0"},
        {"time_ns": START_US * 1000 + 6000, "kind": "annotation_end", "number": 0, "name": "forward"},
    ]


def test_unknown_entries_are_counted_and_named() -> None:
    allocator = recorded()
    allocator.alloc(1000)
    snapshot = snapshot_of(allocator)
    trace = snapshot["device_traces"][0]
    trace += [{"action": "annotate", "time_us": START_US}, {"action": "annotate", "time_us": START_US}]
    tables = convert_snapshot(snapshot)
    assert (
        "entries of kinds that this version does not know: 2 ('annotate')"
        in gaps(tables)["allocator history"]
    )
    assert len(blocks(tables)) == 1
    trace[-1]["action"] = "\x1b[31m\u202e" + "x" * 5000
    reason = gaps(convert_snapshot(snapshot))["allocator history"]
    assert reason.isprintable()
    assert len(reason) < 200


def segments(tables: SnapshotTables) -> list[tuple[int, int, int, int | None]]:
    """MiB from the first address, MiB, and µs of mapping and unmapping."""
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
    """Three pieces; the middle one goes and comes back smaller."""
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


def test_pieces_from_before_the_history_keep_both_sides_of_what_was_mapped_in_it() -> None:
    allocator = Allocator(expandable=True)
    addresses = [allocator.alloc(40 * MIB) for _ in range(3)]
    allocator.free(addresses[1])
    allocator.empty_cache()
    allocator.begin_history()
    allocator.tick(10)
    allocator.alloc(40 * MIB)
    assert len(allocator.segments) == 1
    found = segments(convert_snapshot(snapshot_of(allocator)))
    assert found == [(0, 40, 9, None), (80, 40, 9, None), (40, 40, 10, None)]


def test_a_clock_that_runs_back_or_is_not_there_is_told() -> None:
    allocator = recorded()
    allocator.tick(50_000)
    allocator.alloc(1000)
    allocator.tick(-40_000)
    allocator.free(allocator.addresses()[0])
    snapshot = snapshot_of(allocator)
    tables = convert_snapshot(snapshot)
    assert "runs back by 40000000 ns" in gaps(tables)["times of the allocator history"]
    assert (blocks(tables)["freed_ns"] > blocks(tables)["allocated_ns"]).all()
    for entry in snapshot["device_traces"][0]:
        del entry["time_us"]
    tables = convert_snapshot(snapshot)
    assert "entries without a time" in gaps(tables)["times of the allocator history"]
    assert (blocks(tables)["freed_ns"] > blocks(tables)["allocated_ns"]).all()


def test_lists_shared_by_identity_and_equal_lists_are_one_stack() -> None:
    allocator = recorded()
    for name in ("a", "a", "b"):
        allocator.alloc(1000, frames=frames(name))
    shared = pickle.loads(pickle.dumps(snapshot_of(allocator)))
    assert blocks(convert_snapshot(shared))["stack"].tolist() == [0, 0, 1]


def test_frames_may_be_missing() -> None:
    allocator = recorded()
    allocator.alloc(1000)
    allocator.alloc(1000)
    snapshot = snapshot_of(allocator)
    del snapshot["device_traces"][0][-1]["frames"]
    snapshot["device_traces"][0][-2]["frames"] = None
    assert blocks(convert_snapshot(snapshot))["stack"].isna().all()


def test_blocks_of_older_torch_have_no_address() -> None:
    allocator = Allocator()
    allocator.alloc(1000)
    allocator.free(allocator.alloc(600))
    allocator.alloc(40 * MIB)
    allocator.alloc(5000)
    snapshot = snapshot_of(allocator)
    with_address = blocks(convert_snapshot(snapshot))
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            del block["address"]
    assert blocks(convert_snapshot(snapshot)).equals(with_address)
