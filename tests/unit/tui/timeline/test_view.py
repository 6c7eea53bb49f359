"""What part of a step is seen: it never leaves the step, and the cursor never leaves it."""

from hypothesis import given
from hypothesis import strategies as st

from zprof.tui.timeline.view import MIN_SPAN_NS, View, make_first_view

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


def moved(view: View, what: str, value: float) -> View:
    if what == "zoom":
        return view.zoomed(value)
    if what == "move":
        return view.moved(int(value), WIDTH)
    if what == "of":
        return view.of(int(value))
    begin = int(value) % max(1, view.length_ns - 1)
    return view.onto(begin, min(view.length_ns, begin + 9_000_000))


@given(moves)
def test_it_stays_within_the_step(steps: list[tuple[str, float]]) -> None:
    view = make_first_view(LENGTH)
    for what, value in steps:
        view = moved(view, what, value)
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
    assert view.is_whole


def test_it_moves_a_column_at_a_time_and_the_view_goes_along() -> None:
    view = make_first_view(LENGTH).at(LENGTH // 2).zoomed(0.25)
    column, begin = view.column(WIDTH), view.begin_ns
    assert view.moved(1, WIDTH).column(WIDTH) == column + 1
    assert view.moved(-1, WIDTH).column(WIDTH) == column - 1
    assert view.moved(1, WIDTH).begin_ns == begin
    for _ in range(60):
        view = view.moved(1, WIDTH)
    assert view.begin_ns > begin
    assert view.column(WIDTH) < WIDTH - 5
    for _ in range(400):
        view = view.moved(1, WIDTH)
    assert view.end_ns == LENGTH
    assert view.column(WIDTH) == WIDTH - 1


def test_a_gap_is_seen_large_enough() -> None:
    whole = make_first_view(LENGTH)
    tiny = whole.onto(300_000_000, 300_020_000)
    assert tiny.cursor_ns == 300_000_000
    assert tiny.begin_ns < 300_000_000
    assert tiny.end_ns > 300_020_000
    assert tiny.span_ns <= 16 * 20_000
    large = tiny.onto(100_000_000, 400_000_000)
    assert large.begin_ns <= 100_000_000
    assert large.end_ns >= 400_000_000
    near = whole.onto(300_000_000, 400_000_000)
    assert near.is_whole  # it is seen well as it is


def test_another_step_is_seen_at_the_same_place() -> None:
    assert make_first_view(LENGTH).of(2 * LENGTH).is_whole
    view = make_first_view(LENGTH).at(200_000_000).zoomed(0.25)
    other = view.of(LENGTH + 9)
    assert (other.begin_ns, other.span_ns) == (view.begin_ns, view.span_ns)
