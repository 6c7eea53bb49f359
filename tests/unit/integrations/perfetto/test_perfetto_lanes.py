"""Lanes: slices of one lane nest, and no lane is opened without need."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zprof.integrations.perfetto.chrome_trace import MAX_LANES, NO_LANE, assign_lanes, slice_order

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=30)


def placed(pairs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    start = np.array([start for start, _ in pairs], dtype=np.int64)
    end = start + np.array([length for _, length in pairs], dtype=np.int64)
    sequence = slice_order(start, end)
    found = assign_lanes(start[sequence], end[sequence])
    return list(zip(start[sequence].tolist(), end[sequence].tolist(), found.tolist(), strict=True))


@given(spans)
def test_slices_of_a_lane_nest(pairs):
    rows = placed(pairs)
    assert sorted(row[:2] for row in rows) == sorted((s, s + length) for s, length in pairs)
    for i, (start, end, lane) in enumerate(rows):
        for other_start, other_end, other in rows[i + 1 :]:
            if lane == other != NO_LANE:
                assert other_start >= end or other_end <= end, (start, end, other_start, other_end)


def test_nested_slices_share_a_lane_and_crossing_ones_do_not():
    assert [lane for *_, lane in placed([(0, 10), (2, 3), (2, 1), (5, 5), (10, 2)])] == [0, 0, 0, 0, 0]
    assert [lane for *_, lane in placed([(0, 10), (5, 10), (7, 10), (12, 2)])] == [0, 1, 2, 0]


def test_what_finds_no_lane_is_left_out():
    crossing = [(n, 100) for n in range(MAX_LANES + 3)]
    found = [lane for *_, lane in placed(crossing)]
    assert found == [*range(MAX_LANES), NO_LANE, NO_LANE, NO_LANE]
