"""Heat maps apart from drawing: numbers of the report, the worst of shared cells, unknown stays unknown."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.many_steps import MS, with_ranks, with_time
from tests.support.unsplit_ranks import make_unsplit
from zprof.model.memory import Memory
from zprof.model.quantities import EVERY, Path, Unit, Value, parse_path
from zprof.model.time import Time
from zprof.tui.heat_grid import (
    HeatGrid,
    MetricGrids,
    RankMetric,
    find_cell,
    find_worst,
    quantize,
    reduce_to_worst,
    split_axis,
)
from zprof.tui.session import LoadedRun

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
        help="s",
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


FIELDS = {
    RankMetric.STEP_TIME: "wall_ns",
    RankMetric.COMPUTE: "compute_ns",
    RankMetric.EXPOSED_WAIT: "exposed_wait_ns",
    RankMetric.EXPOSED_TRANSFER: "exposed_transfer_ns",
    RankMetric.IDLE: "idle_ns",
}


@pytest.fixture(scope="module")
def many(alone: LoadedRun) -> LoadedRun:
    """1024 ranks of 20 steps, rank 341 late; their lists are in no order."""
    loaded = with_ranks(alone, 1024, 20, late=341)
    time = loaded.report.time
    return with_time(loaded, steps=time.steps[::-1], per_rank=time.per_rank[::-1])


@pytest.mark.parametrize("metric", FIELDS)
def test_a_grid_has_each_rank_and_step_of_the_report(many: LoadedRun, metric: RankMetric) -> None:
    grid = MetricGrids(many).of(metric)
    assert grid.values.shape == (1024, 20)
    for entry in many.report.time.steps[:: 1 + 20 * 37]:
        row, column = grid.ranks.index(entry.rank), grid.steps.index(entry.step)
        number = grid.figure_at(row, column)
        assert number.number == grid.values[row, column] == getattr(entry, FIELDS[metric])
        assert number.leaves[0].name == FIELDS[metric]


def test_lateness_and_memory_have_lists_of_their_own(many: LoadedRun, alone: LoadedRun) -> None:
    grid = MetricGrids(many).of(RankMetric.LATENESS)
    assert (grid.values[341] == 27 * MS).all()
    assert grid.figure_at(341, 2).leaves == (parse_path("time.lateness[6822].mean_ns"),)
    memory = MetricGrids(alone).of(RankMetric.PEAK_MEMORY)
    assert (memory.steps, memory.figure_at(0, 0).unit) == ((None,), Unit.BYTES)
    peaks = [entry.peak_bytes for entry in alone.report.memory.per_rank]
    assert [memory.figure_at(row, 0).number for row in (0, 1)] == peaks


def test_what_is_not_in_the_report_is_unknown(many: LoadedRun, alone: LoadedRun) -> None:
    grids = MetricGrids(with_time(many, steps=many.report.time.steps[:-1], lateness=()))
    assert np.isnan(grids.of(RankMetric.COMPUTE).values).sum() == 1
    assert grids.of(RankMetric.COMPUTE).figure_at(0, 0).number is None
    assert not grids.of(RankMetric.LATENESS).is_known
    assert grids.first() is RankMetric.STEP_TIME
    run = replace(alone.report.run, ranks_loaded=())
    empty = replace(alone, report=replace(alone.report, run=run, time=Time(), memory=Memory()))
    assert MetricGrids(empty).ranks == ()


def test_with_ranks_missing_cells_are_bounds(alone: LoadedRun) -> None:
    first, second = alone.report.time.per_rank
    grids = MetricGrids(with_time(alone, per_rank=(*make_unsplit([first]), second)))
    for metric, sign in (
        (RankMetric.EXPOSED_WAIT, "≥"),
        (RankMetric.EXPOSED_TRANSFER, "≤"),
        (RankMetric.COMPUTE, ""),
    ):
        assert grids.of(metric).figure_at(0, 0).text.startswith(sign)
