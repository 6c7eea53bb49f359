"""Live bytes over time: columns show the highest, never a mean, so that no peak vanishes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.support.full_memories import full_memory
from tests.support.tui_memory import of_ranks, timeline_of, with_memory
from zprof.tui.presenters.memory_timeline import (
    Curve,
    decimate,
    find_column,
    find_curve,
    format_moment_at,
    layout_marks,
    stack_cells,
)
from zprof.tui.session import LoadedRun

COLUMNS = st.integers(1, 300)
HEIGHTS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=260)


@st.composite
def timelines(draw: st.DrawFn) -> tuple[list[int], int, list[int]]:
    """Rising times, where the last point ends, and a height each."""
    heights = draw(HEIGHTS)
    steps = draw(st.lists(st.integers(1, 10**9), min_size=len(heights), max_size=len(heights)))
    times = [sum(steps[:place]) for place in range(len(steps))]
    return times, times[-1] + steps[-1], heights


@given(timelines(), COLUMNS)
def test_the_peak_is_in_some_column(made: tuple[list[int], int, list[int]], columns: int) -> None:
    times, end_ns, heights = made
    chosen = decimate(times, end_ns, heights, columns)
    assert len(chosen) == columns
    assert max(heights[point] for point in chosen) == max(heights)


@given(timelines(), COLUMNS)
def test_a_column_is_the_highest_of_what_lasts_into_it(
    made: tuple[list[int], int, list[int]], columns: int
) -> None:
    times, end_ns, heights = made
    ends = [*times[1:], end_ns]
    for column, point in enumerate(decimate(times, end_ns, heights, columns)):
        begin = times[0] + (end_ns - times[0]) * column // columns
        end = times[0] + (end_ns - times[0]) * (column + 1) // columns
        lasts = [at for at in range(len(times)) if times[at] < max(end, begin + 1) and ends[at] > begin]
        assert heights[point] == max(heights[at] for at in lasts)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=7), st.integers(1, 12), st.integers(0, 1 << 40))
def test_a_tower_is_as_high_as_it_is(sizes: list[int], rows: int, more: int) -> None:
    named = [(f"t{place}", size) for place, size in enumerate(sizes)]
    total = sum(sizes)
    cells = stack_cells(named, total + more, rows)
    filled = [name for name in cells if name]
    assert len(cells) == rows
    assert cells == filled + [""] * (rows - len(filled))
    assert (len(filled) > 0) == (total > 0)
    if total:
        assert abs(len(filled) - rows * total / (total + more)) <= 1
        assert len(filled) == rows or more
    order = [int(name[1:]) for name in filled]
    assert order == sorted(order)
    assert all(dict(named)[name] > 0 for name in filled)


def test_a_cell_is_of_who_has_most_of_it() -> None:
    assert stack_cells([("a", 30), ("b", 10), ("c", 60)], 100, 10) == ["a"] * 3 + ["b"] + ["c"] * 6
    assert stack_cells([("a", 30), ("b", 10), ("c", 60)], 100, 2) == ["a", "c"]
    assert stack_cells([("a", 1)], 100, 3) == ["a", "", ""]
    assert stack_cells([("a", 0)], 0, 2) == ["", ""]


def test_numbers_of_a_point_are_leaves(alone: LoadedRun) -> None:
    curve = find_curve(alone, 1)
    assert curve is not None
    assert curve.timeline.rank == 1
    peak = alone.report.memory.per_rank[1].peak_bytes
    assert curve.total(curve.peak).value == peak
    assert format_moment_at(curve, curve.peak) == "step 2 backward"


def test_the_largest_stands_in_where_a_rank_has_no_timeline(alone: LoadedRun) -> None:
    curve = find_curve(with_memory(alone, full_memory()), 0)
    assert curve is not None
    assert (curve.timeline.rank, curve.instead_of) == (1, 0)
    assert find_curve(with_memory(alone, of_ranks(4)), 0) is None


def test_phases_have_their_columns() -> None:
    timeline = replace(
        timeline_of([1, 5, 3, 2], every_ns=10),
        phases=((0, "forward"), (10, "backward"), (30, "optimizer"), (30, "other")),
        steps=((0, 2), (30, 3)),
    )
    curve = Curve(timeline=timeline, place=0)
    assert curve.end_ns == 40
    assert layout_marks(timeline.phases, curve, 8) == [(0, 2, "forward"), (2, 6, "backward"), (6, 8, "other")]
    assert find_column(-5, 0, 40, 8) == 0
    assert find_column(40, 0, 40, 8) == 7
    assert format_moment_at(curve, 1) == "step 2 backward"
    assert format_moment_at(Curve(timeline=timeline_of([1]), place=0), 0) == ""
