"""Kernels of the same name among the same neighbours do the same work; medians of groups."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zprof.analysis.time.kernels import group_medians, group_same_work

NAMES = st.lists(st.integers(0, 3), max_size=30)


@given(NAMES)
def test_alike_are_those_with_the_same_three_names_on_each_side(names: list[int]) -> None:
    padded = [-1] * 3 + names + [-1] * 3
    around = [tuple(padded[place : place + 7]) for place in range(len(names))]
    kinds = group_same_work(np.array(names, dtype=np.int64)).tolist()
    assert len(set(kinds)) == len(set(around))
    assert len(set(zip(kinds, around, strict=True))) == len(set(around))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1 << 40)), max_size=30))
def test_medians_are_those_of_numpy(pairs: list[tuple[int, int]]) -> None:
    group = np.array([pair[0] for pair in pairs], dtype=np.int64)
    values = np.array([pair[1] for pair in pairs], dtype=np.int64)
    expected = [np.median(values[group == n]) if (group == n).any() else np.nan for n in range(6)]
    assert np.array_equal(group_medians(group, values, 6), np.array(expected), equal_nan=True)
