"""The history of a snapshot equals a plain replay of its entries to the byte: simulated and real ones."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.plain_replay import Moment, replay_plainly
from tests.support.real_traces import TRACES
from tests.support.run_tables import table_of
from tests.support.snapshots import random_history
from zprof.analysis.memory.history import (
    History,
    compute_terms,
    find_allocated_peak,
    find_reserved_peak,
    read_history,
)
from zprof.collectors.read.pickle_sandbox import load_plain_data
from zprof.collectors.read.snapshot.convert import convert_snapshot

SNAPSHOTS = TRACES.with_name("snapshots")
#: Real histories; those of training take the plain replay twenty seconds each.
REAL = [
    "large_bf16_128_forward",
    "medium_1024_inference",
    "small_100_forward_backward",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("medium_128_training", "medium_512_training")),
]


def read(snapshot: dict[str, Any]) -> History | None:
    tables = convert_snapshot(snapshot)
    block, segment = table_of("block", tables.block), table_of("segment", tables.segment)
    return read_history(block, segment, "cuda:0")


def check_moment(history: History, moment: Moment) -> None:
    terms = compute_terms(history, moment.time_ns)
    assert terms.live_bytes == moment.requested
    assert terms.reserved_bytes == moment.reserved
    if moment.rounded is not None:
        assert terms.live_bytes + terms.rounding_bytes == moment.rounded


def check_moments(history: History, moments: list[Moment]) -> None:
    for moment in moments:
        check_moment(history, moment)


def check_peaks(history: History, moments: list[Moment]) -> None:
    time_ns, size = find_allocated_peak(history)
    assert size == max(moment.requested for moment in moments)
    first = next(moment for moment in moments if moment.requested == size)
    assert time_ns == first.time_ns
    reserved_ns = find_reserved_peak(history, history.begin_ns, history.end_ns)
    highest = max(moment.reserved for moment in moments)
    assert reserved_ns is None or compute_terms(history, reserved_ns).reserved_bytes == highest
    assert reserved_ns is not None or highest == 0


def check_totals_of_segments(history: History, segments: list[dict[str, Any]]) -> None:
    """torch's own sums per segment: ``requested_size`` also counts blocks that await a stream."""
    terms = compute_terms(history, history.end_ns)
    assert terms.reserved_bytes == sum(segment["total_size"] for segment in segments)
    assert terms.live_bytes + terms.rounding_bytes == sum(segment["allocated_size"] for segment in segments)
    held = sum(segment["active_size"] for segment in segments)
    assert terms.live_bytes + terms.rounding_bytes + terms.awaiting_free_bytes == held
    if not terms.awaiting_free_bytes:
        assert terms.live_bytes == sum(segment["requested_size"] for segment in segments)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9), steps=st.integers(1, 70), ring=st.none() | st.integers(1, 40))
def test_a_simulated_history_equals_a_plain_replay(seed: int, steps: int, ring: int | None) -> None:
    allocator = random_history(seed, steps, ring=ring)
    snapshot = snapshot_of(allocator)
    history = read(snapshot)
    if history is None or not allocator.entries:
        return  # nothing was ever held, or recorded
    moments = replay_plainly(snapshot["device_traces"][0], snapshot["segments"])
    check_moments(history, moments)
    check_peaks(history, moments)
    check_totals_of_segments(history, snapshot["segments"])


@pytest.mark.parametrize("name", REAL)
@pytest.mark.skipif(not SNAPSHOTS.is_dir(), reason="the shared data is not there")
def test_a_real_history_equals_a_plain_replay(name: str) -> None:
    with Path(SNAPSHOTS / f"{name}.pickle").open("rb") as file:
        snapshot = load_plain_data(file)
    history = read(snapshot)
    assert history is not None
    moments = replay_plainly(snapshot["device_traces"][0], snapshot["segments"])
    for moment in [*moments[:: max(1, len(moments) // 50)], moments[-1]]:
        check_moment(history, moment)
    check_peaks(history, moments)
    check_totals_of_segments(history, snapshot["segments"])


def test_the_plain_replay_can_tell() -> None:
    """A lost entry, or a request taken for a block, would show."""
    allocator = random_history(3, 60)
    snapshot = snapshot_of(allocator)
    moments = replay_plainly(snapshot["device_traces"][0], snapshot["segments"])
    assert any(moment.rounded is not None and moment.rounded > moment.requested for moment in moments)
    allocs = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    broken = pickle.loads(pickle.dumps(snapshot))
    broken["device_traces"][0].remove(allocs[0])
    history = read(broken)
    assert history is not None
    with pytest.raises(AssertionError):
        check_moments(history, moments)
