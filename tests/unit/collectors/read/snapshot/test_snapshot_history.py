"""Snapshots of a simulated allocator with known truth: the tables have the same at every entry."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import MIB, AllocatorState
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.run_tables import table_of
from tests.support.snapshot_histories import entry_times
from tests.support.snapshots import random_history
from zprof.analysis.columns import Columns
from zprof.collectors.read.snapshot.convert import SnapshotTables, convert_snapshot

NEVER = 1 << 62


def rows_of(name: str, columns: dict[str, Any], allocator: Allocator) -> Columns:
    rows = table_of(name, columns)
    return rows.at(rows.texts("device").equals(f"cuda:{allocator.device}"))


def state_of(block: Columns, segment: Columns, time_ns: int) -> AllocatorState:
    there = block.at((block.ints("allocated_ns") <= time_ns) & (block.ints("released_ns", NEVER) > time_ns))
    used = there.ints("freed_ns", NEVER) > time_ns
    is_held = (segment.ints("mapped_ns") <= time_ns) & (segment.ints("unmapped_ns", NEVER) > time_ns)
    held = segment.at(is_held)
    return AllocatorState(
        live=blocks_of(there.at(used)),
        awaiting=blocks_of(there.at(~used)),
        held=tuple(sorted(zip(held.ints("address").tolist(), held.ints("bytes").tolist(), strict=True))),
    )


def blocks_of(block: Columns) -> frozenset[tuple[int, int, int]]:
    columns = ("address", "requested_bytes", "block_bytes")
    return frozenset(zip(*(block.ints(name).tolist() for name in columns), strict=True))


def joined(ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return maximal stretches: pieces of an expandable segment stand beside each other."""
    found: list[tuple[int, int]] = []
    for address, size in ranges:
        if found and sum(found[-1]) == address:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((address, size))
    return found


def requested(blocks: frozenset[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {block[:2] for block in blocks}


def known_sizes(state: AllocatorState, allocator: Allocator) -> set[tuple[int, int, int]]:
    """Return blocks in use without large ones from before the history: their rest is not in the file."""
    first: dict[int, str] = {}
    for entry in allocator.entries:
        if "addr" in entry and not entry["action"].startswith("segment"):
            first.setdefault(entry["addr"], entry["action"])
    return {block for block in state.live if first.get(block[0]) == "alloc" or block[1] <= MIB}


def assert_as_it_was(tables: SnapshotTables, allocator: Allocator) -> None:
    block, segment = rows_of("block", tables.block, allocator), rows_of("segment", tables.segment, allocator)
    for time_ns, truth in zip(entry_times(allocator), allocator.states, strict=True):
        found = state_of(block, segment, time_ns)
        assert requested(found.live) == requested(truth.live), time_ns
        assert requested(found.awaiting) == requested(truth.awaiting), time_ns
        assert known_sizes(found, allocator) == known_sizes(truth, allocator), time_ns
        assert found.allocated_bytes <= truth.allocated_bytes, time_ns
        assert joined(found.held) == joined(truth.held), time_ns


@settings(max_examples=10)
@given(seed=st.integers(0, 10**9), steps=st.integers(1, 60), ring=st.none() | st.integers(1, 40))
def test_every_entry_leaves_what_the_allocator_had(seed: int, steps: int, ring: int | None) -> None:
    first = random_history(seed, steps, ring=ring)
    second = random_history(seed + 1, steps, device=2)
    tables = convert_snapshot(snapshot_of(first, second))
    for allocator in (first, second):
        assert_as_it_was(tables, allocator)
    assert not [gap for gap in tables.gaps if gap.what == "allocator history disagrees"]


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**9),
    max_split=st.none() | st.sampled_from([3 * MIB, 20 * MIB]),
    divisions=st.sampled_from([0, 2, 4, 8]),
)
def test_settings_of_the_allocator_change_its_blocks(
    seed: int, max_split: int | None, divisions: int
) -> None:
    allocator = random_history(seed, 60, max_split=max_split, divisions=divisions)
    tables = convert_snapshot(snapshot_of(allocator))
    assert_as_it_was(tables, allocator)
    assert not [gap for gap in tables.gaps if gap.what == "sizes of freed blocks"]


@pytest.mark.parametrize(
    ("value", "mib"),
    [(None, 20), ({}, 20), ({"max_split_size": "3"}, 20), ({"roundup_power2_divisions": {"1": -4}}, 20)],
)
def test_settings_of_another_shape_count_as_not_stated(value: object, mib: int) -> None:
    allocator = Allocator()
    allocator.begin_history()
    allocator.free(allocator.alloc(19 * MIB + 700_000))
    snapshot = snapshot_of(allocator) | {"allocator_settings": value}
    block = table_of("block", convert_snapshot(snapshot).block)
    assert block.ints("block_bytes").tolist() == [mib * MIB]
