"""Heat maps apart from drawing: cells that are shared show the worst, pages show each once, unknown stays."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.tui.figures import Figure, Unit
from zprof.tui.presenters.heat_grid import (
    Cursor,
    HeatGrid,
    HeatPage,
    build_heat_page,
    find_cell,
    find_worst,
    format_header,
    quantize,
    reduce_to_worst,
    split_axis,
)

numbers = st.one_of(st.none(), st.integers(0, 1 << 50))


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    row = st.lists(numbers, min_size=columns, max_size=columns)
    return np.array(draw(st.lists(row, min_size=rows, max_size=rows)), dtype=float)


def grid(values: np.ndarray, floor_ns: float | None = None) -> HeatGrid:
    places = np.where(np.isfinite(values), np.arange(values.size).reshape(values.shape), -1)
    tree = {"steps": [{"ns": value} for value in values.ravel().tolist()]}
    return HeatGrid(
        title="t",
        says="s",
        leaf="steps[{}].ns",
        unit=Unit.NS,
        ranks=tuple(range(len(values))),
        steps=tuple(range(3, 3 + values.shape[1])),
        values=values,
        places=places,
        tree=tree,
        floor=Figure(value=floor_ns, unit=Unit.NS, leaves=("u",)) if floor_ns is not None else None,
    )


def cells(page: HeatPage) -> list[Cursor]:
    return [
        Cursor(row=int(row), column=int(column)) for row in page.rows[:-1] for column in page.columns[:-1]
    ]


@settings(max_examples=50)
@given(st.integers(1, 1100), st.integers(-2, 60), st.integers(0, 1099), st.booleans())
def test_edges_leave_nobody_out(count: int, room: int, at: int, folded: bool) -> None:
    at = min(at, count - 1)
    found = split_axis(count, room, at, folded=folded)
    shown = len(found) - 1
    assert 1 <= shown <= max(1, room)
    assert (np.diff(found) >= 1).all()
    assert found[0] <= at < found[-1]
    assert found[find_cell(found, at)] <= at < found[find_cell(found, at) + 1]
    if folded or count <= room:
        assert (found[0], found[-1]) == (0, count)
        assert np.diff(found).max() - np.diff(found).min() <= 1
    else:
        assert (np.diff(found) == 1).all()
        assert shown == max(1, room)


@settings(max_examples=50)
@given(tables(), st.integers(1, 10), st.integers(1, 6), st.booleans())
def test_a_cell_is_the_worst_of_those_that_share_it(
    values: np.ndarray, height: int, width: int, folded: bool
) -> None:
    rows = split_axis(len(values), height, 0, folded=folded)
    columns = split_axis(values.shape[1], width, 0, folded=folded)
    shown = reduce_to_worst(values, rows, columns)
    for row in range(len(rows) - 1):
        for column in range(len(columns) - 1):
            block = values[rows[row] : rows[row + 1], columns[column] : columns[column + 1]].ravel()
            known = [value for value in block.tolist() if not math.isnan(value)]
            place = find_worst(values, rows, columns, row, column)
            assert rows[row] <= place[0] < rows[row + 1]
            assert columns[column] <= place[1] < columns[column + 1]
            if known:
                assert shown[row, column] == max(known) == values[place]
            else:
                assert math.isnan(shown[row, column])


@settings(max_examples=50)
@given(tables())
def test_levels_keep_the_order_and_unknown_is_none_of_them(values: np.ndarray) -> None:
    known = values[np.isfinite(values)]
    found = quantize(values, known.min(initial=1 << 51), known.max(initial=0), 10)
    assert ((found == -1) == np.isnan(values)).all()
    ordered = found[np.isfinite(values)][np.argsort(known, kind="stable")]
    assert (np.diff(ordered) >= 0).all()
    if len(known) and known.min() < known.max():
        assert (ordered[0], ordered[-1]) == (0, 9)


@settings(max_examples=50)
@given(tables(), st.integers(1, 10), st.booleans())
def test_every_rank_is_reached_by_moving_down(values: np.ndarray, height: int, folded: bool) -> None:
    made, cursor, seen = grid(values), Cursor(), set()
    for _ in range(len(values)):
        page = build_heat_page(made, cursor, 40, height, folded=folded)
        row = page.row_of(cursor)
        seen |= set(range(page.rows[row], page.rows[row + 1]))
        assert page.moved(page.moved(cursor, 0, 0), 0, -99).column == 0
        cursor = page.moved(cursor, 1, 0)
    assert seen == set(range(len(values)))
    for _ in range(len(values)):
        cursor = build_heat_page(made, cursor, 40, height, folded=folded).moved(cursor, -1, 0)
    assert cursor.row < max(1, math.ceil(len(values) / height))


def test_a_page_works_out_no_more_than_it_shows() -> None:
    page = build_heat_page(grid(np.ones((1024, 20))), Cursor(row=700, column=4), 78, 7, folded=False)
    assert (len(page.levels), {len(row) for row in page.levels}) == (7, {20})
    assert page.rows[0] <= 700 < page.rows[-1]
    narrow = build_heat_page(grid(np.ones((1024, 200))), Cursor(row=700, column=190), 78, 7, folded=False)
    assert {len(row) for row in narrow.levels} == {72}


def test_one_late_rank_of_a_thousand_is_seen_in_its_shared_row() -> None:
    values = np.ones((1024, 20))
    values[341] = 27
    page = build_heat_page(grid(values), Cursor(), 78, 7, folded=True)
    assert [row[0] for row in page.levels] == [0, 0, 9, 0, 0, 0, 0]
    cursor = Cursor(row=int(page.rows[2]))
    assert page.worst_at(cursor) == (341, 0)
    assert page.shared(cursor) == "the most of ranks 292-437"
    assert page.far[2][0]


def test_what_is_far_above_the_rest() -> None:
    values = np.arange(100.0, 116.0).reshape(8, 2)
    assert grid(values).fence > 115
    values[3, 1] = 200
    made = grid(values)
    assert 115 < made.fence < 200
    assert grid(values, floor_ns=500).fence > 200
    assert grid(values[:1]).fence == np.inf


def test_a_number_knows_its_leaf() -> None:
    values = np.array([[1.0, np.nan], [5.0, 7.0]])
    made = grid(values)
    assert made.figure_at(1, 0).leaves == ("steps[2].ns",)
    assert (made.least.value, made.most.leaves) == (1, ("steps[3].ns",))
    assert made.figure_at(0, 1) == Figure(value=None, unit=Unit.NS, leaves=("steps",))
    assert not grid(np.full((2, 2), np.nan)).is_known


@pytest.mark.parametrize(
    ("cell", "at", "line"),
    [(3, 0, "8  9  10 11"), (2, 0, "8 9 10"), (2, 3, "8 9   11"), (1, 2, "8 10")],
)
def test_steps_stand_above_their_cells(cell: int, at: int, line: str) -> None:
    text, (begin, end) = format_header(["8", "9", "10", "11"], cell, at)
    assert text == line
    assert text[begin:end] == ["8", "9", "10", "11"][at]
    assert begin == at * cell
