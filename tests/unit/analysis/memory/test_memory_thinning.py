"""Few points that keep the peak, and sum to what is live at each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_random import TABLES
from memory_tables import Tables, at

from zprof.analysis.memory.live_bytes import RankLives
from zprof.analysis.memory.thinning import MAX_POINTS, cut_stretches, tenant_bytes_at, thin_recording
from zprof.analysis.memory.timeline import Timeline
from zprof.model.memory import MemoryTimeline


def heights(timeline: MemoryTimeline) -> list[int]:
    return [sum(column) for column in zip(*timeline.tenants.values(), strict=True)]


def live_at(lives: RankLives, time_ns: int) -> int:
    index = int(np.searchsorted(lives.times_ns, time_ns, side="right")) - 1
    return int(lives.live_bytes[index]) if index >= 0 else 0


@settings(max_examples=50)
@given(TABLES, st.integers(1, 40))
def test_points_sum_to_the_live_bytes_and_hold_the_peak(tables: Tables, points: int) -> None:
    lives = tables.lives(end_us=64)
    timeline, peak, begin = thin_recording(0, "cpu", lives, points), lives.peak(), lives.timeline.begin_ns
    assert len(timeline.time_ns) <= points
    assert list(timeline.time_ns) == sorted(timeline.time_ns)
    assert heights(timeline) == [live_at(lives, begin + time_ns) for time_ns in timeline.time_ns]
    assert max(heights(timeline)) == peak.bytes
    assert peak.time_ns - begin in timeline.time_ns
    assert len(timeline.tenants) == 7
    assert all(size >= 0 for column in timeline.tenants.values() for size in column)


def test_each_point_is_the_highest_of_its_stretch() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 100, 150)
    tables.storage(2, 0x20, 32, 600, 610)
    tables.storage(3, 0x30, 16, 620, 700)
    timeline = thin_recording(3, "cpu", tables.lives(), points=2)
    assert (timeline.rank, timeline.device) == (3, "cpu")
    assert timeline.time_ns == (100_000, 600_000)
    assert heights(timeline) == [8, 32]


def test_a_stretch_that_only_falls_begins_with_its_highest_point() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 100, 650)
    timeline = thin_recording(0, "cpu", tables.lives(), points=2)
    assert timeline.time_ns == (100_000, 500_000)
    assert heights(timeline) == [8, 8]


def test_steps_and_phases_stand_where_they_begin() -> None:
    tables = Tables()
    tables.phase(100, "forward")
    tables.phase(400, "backward")
    tables.phase(600, "backward")
    tables.storage(1, 0x10, 8, 100, 150)
    timeline = thin_recording(0, "cpu", tables.lives())
    assert timeline.steps == ((0, 4),)
    assert timeline.phases == ((0, "other"), (100_000, "forward"), (400_000, "backward"))


def test_a_thousand_phases_are_thinned_too() -> None:
    tables = Tables()
    for index in range(1000):
        tables.phase(index, ("forward", "backward")[index % 2])
        tables.mark.append({"time_ns": at(index), "kind": "step_begin", "number": index, "name": ""})
    tables.storage(1, 0x10, 8, 100, 150)
    timeline = thin_recording(0, "cpu", tables.lives())
    assert len(timeline.phases) <= MAX_POINTS
    assert len(timeline.steps) <= MAX_POINTS
    assert timeline.steps[-1][1] == 999


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_window_shorter_than_its_points(length: int) -> None:
    window = Timeline(begin_ns=50, end_ns=50 + length, steps=[], step_ends=[], phases=[])
    assert cut_stretches(window, 240).tolist() == list(range(50, 50 + max(1, length)))


def test_a_window_without_length_is_one_point() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, -5, before=True)
    timeline = thin_recording(0, "cpu", tables.lives(end_us=0))
    assert (timeline.time_ns, heights(timeline)) == ((0,), [8])


def test_bytes_of_a_tenant_over_time() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 30)
    tables.storage(2, 0x20, 4, 20, None)
    segments = tables.lives().segments
    times = np.array([at(time_us) for time_us in (5, 10, 20, 29, 30, 900)], dtype=np.int64)
    assert tenant_bytes_at(segments, int(segments.tenant[0]), times).tolist() == [0, 8, 12, 12, 4, 4]
