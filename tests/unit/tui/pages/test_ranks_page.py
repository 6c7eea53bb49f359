"""The ranks screen's grids and table: the report's own numbers, each explained, the telling ranks first."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.many_steps import MS, with_ranks
from zprof.model.memory import Memory
from zprof.model.time import Time
from zprof.tui.figures import Figure, Unit
from zprof.tui.metric_help.metric import strip_indices
from zprof.tui.metric_help.ranks import RANKS
from zprof.tui.metric_help.registry import find_help
from zprof.tui.number_popup import explain_number, find_rows
from zprof.tui.presenters.ranks import (
    MAX_RANKS,
    Metric,
    MetricGrids,
    build_path_parts,
    build_ranks_table,
    sort_ranks,
)
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Table, sort_lines

FIELDS = {
    Metric.STEP_TIME: "wall_ns",
    Metric.COMPUTE: "compute_ns",
    Metric.EXPOSED_WAIT: "exposed_wait_ns",
    Metric.EXPOSED_TRANSFER: "exposed_transfer_ns",
    Metric.IDLE: "idle_ns",
}


@pytest.fixture(scope="module")
def many(alone: LoadedRun) -> LoadedRun:
    """1024 ranks of 20 steps, rank 341 late; their lists are in no order."""
    loaded = with_ranks(alone, 1024, 20, late=341)
    time = loaded.report.time
    turned = replace(time, steps=time.steps[::-1], per_rank=time.per_rank[::-1])
    return replace(loaded, report=replace(loaded.report, time=turned))


def cell(table: Table, key: str, title: str) -> Figure | str:
    line = next(line for line in table.lines if line.key == key)
    found = line.cells[[column.title for column in table.columns].index(title)]
    return found if isinstance(found, Figure) else found.text


@pytest.mark.parametrize("metric", FIELDS)
def test_a_grid_has_each_rank_and_step_of_the_report(many: LoadedRun, metric: Metric) -> None:
    grid = MetricGrids(many).of(metric)
    assert grid.values.shape == (1024, 20)
    chosen = many.report.time.steps[:: 1 + 20 * 37]
    for entry in chosen:
        row, column = grid.ranks.index(entry.rank), grid.steps.index(entry.step)
        number = grid.figure_at(row, column)
        assert number.value == grid.values[row, column] == getattr(entry, FIELDS[metric])
        assert number.leaves[0].endswith(FIELDS[metric])


def test_lateness_and_memory_have_lists_of_their_own(many: LoadedRun, alone: LoadedRun) -> None:
    grid = MetricGrids(many).of(Metric.LATENESS)
    assert (grid.values[341] == 27 * MS).all()
    assert grid.figure_at(341, 2).leaves == ("time.lateness[6822].mean_ns",)
    assert grid.floor is not None
    memory = MetricGrids(alone).of(Metric.PEAK_MEMORY)
    assert memory.steps == (None,)
    assert memory.unit is Unit.BYTES
    assert [memory.figure_at(row, 0).value for row in (0, 1)] == [
        entry.peak_bytes for entry in alone.report.memory.per_rank
    ]


def test_what_is_not_in_the_report_is_unknown(many: LoadedRun) -> None:
    time = replace(many.report.time, steps=many.report.time.steps[:-1], lateness=())
    grids = MetricGrids(replace(many, report=replace(many.report, time=time)))
    assert np.isnan(grids.of(Metric.COMPUTE).values).sum() == 1
    assert grids.of(Metric.COMPUTE).figure_at(0, 0).value is None
    assert not grids.of(Metric.LATENESS).is_known
    assert grids.first() is Metric.STEP_TIME


def test_a_run_with_nothing_has_no_rows(alone: LoadedRun) -> None:
    run = replace(alone.report.run, ranks_loaded=())
    loaded = replace(alone, report=replace(alone.report, run=run, time=Time(), memory=Memory()))
    assert MetricGrids(loaded).ranks == ()
    assert not MetricGrids(loaded).of(Metric.LATENESS).is_known
    assert build_ranks_table(loaded).lines == ()
    assert build_path_parts(loaded) == []


def test_the_rank_that_others_wait_for_is_first(many: LoadedRun) -> None:
    table = build_ranks_table(many)
    assert table.lines[0].key == "341"
    assert table.lines[0].target == 341
    assert cell(table, "341", "caused").value == 26 * MS // 3  # type: ignore[union-attr]
    assert cell(table, "341", "last").text == "90.0 %"  # type: ignore[union-attr]
    assert cell(table, "341", "because") == "compute"
    assert len(table.lines) == MAX_RANKS
    assert table.note == f"{MAX_RANKS} of 1024 ranks: the first of each column"


def test_of_many_ranks_sorting_by_any_column_finds_the_largest(many: LoadedRun) -> None:
    ranks = [
        replace(entry, idle_ns=entry.idle_ns + 9 * MS * (entry.rank in (3, 900)))
        for entry in many.report.time.per_rank
    ]
    time = replace(many.report.time, per_rank=tuple(ranks))
    table = build_ranks_table(replace(many, report=replace(many.report, time=time)))
    by_idle = sort_lines(
        table, table.lines, [column.title for column in table.columns].index("idle"), reverse=True
    )
    assert {line.key for line in by_idle[:2]} == {"3", "900"}
    assert table.lines[0].key == "341"


def test_then_those_that_lose_most_of_their_step(alone: LoadedRun) -> None:
    loaded = with_ranks(alone, 6, 2)
    assert sort_ranks(loaded.report) == [2, 5, 1, 4, 0, 3]


def test_nobody_is_blamed_and_nothing_is_made_up(alone: LoadedRun) -> None:
    time = replace(alone.report.time, blame=None, critical_path=None)
    loaded = replace(alone, report=replace(alone.report, time=time, memory=Memory()))
    table = build_ranks_table(loaded)
    assert {cell(table, "0", title).text for title in ("caused", "last", "peak", "on path")} == {"unknown"}  # type: ignore[union-attr]
    assert cell(table, "0", "because") == "unknown"
    assert build_path_parts(loaded) == []


def test_what_could_not_be_judged_is_unknown(alone: LoadedRun) -> None:
    blame = alone.report.time.blame
    assert blame is not None
    time = replace(alone.report.time, blame=replace(blame, judged=0))
    table = build_ranks_table(replace(alone, report=replace(alone.report, time=time)))
    assert {cell(table, "0", title).text for title in ("caused", "last")} == {"unknown"}  # type: ignore[union-attr]
    assert cell(table, "0", "wait").text == cell(build_ranks_table(alone), "0", "wait").text  # type: ignore[union-attr]


def test_with_ranks_missing_waits_are_bounds(alone: LoadedRun) -> None:
    first, second = alone.report.time.per_rank
    time = replace(alone.report.time, per_rank=(replace(first, unsplit_ns=5), second))
    loaded = replace(alone, report=replace(alone.report, time=time))
    table, grids = build_ranks_table(loaded), MetricGrids(loaded)
    assert cell(table, "0", "wait").text.startswith("≥ ")  # type: ignore[union-attr]
    assert cell(table, "0", "transfer").text.startswith("≤ ")  # type: ignore[union-attr]
    assert cell(table, "1", "wait").text[0].isdigit()  # type: ignore[union-attr]
    assert grids.of(Metric.EXPOSED_WAIT).figure_at(0, 0).text.startswith("≥ ")
    assert grids.of(Metric.EXPOSED_WAIT).figure_at(1, 0).text[0].isdigit()
    assert grids.of(Metric.EXPOSED_TRANSFER).figure_at(0, 0).text.startswith("≤ ")
    assert grids.of(Metric.COMPUTE).figure_at(0, 0).text[0].isdigit()


def test_the_path_is_told_by_its_largest_shares(alone: LoadedRun) -> None:
    path = alone.report.time.critical_path
    assert path is not None
    shares = [share for part in build_path_parts(alone) for share in part if isinstance(share, Figure)]
    assert shares[0].value == path.wall_ns
    assert [share.value for share in shares[1:]] == [
        pytest.approx(part.ns / path.wall_ns)
        for part in sorted(path.shares, key=lambda part: -part.ns)[: len(shares) - 1]
    ]
    assert cell(build_ranks_table(with_ranks(alone, 3, 1)), "2", "on path") == "-"
    on_path = sum(part.ns for part in path.shares if part.rank == 0)
    assert cell(build_ranks_table(alone), "0", "on path").value == on_path  # type: ignore[union-attr]


def test_own_kinds_of_leaves_are_explained(alone: LoadedRun) -> None:
    grids = MetricGrids(alone)
    numbers = [
        *build_ranks_table(alone).figures(),
        *(c for p in build_path_parts(alone) for c in p if isinstance(c, Figure)),
    ]
    numbers += [grids.of(metric).figure_at(0, 0) for metric in Metric]
    mine = ("time.blame", "time.lateness", "time.critical_path")
    for number in numbers:
        if number.leaves[0].startswith(mine):
            assert find_help(number.leaves[0]), number
            said = "\n".join(explain_number(number, alone))
            assert "unknown" not in said, said


def test_rows_behind_a_lateness_are_of_its_rank_and_step(alone: LoadedRun) -> None:
    number = MetricGrids(alone).of(Metric.LATENESS).figure_at(1, 2)
    rows = find_rows(number, alone)
    entry = alone.report.time.lateness[int(number.leaves[0].split("[")[1].split("]")[0])]
    assert rows is not None
    assert set(rows["rank"]) == {1} == {entry.rank}
    assert set(rows["step"]) == {entry.step}
    assert rows["lateness_ns"].iloc[0] == entry.largest_ns == rows["lateness_ns"].max()
    assert rows["lateness_ns"].mean() == pytest.approx(entry.mean_ns, abs=1)


def test_rows_behind_what_a_rank_caused_wait_for_it(alone: LoadedRun) -> None:
    table = build_ranks_table(alone)
    rows = find_rows(cell(table, "0", "caused"), alone)  # type: ignore[arg-type]
    assert rows is not None
    assert set(rows["blamed_rank"]) == {0}
    assert list(rows["exposed_wait_ns"]) == sorted(rows["exposed_wait_ns"], reverse=True)
    own = find_rows(cell(table, "0", "wait"), alone)  # type: ignore[arg-type]
    assert own is not None
    assert set(own["rank"]) == {0}


def test_no_leaf_is_explained_twice() -> None:
    leaves = [meaning.leaf for meaning in RANKS]
    assert len(set(leaves)) == len(leaves)
    assert all(strip_indices(leaf) == leaf for leaf in leaves)
