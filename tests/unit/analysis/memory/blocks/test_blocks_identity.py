"""The identity of an allocator's memory at every event of simulated histories whose truth is known."""

import numpy as np
import pandas as pd
import pytest
from history_tables import entry_times, frames_of, history
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.snapshots import MIB, UNIT, Allocator, random_history
from zprof.analysis.memory.device_terms import DeviceMoment, OutsideTerms, make_device_memory
from zprof.analysis.memory.history import (
    AllocatorTerms,
    History,
    compute_terms,
    find_allocated_peak,
    find_peak_near,
    find_reserved_peak,
    read_history,
)
from zprof.model.errors import BadInput


def free_terms(terms: AllocatorTerms) -> list[int]:
    parts = [terms.split_bytes, terms.free_segments_bytes, terms.private_pools_bytes]
    return [part for part in parts if part is not None]


def check(terms: AllocatorTerms) -> None:
    used = [terms.live_bytes, terms.rounding_bytes, terms.awaiting_free_bytes]
    assert terms.contradiction_bytes == 0
    assert len(free_terms(terms)) == 3
    assert min(used + free_terms(terms)) >= 0
    assert sum(used + free_terms(terms)) == terms.reserved_bytes


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), ring=st.sampled_from([None, 25]))
def test_the_identity_holds_at_every_event(seed: int, ring: int | None) -> None:
    allocator = random_history(seed, 60, ring=ring)
    if not allocator.entries:
        return
    found = history(allocator)
    for time_ns, truth in zip(entry_times(allocator), allocator.truth, strict=True):
        terms = compute_terms(found, time_ns)
        check(terms)
        assert terms.live_bytes == truth.requested_bytes
        assert terms.reserved_bytes == truth.reserved_bytes
        assert terms.rounding_bytes <= truth.allocated_bytes - truth.requested_bytes
    assert terms.live_bytes + terms.rounding_bytes == allocator.truth[-1].allocated_bytes
    if allocator.truth[-1].awaiting:
        assert terms.awaiting_free_bytes > 0


@settings(max_examples=25)
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
    if highest_ns is None:
        assert most == 0
    else:
        at_most = [term.live_bytes for term in terms if term.reserved_bytes == most]
        assert compute_terms(found, highest_ns).reserved_bytes == most
        assert compute_terms(found, highest_ns).live_bytes == max(at_most)


def stepwise() -> tuple[Allocator, dict[str, int]]:
    """Two large blocks, one small; one freed, one awaiting, one private segment half used."""
    allocator = Allocator()
    allocator.begin_history()
    at = {"kept": allocator.alloc(12 * MIB + 100)}
    for name, size, pool in (("gone", 12 * MIB, (0, 0)), ("small", 100, (0, 0)), ("graph", 3 * MIB, (0, 1))):
        allocator.tick(10)
        at[name] = allocator.alloc(size, pool=pool)
    allocator.tick(10)
    allocator.free(at["gone"])
    allocator.tick(10)
    allocator.free(at["kept"], awaiting=True)
    return allocator, at


def test_each_term_is_where_it_belongs() -> None:
    allocator, _ = stepwise()
    terms = compute_terms(history(allocator), allocator.now_us * 1000)
    check(terms)
    assert terms.live_bytes == 100 + 3 * MIB
    assert terms.rounding_bytes == UNIT - 100
    assert terms.awaiting_free_bytes == 12 * MIB + UNIT
    assert terms.free_segments_bytes == 12 * MIB
    assert terms.split_bytes == 2 * (2 * MIB - UNIT)  # beside the one that awaits, and beside the small one
    assert terms.private_pools_bytes == 20 * MIB - 3 * MIB


def test_neighbouring_segments_of_cudamalloc_stay_two_and_mapped_pieces_are_one() -> None:
    frames = frames_of(stepwise()[0])
    block, segment = frames["block"].iloc[:0], frames["segment"].iloc[[0, 1]].copy()
    segment["address"], segment["bytes"] = [0x1000, 0x2000], 0x1000
    segment["pool"], segment["stream"] = "0,0", pd.array([0, 0], dtype="Int64")
    row = frames["block"].iloc[[0]].copy()
    row["address"], row["requested_bytes"], row["block_bytes"] = 0x1000, 0x800, 0x800
    now = int(segment["mapped_ns"].max())
    row["released_ns"] = row["freed_ns"] = pd.array([None], dtype="Int64")
    for expandable, whole in ((False, 0x1000), (True, 0)):
        segment["expandable"] = expandable
        found = read_history(pd.concat([block, row]), segment, "cuda:0")
        assert found is not None
        assert compute_terms(found, now).free_segments_bytes == whole


def damaged(**changes: object) -> History:
    frames = frames_of(stepwise()[0])
    found = read_history(frames["block"].assign(**changes), frames["segment"], "cuda:0")
    assert found is not None
    return found


def test_a_block_outside_of_all_segments_is_a_gap_with_the_amount() -> None:
    found = damaged(address=1)
    terms = compute_terms(found, found.end_ns)
    assert terms.contradiction_bytes > 0
    assert free_terms(terms) == []
    leaf, gaps = make_device_memory(
        DeviceMoment(rank=3, device="cuda:0", name="reserved peak", time_ns=found.end_ns),
        found,
        {},
        OutsideTerms(),
    )
    assert (leaf.split_bytes, leaf.free_segments_bytes, leaf.private_pools_bytes) == (None, None, None)
    assert leaf.reserved_bytes == terms.reserved_bytes
    assert [gap.rank for gap in gaps] == [3]
    assert "MiB" in gaps[0].reason
    assert "reserved peak" in gaps[0].reason


def test_one_stray_block_is_enough() -> None:
    frames = frames_of(stepwise()[0])
    block = frames["block"].copy()
    block.loc[block.index[-1], "address"] = 1
    found = read_history(block, frames["segment"], "cuda:0")
    assert found is not None
    assert compute_terms(found, found.end_ns).contradiction_bytes == 3 * MIB


def test_blocks_in_each_other_contradict_the_history() -> None:
    frames = frames_of(stepwise()[0])
    twice = pd.concat([frames["block"], frames["block"].tail(1).assign(requested_bytes=1)])
    found = read_history(twice, frames["segment"], "cuda:0")
    assert found is not None
    assert compute_terms(found, found.end_ns).contradiction_bytes == 3 * MIB


def test_a_block_smaller_than_its_request_is_a_gap() -> None:
    found = damaged(block_bytes=1)
    moment = DeviceMoment(rank=0, device="cuda:0", name="allocated peak", time_ns=found.end_ns)
    leaf, gaps = make_device_memory(moment, found, {}, OutsideTerms())
    assert leaf.rounding_bytes == 0
    assert any("smaller than what was asked for" in gap.reason for gap in gaps)


def test_impossible_sizes_are_refused() -> None:
    for size in (-1, 1 << 50):
        with pytest.raises(BadInput, match="impossible size"):
            damaged(requested_bytes=size)


def test_a_history_without_segments_says_that_reserved_memory_is_unknown() -> None:
    frames = frames_of(stepwise()[0])
    found = read_history(frames["block"], frames["segment"].iloc[:0], "cuda:0")
    assert found is not None
    moment = DeviceMoment(rank=0, device="cuda:0", name="allocated peak", time_ns=found.end_ns)
    leaf, gaps = make_device_memory(moment, found, {}, OutsideTerms())
    assert leaf.reserved_bytes is None
    assert [gap.what for gap in gaps] == ["reserved memory"]


def test_the_reserved_peak_is_shown_where_most_is_live() -> None:
    allocator = Allocator()
    allocator.begin_history()
    first = allocator.alloc(30 * MIB)
    allocator.tick(10)
    allocator.free(first)
    allocator.tick(10)
    allocator.alloc(8 * MIB)
    found = history(allocator)
    allocated_ns = found.begin_ns + 1  # the segment is there one entry before the block
    assert find_reserved_peak(found, found.begin_ns, found.end_ns) == allocated_ns
    after = found.begin_ns + 15_000
    assert find_reserved_peak(found, after, found.end_ns) == allocator.now_us * 1000
    assert find_reserved_peak(found, after, after + 1_000) == after


def test_a_moment_of_another_clock_moves_to_the_highest_point_close_by() -> None:
    found = history(stepwise()[0])
    time_ns, _ = find_allocated_peak(found)
    assert find_peak_near(found, time_ns - 5_000) == time_ns
    assert find_peak_near(found, time_ns + 10**9) == time_ns + 10**9


def test_other_devices_stay_out() -> None:
    first, second = stepwise()[0], Allocator(1)
    second.begin_history()
    second.alloc(MIB)
    frames = frames_of(first, second)
    found = read_history(frames["block"], frames["segment"], "cuda:1")
    assert found is not None
    assert np.array_equal(found.blocks.requested_bytes, [MIB])
    assert read_history(frames["block"], frames["segment"], "cuda:2") is None


def test_segments_that_are_less_than_the_blocks_are_not_what_was_reserved() -> None:
    found = damaged(requested_bytes=64 * MIB, block_bytes=64 * MIB)
    now = found.end_ns
    terms = compute_terms(found, now)
    assert 0 < terms.reserved_bytes < terms.live_bytes
    moment = DeviceMoment(rank=0, device="cuda:0", name="allocated peak", time_ns=now)
    leaf, gaps = make_device_memory(moment, found, {}, OutsideTerms(beside_bytes=1 * MIB))
    assert (leaf.reserved_bytes, leaf.process_bytes) == (None, None)
    assert gaps[0].what == "reserved memory"
    assert "more than the segments of the snapshot" in gaps[0].reason
