"""Reductions over the rows of a collective, against plain loops."""

import math
import statistics

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zprof.analysis.time.blame.judge import find_chain_ends, find_largest_within
from zprof.analysis.time.collective_rows import Instances, RowFinder

rows = st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 50)), max_size=30)


@given(rows)
def test_the_median_of_the_others(given_rows):
    instance = np.array([number for number, _ in given_rows], dtype=np.int64)
    values = np.array([value for _, value in given_rows], dtype=np.int64)
    found = Instances(instance).median_of_others(values)
    for row, (number, _) in enumerate(given_rows):
        others = [
            value
            for other, (theirs, value) in enumerate(given_rows)
            if other != row and theirs == number and number >= 0
        ]
        assert found[row] == statistics.median(others) if others else math.isnan(found[row])


@given(rows)
def test_reducing_and_spreading(given_rows):
    instance = np.array([number for number, _ in given_rows], dtype=np.int64)
    values = np.array([value for _, value in given_rows], dtype=np.int64)
    instances = Instances(instance)
    spread = instances.spread(instances.reduce(np.maximum, values), values)
    largest = instances.spread(instances.largest(values), np.arange(len(values)))
    for row, (number, value) in enumerate(given_rows):
        best = max(v for n, v in given_rows if n == number) if number >= 0 else value
        assert spread[row] == best
        assert values[largest[row]] == best


@given(rows)
def test_finding_the_row_of_a_rank(given_rows):
    known = {(number, rank): row for row, (number, rank) in enumerate(given_rows) if number >= 0}
    keys = np.array([*given_rows, (2, 999), (-1, 3), (3, -1)], dtype=np.int64)
    finder = RowFinder(keys[: len(given_rows), 0], keys[: len(given_rows), 1])
    for (number, rank), row in zip(keys.tolist(), finder.find(keys[:, 0], keys[:, 1]).tolist(), strict=True):
        assert (row >= 0) == ((number, rank) in known)
        assert row < 0 or given_rows[row] == (number, rank)


@given(
    st.lists(st.integers(0, 9), max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=10),
)
def test_the_largest_within_a_range(values, ranges):
    ranges = [(min(low, len(values)), min(high, len(values))) for low, high in ranges]
    low, high = (np.array([pair[side] for pair in ranges], dtype=np.int64) for side in (0, 1))
    found = find_largest_within(np.array(values, dtype=np.int64), low, high)
    for (first, last), place in zip(ranges, found.tolist(), strict=True):
        assert (place >= 0) == (first < last)
        if place >= 0:
            assert first <= place < last
            assert values[place] == max(values[first:last])


def test_the_root_of_a_chain_however_long():
    chain = np.maximum(0, np.arange(100_000) - 1)
    assert (find_chain_ends(chain) == 0).all()
