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


def assert_same(rows, expected):
    assert bitmap([tuple(row) for row in rows.tolist()]) == expected
    flat = rows.ravel()
    assert rows.dtype == np.int64
    assert (np.diff(flat) > 0).all(), "sorted, disjoint, not touching, not empty"


@settings(max_examples=40)
@given(raw_sets, raw_sets)
def test_union_is_either(a, b):
    assert_same(union(as_rows(a), as_rows(b)), [x or y for x, y in zip(bitmap(a), bitmap(b), strict=True)])


@settings(max_examples=40)
@given(raw_sets, raw_sets)
def test_intersect_is_both(a, b):
    expected = [x and y for x, y in zip(bitmap(a), bitmap(b), strict=True)]
    assert_same(intersect(as_rows(a), as_rows(b)), expected)


@settings(max_examples=40)
@given(raw_sets, raw_sets)
def test_subtract_is_first_without_second(a, b):
    expected = [x and not y for x, y in zip(bitmap(a), bitmap(b), strict=True)]
    assert_same(subtract(as_rows(a), as_rows(b)), expected)


@settings(max_examples=40)
@given(raw_sets, points, points)
def test_clip_keeps_the_window(a, start, end):
    expected = [x and start <= tick < end for tick, x in enumerate(bitmap(a))]
    assert_same(clip(as_rows(a), start, end), expected)


@settings(max_examples=40)
@given(raw_sets)
def test_measure_counts_each_instant_once(a):
    assert measure(as_rows(a)) == sum(bitmap(a))


@settings(max_examples=40)
@given(raw_sets, st.lists(st.tuples(points, points), max_size=6))
def test_covered_measures_each_window(a, windows):
    bits = bitmap(a)
    got = covered(as_rows(a), [w[0] for w in windows], [w[1] for w in windows])
    assert got.tolist() == [sum(bits[start:end]) for start, end in windows]


def test_absolute_times_stay_exact():
    base = 1_790_857_026_000_000_000
    rows = intervals([base, base + 1], [base + 3, base + 7])
    assert union(rows).tolist() == [[base, base + 7]]
    assert covered(rows, [base + 2], [base + 5]).tolist() == [3]


@pytest.mark.parametrize("operation", [union, intersect, subtract])
def test_inputs_are_not_changed(operation):
    a, b = as_rows([(5, 9), (1, 3)]), as_rows([(2, 6)])
    before = a.copy(), b.copy()
    operation(a, b)
    assert (a == before[0]).all()
    assert (b == before[1]).all()
