"""Heat maps apart from drawing: shared cells show the worst, pages show each once, unknown stays unknown."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.model.paths import EVERY, Path
from zprof.model.quantities import Unit, Value
from zprof.tui.heat_grid import (
    HeatGrid,
    find_cell,
    find_worst,
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
    return HeatGrid(
        title="t",
        says="s",
        leaf=Path(("steps", EVERY, "ns")),
        ranks=tuple(range(len(values))),
        steps=tuple(range(3, 3 + values.shape[1])),
        values=values,
        places=places,
        report={"steps": [{"ns": value} for value in values.ravel().tolist()]},
        floor=Value(number=floor_ns, unit=Unit.NS, leaves=(Path(("u",)),)) if floor_ns is not None else None,
    )


@settings(max_examples=50)
@given(st.integers(1, 1100), st.integers(-2, 60), st.integers(0, 1099), st.booleans())
def test_a_split_axis_leaves_nobody_out(count: int, width_limit: int, at: int, folded: bool) -> None:
    at = min(at, count - 1)
    found = split_axis(count, width_limit, at, folded=folded)
    shown = len(found) - 1
    assert 1 <= shown <= max(1, width_limit)
    assert 0 <= found[0] <= at < found[-1] <= count
    assert (np.diff(found) >= 1).all()
    assert found[find_cell(found, at)] <= at < found[find_cell(found, at) + 1]
    if folded or count <= width_limit:
        assert (found[0], found[-1]) == (0, count)
        assert np.diff(found).max() - np.diff(found).min() <= 1
    else:
        assert (np.diff(found) == 1).all()
        assert shown == max(1, width_limit)


@settings(max_examples=25)
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


@settings(max_examples=25)
@given(tables())
def test_levels_keep_the_order_and_unknown_is_none_of_them(values: np.ndarray) -> None:
    known = values[np.isfinite(values)]
    found = quantize(values, known.min(initial=1 << 51), known.max(initial=0), 10)
    assert ((found == -1) == np.isnan(values)).all()
    ordered = found[np.isfinite(values)][np.argsort(known, kind="stable")]
    assert (np.diff(ordered) >= 0).all()
    if len(known) and known.min() < known.max():
        assert (ordered[0], ordered[-1]) == (0, 9)


def test_the_fence_is_above_all_but_outliers_and_above_the_noise() -> None:
    values = np.arange(100.0, 116.0).reshape(8, 2)
    assert grid(values).fence > 115
    values[3, 1] = 200
    assert 115 < grid(values).fence < 200
    assert grid(values, floor_ns=500).fence > 200
    assert grid(values[:1]).fence == np.inf
