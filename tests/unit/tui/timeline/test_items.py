"""The event under the cursor, against looking at all of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zprof.tui.timeline.lane import Items, Kind, Role, build_items

events = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.sampled_from(list(Kind))), max_size=14)


def made(found: list[tuple[int, int, Kind]]) -> Items:
    start, length, kind = (
        (np.array(column, dtype=np.int64) for column in zip(*found, strict=True))
        if (found)
        else (np.empty(0, dtype=np.int64),) * 3
    )
    return build_items(start, start + length, np.arange(len(found)), kind.astype(np.int8))


@given(events, st.integers(0, 45), st.integers(1, 8))
def test_events_that_touch_a_stretch(found: list[tuple[int, int, Kind]], begin: int, length: int) -> None:
    items, end = made(found), begin + length
    rows = sorted(int(items.row[place]) for place in items.touching(begin, end))
    assert rows == [row for row, (start, size, _) in enumerate(found) if start < end and start + size > begin]


@given(events, st.integers(0, 45), st.integers(1, 8))
def test_the_chosen_one_is_of_the_role_and_holds_most(
    found: list[tuple[int, int, Kind]], begin: int, length: int
) -> None:
    items, end = made(found), begin + length
    place = items.chosen(begin, end, Role.COMPUTE)
    inside = {
        row: min(start + size, end) - max(start, begin)
        for row, (start, size, kind) in enumerate(found)
        if kind is Kind.COMPUTE and start < end and start + size > begin
    }
    if inside:
        assert place is not None
        row = int(items.row[place])
        assert inside[row] == max(inside.values())
        assert found[row][1] == min(found[r][1] for r, held in inside.items() if held == inside[row])


def test_what_stands_for_a_role_that_has_no_event() -> None:
    items = made([(0, 100, Kind.RANGE), (10, 20, Kind.HOST)])
    assert items.row[items.chosen(12, 13, Role.COMPUTE) or 0] == 1
    place = items.chosen(50, 51, None)
    assert place is not None
    assert items.row[place] == 0
    assert items.chosen(200, 201, None) is None


def test_what_encloses_an_event() -> None:
    items = made([(0, 100, Kind.RANGE), (10, 20, Kind.HOST), (12, 5, Kind.COMPUTE), (40, 5, Kind.COMPUTE)])
    inner = next(place for place in range(4) if items.row[place] == 2)
    assert [int(items.row[place]) for place in items.around(inner)] == [1, 0]


def test_of_nested_events_the_innermost_is_chosen() -> None:
    items = made([(0, 100, Kind.COMPUTE), (10, 20, Kind.COMPUTE)])
    place = items.chosen(12, 13, Role.COMPUTE)
    assert place is not None
    assert items.row[place] == 1


def test_what_ends_where_a_stretch_begins_is_not_in_it() -> None:
    items = made([(0, 100, Kind.RANGE), (10, 20, Kind.COMPUTE)])
    assert items.row[items.touching(30, 31)].tolist() == [0]
