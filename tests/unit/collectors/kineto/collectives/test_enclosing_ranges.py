"""Which interval of a thread is the innermost one around an instant, against a search of all."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kineto_traces import at, span, trace_of
from zprof.collectors.kineto.annotations import IntervalIndex, find_rows

NESTED = st.recursive(
    st.just([]), lambda inner: st.lists(st.tuples(st.integers(0, 3), inner), max_size=4), max_leaves=12
)


def laid_out(tree, begin, thread):
    """Intervals that nest as the tree does, with gaps of the numbers in it; and where the last one ends."""
    found, now = [], begin
    for gap, inner in tree:
        start = now + gap
        below, end = laid_out(inner, start, thread)
        found += [(thread, start, end + 1), *below]
        now = end + 2
    return found, now


@given(NESTED, NESTED, st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 60)), max_size=20))
def test_the_innermost_interval(first, second, asked):
    intervals = laid_out(first, 0, 0)[0] + laid_out(second, 0, 1)[0]
    trace = trace_of([span("r", start, end, thread) for thread, start, end in reversed(intervals)])
    rows = find_rows(trace, ("user_annotation",), "r".__eq__)
    threads = np.array([thread for thread, _ in asked], dtype=np.int64)
    times = np.array([at(time) for _, time in asked], dtype=np.int64)
    found = IntervalIndex(trace, rows).at(threads, times).tolist()
    for (thread, time), row in zip(asked, found, strict=True):
        around = [(e - s) for t, s, e in intervals if t == thread and s <= time <= e]
        if row < 0:
            assert not around
        else:
            assert trace.thread[row] == thread
            assert trace.duration_ns[row] == min(around) * 1000


def test_intervals_that_overlap_without_nesting():
    trace = trace_of([span("a", 0, 10), span("b", 5, 15), span("c", 11, 12)])
    at_ = IntervalIndex(trace, np.arange(3)).at(np.full(4, 10), np.array([at(t) for t in (3, 7, 13, 16)]))
    assert at_.tolist() == [0, 1, 1, -1]


def test_each_name_is_asked_once_and_only_of_its_category():
    asked = []
    trace = trace_of([span("a", 3, 4), span("a", 1, 2), span("b", 0, 1, category="kernel")])
    rows = find_rows(trace, ("user_annotation",), lambda name: asked.append(name) or True)
    assert rows.tolist() == [1, 0]
    assert asked == ["a"]
