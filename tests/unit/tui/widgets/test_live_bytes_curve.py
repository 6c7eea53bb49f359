"""Live bytes over time: columns show the highest point, so no peak is lost in a narrow terminal."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.full_memories import full_memory
from tests.support.tui_memory import of_ranks, timeline_of, with_memory
from zprof.reports.pages.memory_timeline import Curve, find_curve, format_moment_at
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.trend import decimate, find_column, layout_marks, stack_cells


@st.composite
def timelines(draw: st.DrawFn) -> tuple[list[int], int, list[int]]:
    """Rising times, where the last point ends, and a height each."""
    heights = draw(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=100))
    steps = draw(st.lists(st.integers(1, 10**9), min_size=len(heights), max_size=len(heights)))
    times = [sum(steps[:place]) for place in range(len(steps))]
    return times, times[-1] + steps[-1], heights


@settings(max_examples=40)
@given(timelines(), st.integers(1, 300))
def test_a_column_is_the_highest_of_what_lasts_into_it(
    made: tuple[list[int], int, list[int]], columns: int
) -> None:
    times, end_ns, heights = made
    ends = [*times[1:], end_ns]
    chosen = decimate(times, end_ns, heights, columns)
    assert len(chosen) == columns
    assert max(heights[point] for point in chosen) == max(heights)
    for column, point in enumerate(chosen):
        begin = times[0] + (end_ns - times[0]) * column // columns
        end = times[0] + (end_ns - times[0]) * (column + 1) // columns
        lasts = [at for at in range(len(times)) if times[at] < max(end, begin + 1) and ends[at] > begin]
        assert heights[point] == max(heights[at] for at in lasts)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=7), st.integers(1, 12), st.integers(0, 1 << 40))
def test_a_column_is_as_high_as_its_bytes(sizes: list[int], rows: int, more: int) -> None:
    named = [(f"t{place}", size) for place, size in enumerate(sizes)]
    total = sum(sizes)
    cells = stack_cells(named, total + more, rows)
    filled = [name for name in cells if name]
    assert cells == filled + [""] * (rows - len(filled))
    assert (len(filled) > 0) == (total > 0)
    if total:
        assert abs(len(filled) - rows * total / (total + more)) <= 1
        assert len(filled) == rows or more
    assert [int(name[1:]) for name in filled] == sorted(int(name[1:]) for name in filled)
    assert all(dict(named)[name] > 0 for name in filled)


def test_a_curve_has_the_peak_of_its_rank_or_that_of_the_largest(alone: LoadedRun) -> None:
    curve = find_curve(alone.report, 1)
    assert (curve.timeline.rank, curve.instead_of) == (1, None)
    assert curve.total(curve.peak).number == alone.report.memory.per_rank[1].peak_bytes
    assert format_moment_at(curve, curve.peak) == "step 2 backward"
    other = find_curve(with_memory(alone, full_memory()).report, 0)
    assert (other.timeline.rank, other.instead_of) == (1, 0)
    assert find_curve(with_memory(alone, of_ranks(4)).report, 0) is None


def test_phases_have_their_columns() -> None:
    timeline = replace(
        timeline_of([1, 5, 3, 2], every_ns=10),
        phases=((0, "forward"), (10, "backward"), (30, "optimizer"), (30, "other")),
        steps=((0, 2), (30, 3)),
    )
    curve = Curve(timeline=timeline, index=0)
    assert curve.end_ns == 40
    assert layout_marks(timeline.phases, curve, 8) == [(0, 2, "forward"), (2, 6, "backward"), (6, 8, "other")]
    assert [find_column(time_ns, 0, 40, 8) for time_ns in (-5, 40)] == [0, 7]
    assert format_moment_at(curve, 1) == "step 2 backward"
