"""Lanes of a step: how much of each column a role holds, and the event under the cursor, by counting."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.analysis.step_timeline.lane import (
    IDLE,
    EventKind,
    Items,
    LaneKind,
    LaneRole,
    TimelineLane,
    build_cover,
    build_items,
    compute_columns,
)

LENGTH = 60
spans = st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted), max_size=12)
edges = st.lists(st.integers(-5, LENGTH + 5), min_size=2, max_size=9, unique=True).map(sorted)
events = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from(list(EventKind))), max_size=14
)


def rows(found: list[list[int]]) -> "np.ndarray":
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def count(found: list[list[int]], begin: int, end: int) -> int:
    """Return how many nanoseconds of a stretch lie in any of the spans, one by one."""
    return sum(any(start <= time < stop for start, stop in found) for time in range(begin, end))


def lane(parts: dict[LaneRole, list[list[int]]]) -> TimelineLane:
    covers = {role: build_cover(rows(part)) for role, part in parts.items()}
    return TimelineLane(
        key="s", label="s", title="s", kind=LaneKind.STREAM, covers=covers, items=make_items([])
    )


def make_items(found: list[tuple[int, int, EventKind]]) -> Items:
    start, length, kind = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return build_items(start, start + length, np.arange(len(found)), kind.astype(np.int8))


@settings(max_examples=40)
@given(spans, spans, edges)
def test_a_column_shows_the_role_that_holds_most(
    compute: list[list[int]], transfer: list[list[int]], at: list[int]
) -> None:
    cover = build_cover(rows(compute))
    lengths = cover.between(np.array(at, dtype=np.float64)).tolist()
    assert cover.length_ns == count(compute, 0, LENGTH)
    columns = compute_columns(
        lane({LaneRole.COMPUTE: compute, LaneRole.TRANSFER: transfer}), np.array(at, dtype=np.float64)
    )
    for place, (begin, end) in enumerate(itertools.pairwise(at)):
        computes, moves = count(compute, begin, end), count(transfer, begin, end)
        assert lengths[place] == computes
        role = columns.role(place)
        assert (role is None) == (computes == moves == 0) == (columns.first[place] == IDLE)
        if computes != moves:
            assert role is (LaneRole.COMPUTE if computes > moves else LaneRole.TRANSFER)
        assert columns.share(place).get(LaneRole.COMPUTE, 0.0) == pytest.approx(computes / (end - begin))


@settings(max_examples=40)
@given(events, st.integers(0, 45), st.integers(1, 8))
def test_the_chosen_event_is_of_the_role_and_holds_most(
    found: list[tuple[int, int, EventKind]], begin: int, length: int
) -> None:
    items, end = make_items(found), begin + length
    inside = {
        row: min(start + size, end) - max(start, begin)
        for row, (start, size, _) in enumerate(found)
        if start < end and start + size > begin
    }
    assert sorted(int(items.row[place]) for place in items.touching(begin, end)) == sorted(inside)
    computing = {row: held for row, held in inside.items() if found[row][2] is EventKind.COMPUTE}
    if computing:
        row = int(items.row[items.select_event(begin, end, LaneRole.COMPUTE)])
        most = [row for row, held in computing.items() if held == max(computing.values())]
        assert row in most
        assert found[row][1] == min(found[one][1] for one in most), "the innermost"
