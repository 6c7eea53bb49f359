"""What part of a step is seen, and the glyphs, names and ticks that are drawn of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.analysis.step_timeline.lane import EventKind, LaneKind, TimelineLane, build_items
from zprof.base.formatting import display_width
from zprof.tui.timeline_cursor import MIN_SPAN_NS, View, make_first_view
from zprof.tui.widgets.lanes import (
    find_ticks,
    format_ruler,
    write_names,
)

WIDTH = 66
LENGTH = 570_000_000
moves = st.lists(
    st.one_of(
        st.tuples(st.just("zoom"), st.sampled_from([0.5, 2.0])),
        st.tuples(st.just("move"), st.integers(-80, 80)),
        st.tuples(st.just("onto"), st.integers(0, LENGTH - 2)),
        st.tuples(st.just("of"), st.integers(1, 2 * LENGTH)),
    ),
    max_size=12,
)


def move(view: View, what: str, value: float) -> View:
    if what == "zoom":
        return view.zoomed(value)
    if what == "move":
        return view.moved(int(value), WIDTH)
    if what == "of":
        return view.for_step_length(int(value))
    begin = int(value) % max(1, view.length_ns - 1)
    return view.zoomed_to(begin, min(view.length_ns, begin + 9_000_000))


def names(spans: list[tuple[int, int, str]], kind: LaneKind = LaneKind.PHASES) -> TimelineLane:
    start, end = (np.array([span[at] for span in spans], dtype=np.int64) for at in (0, 1))
    items = build_items(
        start, end, np.arange(len(spans)), np.full(len(spans), EventKind.RANGE, dtype=np.int8)
    )
    texts = tuple(text for _, _, text in spans)
    return TimelineLane(
        key="phase", label="phase", title="phases", kind=kind, covers={}, items=items, names=texts
    )


def write(lane: TimelineLane, length: int, width: int) -> str:
    return "".join(write_names(lane, make_first_view(length), width, ascii_only=True))


@settings(max_examples=50)
@given(moves)
def test_view_and_cursor_never_leave_the_step(steps: list[tuple[str, float]]) -> None:
    view = make_first_view(LENGTH)
    for what, value in steps:
        view = move(view, what, value)
        assert 0 <= view.begin_ns < view.end_ns <= view.length_ns
        assert 0 <= view.cursor_ns < view.length_ns
        assert view.span_ns >= min(MIN_SPAN_NS, view.length_ns)
        assert 0 <= view.column(WIDTH) < WIDTH
        if what != "of":
            assert view.begin_ns <= view.cursor_ns < view.end_ns


def test_the_cursor_stays_in_its_column_when_it_zooms() -> None:
    view = make_first_view(LENGTH).at(200_000_000)
    column = view.column(WIDTH)
    for _ in range(6):
        view = view.zoomed(0.5)
        assert abs(view.column(WIDTH) - column) <= 1
    for _ in range(8):
        view = view.zoomed(2)
    assert view.shows_full_step


def test_the_cursor_moves_a_column_at_a_time_and_the_view_goes_along() -> None:
    view = make_first_view(LENGTH).at(LENGTH // 2).zoomed(0.25)
    column, begin = view.column(WIDTH), view.begin_ns
    for by in (1, -1):
        assert view.moved(by, WIDTH).column(WIDTH) == column + by
        assert view.moved(by, WIDTH).begin_ns == begin
    for _ in range(60):
        view = view.moved(1, WIDTH)
    assert view.begin_ns > begin
    assert view.column(WIDTH) < WIDTH - 5
    for _ in range(400):
        view = view.moved(1, WIDTH)
    assert (view.end_ns, view.column(WIDTH)) == (LENGTH, WIDTH - 1)


def test_a_gap_is_seen_large_enough_and_another_step_at_the_same_place() -> None:
    whole = make_first_view(LENGTH)
    tiny = whole.zoomed_to(300_000_000, 300_020_000)
    assert tiny.begin_ns < 300_000_000 == tiny.cursor_ns < 300_020_000 < tiny.end_ns
    assert tiny.span_ns <= 16 * 20_000
    large = tiny.zoomed_to(100_000_000, 400_000_000)
    assert large.begin_ns <= 100_000_000 < 400_000_000 <= large.end_ns
    assert whole.zoomed_to(300_000_000, 400_000_000).shows_full_step, "it is seen well as it is"
    view = whole.at(200_000_000).zoomed(0.25)
    other = view.for_step_length(LENGTH + 9)
    assert (other.begin_ns, other.span_ns) == (view.begin_ns, view.span_ns)
    assert whole.for_step_length(2 * LENGTH).shows_full_step


@pytest.mark.parametrize(
    ("spans", "width", "line"),
    [
        (
            [(0, 40, "forward"), (40, 70, "backward"), (70, 80, "optimizer"), (90, 100, "forward")],
            50,
            "|forward            |backward      |opt…     |for…",
        ),
        ([(0, 47, "forward"), (47, 100, "backward")], 20, "|forward |backward  "),
        ([(0, 46, "forward"), (49, 100, "backward")], 20, "|forward |backward  "),
        ([(0, 100, "a\x1b[2Jb\u202e\n")], 26, r"|a\x1b[2Jb\u202e\x0a      "),
        ([(place, place + 1, "x" * 9) for place in range(100)], 20, "|" * 20),
    ],
)
def test_names_begin_where_their_range_does_and_end_at_the_next(
    spans: list[tuple[int, int, str]], width: int, line: str
) -> None:
    assert write(names(spans), 100, width) == line


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), st.text(max_size=12)), max_size=8),
    st.integers(8, 40),
)
def test_names_never_steer_and_fill_the_line(spans: list[tuple[int, int, str]], width: int) -> None:
    lane = names([(begin, begin + length, text) for begin, length, text in spans])
    shown = write_names(lane, make_first_view(60), width, ascii_only=False)
    assert len(shown) == display_width("".join(shown)) == width
    assert not set("".join(shown)) & set("\x1b\n\r\u202e")


@pytest.mark.parametrize("width", [8, 186])
@pytest.mark.parametrize(
    "view",
    [*map(make_first_view, (1, 999, LENGTH, 90_000_000_000)), View.zoomed(make_first_view(LENGTH), 0.001)],
    ids=str,
)
def test_ticks_stand_at_their_times(view: View, width: int) -> None:
    labels = [float(label) for _, label in find_ticks(view, width)]
    assert labels == sorted(labels)
    for column, label in find_ticks(view, width):
        first, last = (view.begin_ns + view.span_ns * edge / width for edge in (column, column + 1))
        assert first - 1 <= float(label) * 1e6 <= last + 1
    assert len(format_ruler(view, width)) == width
