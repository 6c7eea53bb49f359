"""Snapshots of a simulated allocator with known truth: the tables say the same at every entry."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.snapshots import MIB, Allocator, Truth, random_history, snapshot_of
from zprof.collectors.snapshot.convert import SnapshotTables, convert_snapshot

NEVER = 1 << 62


def frame(columns: dict[str, Any]) -> pd.DataFrame:
    return pa.table(columns).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def entry_times(allocator: Allocator) -> list[int]:
    """Nanoseconds that rise with each entry, though the clock's tick does not."""
    times: list[int] = []
    for entry in allocator.entries:
        times.append(max(entry["time_us"] * 1000, times[-1] + 1 if times else 0))
    return times


def states(tables: SnapshotTables, allocator: Allocator) -> Iterator[tuple[int, Truth, Truth]]:
    """Time, truth and what the tables say, after each entry."""
    block, segment = frame(tables.block), frame(tables.segment)
    name = f"cuda:{allocator.device}"
    block, segment = block[block["device"] == name], segment[segment["device"] == name]
    for time_ns, truth in zip(entry_times(allocator), allocator.truth, strict=True):
        there = block[(block["allocated_ns"] <= time_ns) & (block["released_ns"].fillna(NEVER) > time_ns)]
        used = there["freed_ns"].fillna(NEVER) > time_ns
        held = segment[(segment["mapped_ns"] <= time_ns) & (segment["unmapped_ns"].fillna(NEVER) > time_ns)]
        said = Truth(
            live=_rows(there[used]),
            awaiting=_rows(there[~used]),
            held=_ranges(zip(held["address"], held["bytes"], strict=True)),
        )
        yield time_ns, truth, said


def _rows(block: pd.DataFrame) -> frozenset[tuple[int, int, int]]:
    columns = ("address", "requested_bytes", "block_bytes")
    return frozenset(zip(*(block[name].astype(int) for name in columns), strict=True))


def _ranges(pieces: Any) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((int(address), int(size)) for address, size in pieces))


def joined(ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Ranges as maximal stretches: pieces of an expandable segment stand beside each other."""
    found: list[tuple[int, int]] = []
    for address, size in ranges:
        if found and found[-1][0] + found[-1][1] == address:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((address, size))
    return found


def asked(blocks: frozenset[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(address, requested) for address, requested, _ in blocks}


def blocks_of(state: Truth, allocator: Allocator) -> set[tuple[int, int, int]]:
    """Block sizes in use, without large blocks from before the history: their rest is not in the file."""
    born = {entry["addr"] for entry in allocator.entries if entry["action"] == "alloc"}
    return {block for block in state.live if block[0] in born - _freed_first(allocator) or block[1] <= MIB}


def _freed_first(allocator: Allocator) -> set[int]:
    """Addresses whose first entry is a free: a block from before the history."""
    first: dict[int, str] = {}
    for entry in allocator.entries:
        if "addr" in entry and not entry["action"].startswith("segment"):
            first.setdefault(entry["addr"], entry["action"])
    return {address for address, action in first.items() if action != "alloc"}


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9), steps=st.integers(1, 60), ring=st.one_of(st.none(), st.integers(1, 40)))
def test_every_entry_leaves_what_the_allocator_had(seed: int, steps: int, ring: int | None) -> None:
    first = random_history(seed, steps, ring=ring)
    second = random_history(seed + 1, steps, device=2)
    tables = convert_snapshot(snapshot_of(first, second))
    for allocator in (first, second):
        for time_ns, truth, said in states(tables, allocator):
            assert asked(said.live) == asked(truth.live), time_ns
            assert asked(said.awaiting) == asked(truth.awaiting), time_ns
            assert blocks_of(said, allocator) == blocks_of(truth, allocator), time_ns
            assert said.allocated_bytes <= truth.allocated_bytes, time_ns
            assert joined(said.held) == joined(truth.held), time_ns
    assert not [gap for gap in tables.gaps if gap.what == "allocator history disagrees"]
