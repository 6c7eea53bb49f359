"""How much of each column a role holds, against counting every nanosecond."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.analysis.intervals import EMPTY, Intervals
from zprof.tui.timeline.lane import IDLE, Lane, LaneKind, Role, build_cover, build_items, compute_columns

LENGTH = 60
spans = st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted), max_size=12)
edges = st.lists(st.integers(-5, LENGTH + 5), min_size=2, max_size=9, unique=True).map(sorted)


def rows(found: list[list[int]]) -> Intervals:
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def counted(found: list[list[int]], begin: int, end: int) -> int:
    """How many nanoseconds of a stretch lie in any of the spans, one by one."""
    return sum(any(start <= time < stop for start, stop in found) for time in range(begin, end))


def lane(parts: dict[Role, list[list[int]]]) -> Lane:
    nothing = np.empty(0, dtype=np.int64)
    return Lane(
        key="stream 7",
        label="s7",
        title="stream 7",
        kind=LaneKind.STREAM,
        covers={role: build_cover(rows(part)) for role, part in parts.items()},
        items=build_items(nothing, nothing, nothing, nothing.astype(np.int8)),
    )


@given(spans, edges)
def test_columns_are_counted(found: list[list[int]], at: list[int]) -> None:
    lengths = build_cover(rows(found)).between(np.array(at, dtype=np.float64))
    expected = [counted(found, begin, end) for begin, end in itertools.pairwise(at)]
    assert lengths.tolist() == expected


@given(spans)
def test_its_length_is_that_of_the_union(found: list[list[int]]) -> None:
    assert build_cover(rows(found)).length_ns == counted(found, 0, LENGTH)


@given(spans, spans, edges)
def test_a_column_shows_the_role_that_holds_most(
    compute: list[list[int]], moving: list[list[int]], at: list[int]
) -> None:
    columns = compute_columns(
        lane({Role.COMPUTE: compute, Role.TRANSFER: moving}), np.array(at, dtype=np.float64)
    )
    for place, (begin, end) in enumerate(itertools.pairwise(at)):
        computes, moves = counted(compute, begin, end), counted(moving, begin, end)
        role = columns.role(place)
        assert (role is None) == (computes == moves == 0) == (columns.first[place] == IDLE)
        if computes != moves:
            assert role is (Role.COMPUTE if computes > moves else Role.TRANSFER)
        shares = columns.share(place)
        assert shares.get(Role.COMPUTE, 0.0) == pytest.approx(computes / (end - begin))


def test_at_the_times_of_a_long_step_no_nanosecond_is_lost() -> None:
    far = 3_600_000_000_000  # an hour: a whole trace as one step
    cover = build_cover(rows([[far, far + 1], [far + 2, far + 5]]))
    assert cover.between(np.array([far, far + 1, far + 3, far + 9], dtype=np.float64)).tolist() == [1, 1, 2]


def test_nothing_is_held_by_nothing() -> None:
    assert build_cover(EMPTY).between(np.array([0.0, 1.0, 2.0])).tolist() == [0, 0]
    assert compute_columns(lane({}), np.array([0.0, 1.0])).first.tolist() == [IDLE]
