"""Few points that keep the peak, and sum to what is live at each."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_tables import TABLES, Tables, at
from zprof.analysis.memory.breakdown import MAX_POINTS, thin_recording
from zprof.model.memory import MemoryTimeline


def heights(timeline: MemoryTimeline) -> list[int]:
    return [sum(column) for column in zip(*timeline.tenants.values(), strict=True)]


@settings(max_examples=20)
@given(TABLES, st.integers(1, 40))
def test_points_sum_to_the_live_bytes_and_hold_the_peak(tables: Tables, points: int) -> None:
    lives = tables.lives(end_us=64)
    timeline, peak, begin = thin_recording(0, "cpu", lives, points), lives.peak(), lives.timeline.begin_ns
    blocks = lives.blocks
    assert len(timeline.time_ns) <= points
    assert list(timeline.time_ns) == sorted(timeline.time_ns)
    for offset, height in zip(timeline.time_ns, heights(timeline), strict=True):
        live = (blocks.begin_ns <= begin + offset) & (blocks.end_ns > begin + offset)
        assert height == blocks.bytes[live].sum()
    assert max(heights(timeline)) == peak.bytes
    assert peak.time_ns - begin in timeline.time_ns
    assert all(size >= 0 for column in timeline.tenants.values() for size in column)


def test_each_point_is_the_highest_of_its_stretch() -> None:
    tables = Tables()
    for number, span in enumerate([(8, 100, 150), (32, 600, 610), (16, 620, 700)]):
        tables.storage(number, 0x10 * number, *span)
    timeline = thin_recording(3, "cuda:1", tables.lives(), points=2)
    assert (timeline.rank, timeline.device) == (3, "cuda:1")
    assert (timeline.time_ns, heights(timeline)) == ((100_000, 600_000), [8, 32])
    falling = Tables()
    falling.storage(1, 0x10, 8, 100, 650)
    timeline = thin_recording(0, "cpu", falling.lives(), points=2)
    assert (timeline.time_ns, heights(timeline)) == ((100_000, 500_000), [8, 8])


def test_steps_and_phases_are_placed_at_their_begins_and_thinned() -> None:
    tables = Tables().phases(forward=100, backward=400)
    tables.phase(600, "backward")
    tables.storage(1, 0x10, 8, 100, 150)
    timeline = thin_recording(0, "cpu", tables.lives())
    assert timeline.steps == ((0, 4),)
    assert timeline.phases == ((0, "other"), (100_000, "forward"), (400_000, "backward"))
    for index in range(1000):
        tables.phase(index, ("forward", "backward")[index % 2])
        tables.mark.append({"time_ns": at(index), "kind": "step_begin", "number": index, "name": ""})
    timeline = thin_recording(0, "cpu", tables.lives())
    assert max(len(timeline.phases), len(timeline.steps)) <= MAX_POINTS
    assert timeline.steps[-1][1] == 999
