"""The highest point of each phase, on hand-made tables and as a property."""

import numpy as np
from hypothesis import given, settings
from memory_random import TABLES
from memory_tables import Tables, at

from zprof.analysis.memory.breakdown import find_phase_peaks
from zprof.analysis.memory.live_bytes import compute_live_curve
from zprof.model.tenants import Tenant


def peaks_of(tables: Tables, end_us: float = 1000) -> dict[str, int]:
    return {peak.phase: peak.peak_bytes for peak in find_phase_peaks(0, tables.lives(end_us))}


def test_each_phase_has_its_own_highest_point() -> None:
    tables = Tables()
    tables.phase(10, "forward")
    tables.phase(50, "backward")
    tables.storage(1, 0x10, 8, 5, 45)
    tables.storage(2, 0x20, 16, 20, 60)
    tables.storage(3, 0x30, 2, 70, 80)
    assert peaks_of(tables) == {"other": 8, "forward": 24, "backward": 16}


def test_what_is_carried_into_a_phase_counts_and_what_begins_with_the_next_does_not() -> None:
    tables = Tables()
    tables.phase(10, "forward")
    tables.phase(50, "backward")
    tables.phase(60, "optimizer")
    tables.storage(1, 0x10, 8, 5, 55)
    tables.storage(2, 0x20, 100, 50, 60)
    assert peaks_of(tables) == {"other": 8, "forward": 8, "backward": 108, "optimizer": 0}


def test_the_highest_of_all_steps_with_its_step_and_owner() -> None:
    tables = Tables()
    for begin_us, size in ((100, 8), (300, 32), (500, 16)):
        tables.mark.append({"time_ns": at(begin_us), "kind": "step_begin", "number": begin_us, "name": ""})
        tables.phase(begin_us + 1, "forward")
        tables.phase(begin_us + 50, "backward")
        tables.storage(begin_us, begin_us, size, begin_us + 2, begin_us + 9)
        tables.claim(begin_us, begin_us + 3, "gradients")
    forward = {peak.phase: peak for peak in find_phase_peaks(7, tables.lives())}["forward"]
    assert (forward.rank, forward.step, forward.peak_bytes) == (7, 300, 32)
    assert (forward.tenants[Tenant.GRADIENTS], forward.untagged_bytes) == (32, 0)


def test_a_phase_without_length_and_one_outside_the_window_are_none() -> None:
    tables = Tables()
    for time_us, name in ((-5, "optimizer"), (10, "forward"), (20, "recompute"), (20, "backward")):
        tables.phase(time_us, name)
    tables.phase(1000, "optimizer")
    tables.storage(1, 0x10, 8, 15, 90)
    assert set(peaks_of(tables)) == {"other", "forward", "backward"}


def test_a_window_without_length_has_no_phase() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, -5, 90, before=True)
    assert peaks_of(tables, end_us=0) == {}


def test_a_phase_of_a_newer_version_counts_as_other() -> None:
    tables = Tables()
    tables.phase(10, "\x1b[2Jtomorrow")
    tables.storage(1, 0x10, 8, 15, 90)
    assert peaks_of(tables) == {"other": 8}


@settings(max_examples=50)
@given(TABLES)
def test_the_largest_phase_is_the_peak_and_each_sums(tables: Tables) -> None:
    lives = tables.lives(end_us=64)
    peaks, peak = find_phase_peaks(0, lives), lives.peak()
    assert max(entry.peak_bytes for entry in peaks) == peak.bytes
    largest = next(entry for entry in peaks if entry.phase == lives.timeline.phase_at(peak.time_ns))
    assert (largest.peak_bytes, largest.tenants) == (peak.bytes, peak.tenants)
    for entry in peaks:
        assert entry.peak_bytes == sum(entry.tenants.values()) + entry.untagged_bytes


@settings(max_examples=50)
@given(TABLES)
def test_each_phase_is_what_looking_at_every_event_gives(tables: Tables) -> None:
    lives = tables.lives(end_us=100)
    window = lives.timeline
    times, live = compute_live_curve(lives.blocks.begin_ns, lives.blocks.end_ns, lives.blocks.bytes)
    found: dict[str, int] = {}
    moments = {window.begin_ns, *times.tolist(), *(t for t, _ in window.phases)}
    for time_ns in sorted(moments):
        if window.begin_ns <= time_ns < window.end_ns:
            index = int(np.searchsorted(times, time_ns, side="right")) - 1
            phase = window.phase_at(time_ns)
            found[phase] = max(found.get(phase, 0), int(live[index]) if index >= 0 else 0)
    assert {entry.phase: entry.peak_bytes for entry in find_phase_peaks(0, lives)} == found
