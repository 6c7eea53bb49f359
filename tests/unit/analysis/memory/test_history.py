"""The identity of an allocator's memory at every event of simulated histories whose truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import MIB, UNIT
from tests.support.snapshot_histories import entry_times, history, tables_of
from tests.support.snapshots import random_history
from zprof.analysis.columns import Columns
from zprof.analysis.memory.device import DeviceMoment, OutsideTerms, make_device_memory
from zprof.analysis.memory.history import (
    AllocatorTerms,
    History,
    compute_terms,
    find_allocated_peak,
    find_reserved_peak,
    read_history,
)
from zprof.base.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.memory import DeviceMemory


def check_identity(terms: AllocatorTerms) -> None:
    parts = [
        terms.live_bytes, terms.rounding_bytes, terms.awaiting_free_bytes, terms.split_bytes,
        terms.free_segments_bytes, terms.private_pools_bytes,
    ]  # fmt: skip
    assert terms.contradiction_bytes == 0
    assert min(part or 0 for part in parts) >= 0
    assert sum(part or 0 for part in parts) == terms.reserved_bytes


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), ring=st.sampled_from([None, 25]))
def test_the_identity_holds_at_every_event(seed: int, ring: int | None) -> None:
    allocator = random_history(seed, 60, ring=ring)
    if not allocator.entries:
        return
    found = history(allocator)
    for time_ns, truth in zip(entry_times(allocator), allocator.states, strict=True):
        terms = compute_terms(found, time_ns)
        check_identity(terms)
        assert (terms.live_bytes, terms.reserved_bytes) == (truth.requested_bytes, truth.reserved_bytes)
        assert terms.rounding_bytes <= truth.allocated_bytes - truth.requested_bytes
    assert terms.live_bytes + terms.rounding_bytes == allocator.states[-1].allocated_bytes
    assert terms.awaiting_free_bytes > 0 or not allocator.states[-1].awaiting


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_the_peaks_are_the_highest_points(seed: int) -> None:
    allocator = random_history(seed, 60)
    if not allocator.entries:
        return
    found = history(allocator)
    terms = [compute_terms(found, time_ns) for time_ns in [found.begin_ns, *entry_times(allocator)]]
    time_ns, size = find_allocated_peak(found)
    assert size == max(term.live_bytes for term in terms) == compute_terms(found, time_ns).live_bytes
    highest_ns = find_reserved_peak(found, found.begin_ns, found.end_ns)
    most = max(term.reserved_bytes for term in terms)
    assert (highest_ns is None) == (most == 0)
    if highest_ns is not None:
        at_peak = compute_terms(found, highest_ns)
        assert at_peak.reserved_bytes == most
        assert at_peak.live_bytes == max(term.live_bytes for term in terms if term.reserved_bytes == most)


def stepwise() -> Allocator:
    """Two large blocks, one small; one freed, one awaiting, one private segment half used."""
    allocator = Allocator()
    allocator.begin_history()
    kept = allocator.alloc(12 * MIB + 100)
    allocator.tick(10)
    gone = allocator.alloc(12 * MIB)
    for size, pool in ((100, (0, 0)), (3 * MIB, (0, 1))):
        allocator.tick(10)
        allocator.alloc(size, pool=pool)
    allocator.tick(10)
    allocator.free(gone)
    allocator.tick(10)
    allocator.free(kept, awaiting=True)
    return allocator


def test_each_term_by_hand() -> None:
    allocator = stepwise()
    terms = compute_terms(history(allocator), allocator.now_us * 1000)
    check_identity(terms)
    assert terms.live_bytes == 100 + 3 * MIB
    assert terms.rounding_bytes == UNIT - 100
    assert terms.awaiting_free_bytes == 12 * MIB + UNIT
    assert terms.free_segments_bytes == 12 * MIB
    assert terms.split_bytes == 2 * (2 * MIB - UNIT)  # beside the one that awaits, and beside the small one
    assert terms.private_pools_bytes == 20 * MIB - 3 * MIB


def read(block: Columns, segment: Columns, device: str = "cuda:0") -> History:
    found = read_history(block, segment, device)
    assert found is not None
    return found


def with_value(rows: Columns, name: str, value: int) -> Columns:
    return rows.with_columns(**{name: np.full(len(rows), value, dtype=np.int64)})


def damaged(name: str, value: int) -> History:
    tables = tables_of(stepwise())
    return read(with_value(tables["block"], name, value), tables["segment"])


def with_stray_block(block: Columns) -> Columns:
    return Columns.concat([block.at(slice(-1)), with_value(block.at(slice(-1, None)), "address", 1)])


def with_block_in_a_block(block: Columns) -> Columns:
    return Columns.concat([block, with_value(block.at(slice(-1, None)), "requested_bytes", 1)])


@pytest.mark.parametrize("damage", [with_stray_block, with_block_in_a_block])
def test_bytes_that_contradict_the_segments_are_counted(damage: object) -> None:
    tables = tables_of(stepwise())
    found = read(damage(tables["block"]), tables["segment"])  # type: ignore[operator]
    assert compute_terms(found, found.end_ns).contradiction_bytes == 3 * MIB


def device_memory(found: History, **outside: int) -> tuple[DeviceMemory, tuple[Gap, ...]]:
    moment = DeviceMoment(rank=3, device="cuda:0", name="reserved peak", time_ns=found.end_ns)
    leaf, gaps = make_device_memory(moment, found, {}, OutsideTerms(**outside))
    return leaf, tuple(gaps)


def test_blocks_outside_of_all_segments_leave_the_free_terms_unknown() -> None:
    leaf, gaps = device_memory(damaged("address", 1))
    assert (leaf.split_bytes, leaf.free_segments_bytes, leaf.private_pools_bytes) == (None, None, None)
    assert leaf.reserved_bytes
    assert [gap.rank for gap in gaps] == [3]


@pytest.mark.parametrize("size", [-1, 1 << 50])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(BadInput):
        damaged("requested_bytes", size)


def test_the_reserved_peak_is_taken_where_most_is_live() -> None:
    allocator = Allocator()
    allocator.begin_history()
    first = allocator.alloc(30 * MIB)
    allocator.tick(10)
    allocator.free(first)
    allocator.tick(10)
    allocator.alloc(8 * MIB)
    found = history(allocator)
    begin, after = found.begin_ns, found.begin_ns + 15_000
    assert find_reserved_peak(found, begin, found.end_ns) == begin + 1  # the block follows its segment
    assert find_reserved_peak(found, after, found.end_ns) == allocator.now_us * 1000
    assert find_reserved_peak(found, after, after + 1_000) == after
