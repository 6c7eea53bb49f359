"""Interval arithmetic against a bitmap: one boolean per nanosecond, written without numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.analysis.intervals import clip, covered, intersect, intervals, measure, subtract, union

SPAN = 60
raw_sets = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=12)
points = st.integers(0, SPAN)


def as_rows(raw):
    return np.array(raw, dtype=np.int64).reshape(-1, 2)


def bitmap(raw):
    return [any(start <= tick < end for start, end in raw) for tick in range(SPAN + 1)]


@settings(max_examples=60)
@pytest.mark.parametrize(
    ("operation", "truth"),
    [
        (union, lambda x, y: x or y),
        (intersect, lambda x, y: x and y),
        (subtract, lambda x, y: x and not y),
    ],
)
@given(a=raw_sets, b=raw_sets)
def test_operations_on_two_sets(operation, truth, a, b) -> None:
    rows, others = as_rows(a), as_rows(b)
    before = rows.copy(), others.copy()
    found = operation(rows, others)
    assert bitmap(found.tolist()) == [truth(x, y) for x, y in zip(bitmap(a), bitmap(b), strict=True)]
    assert found.dtype == np.int64
    assert (np.diff(found.ravel()) > 0).all(), "sorted, disjoint, not touching, not empty"
    assert (rows == before[0]).all()
    assert (others == before[1]).all()


@settings(max_examples=60)
@given(raw_sets, st.lists(st.tuples(points, points), min_size=1, max_size=6))
def test_windows_of_a_set(a, windows) -> None:
    bits = bitmap(a)
    assert measure(as_rows(a)) == sum(bits)
    inside = [sum(bits[start:end]) for start, end in windows]
    assert covered(as_rows(a), [w[0] for w in windows], [w[1] for w in windows]).tolist() == inside
    start, end = windows[0]
    kept = [x and start <= tick < end for tick, x in enumerate(bits)]
    assert bitmap(clip(as_rows(a), start, end).tolist()) == kept


def test_absolute_times_stay_exact() -> None:
    base = 1_790_857_026_000_000_000
    rows = intervals([base, base + 1], [base + 3, base + 7])
    assert union(rows).tolist() == [[base, base + 7]]
    assert covered(rows, [base + 2], [base + 5]).tolist() == [3]
