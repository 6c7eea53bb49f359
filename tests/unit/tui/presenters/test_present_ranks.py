"""Grids and table of ranks, and the ledger of one step: the report's own numbers, the telling ranks first."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.many_steps import MS, with_ranks, with_time
from tests.support.unsplit_ranks import make_unsplit
from zprof.model.memory import Memory
from zprof.model.paths import parse_path
from zprof.model.quantities import Unit, Value
from zprof.model.time import LEDGER_TERMS, Time
from zprof.reports.pages.ranks import build_path_parts, build_rank_table, sort_ranks
from zprof.reports.table import MAX_ROWS, Table
from zprof.tui.heat_grid import MetricGrids, RankMetric
from zprof.tui.number_popup import find_rows
from zprof.tui.screens.timeline import build_step_table
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.table_view import get_text, sort_lines

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


def cell(table: Table, key: str, title: str) -> str:
    line = next(line for line in table.rows if line.key == key)
    return get_text(line.cells[[column.title for column in table.columns].index(title)])


def figure(table: Table, key: str, title: str) -> Value:
    line = next(line for line in table.rows if line.key == key)
    found = line.cells[[column.title for column in table.columns].index(title)]
    assert isinstance(found, Value)
    return found


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
    assert not build_rank_table(empty.report).rows
    assert build_path_parts(empty.report) == []


def test_the_rank_that_others_wait_for_is_first_and_sorting_finds_the_largest_of_all(many: LoadedRun) -> None:
    ranks = [
        replace(entry, idle_ns=entry.idle_ns + 9 * MS * (entry.rank in (3, 900)))
        for entry in many.report.time.per_rank
    ]
    table = build_rank_table(with_time(many, per_rank=tuple(ranks)).report)
    assert (table.rows[0].key, table.rows[0].target) == ("341", 341)
    assert figure(table, "341", "wait caused").number == 26 * MS // 3
    assert [cell(table, "341", title) for title in ("arrived last", "because")] == ["90.0 %", "compute"]
    assert len(table.rows) == MAX_ROWS
    by_idle = sort_lines(table, table.rows, [one.title for one in table.columns].index("idle"), reverse=True)
    assert {line.key for line in by_idle[:2]} == {"3", "900"}


def test_without_a_late_rank_those_that_lose_most_of_their_step_come_first(alone: LoadedRun) -> None:
    assert sort_ranks(with_ranks(alone, 6, 2).report) == [2, 5, 1, 4, 0, 3]


def test_nobody_is_blamed_where_nothing_was_judged(alone: LoadedRun) -> None:
    blame = alone.report.time.blame
    for time in ({"blame": None, "critical_path": None}, {"blame": replace(blame, judged=0)}):
        found = with_time(alone, **time)
        table = build_rank_table(found.report)
        assert {cell(table, "0", title) for title in ("wait caused", "arrived last")} == {"unknown"}
        assert cell(table, "0", "exposed wait") == cell(build_rank_table(alone.report), "0", "exposed wait")
        if "critical_path" in time:
            assert (cell(table, "0", "on path"), build_path_parts(found.report)) == ("unknown", [])


def test_with_ranks_missing_waits_and_transfers_are_bounds(alone: LoadedRun) -> None:
    first, second = alone.report.time.per_rank
    loaded = with_time(alone, per_rank=(*make_unsplit([first]), second))
    table, grids = build_rank_table(loaded.report), MetricGrids(loaded)
    signs = {"exposed wait": "≥", "exposed transfer": "≤", "compute": ""}
    metrics = {
        "exposed wait": RankMetric.EXPOSED_WAIT,
        "exposed transfer": RankMetric.EXPOSED_TRANSFER,
        "compute": RankMetric.COMPUTE,
    }
    step = alone.report.time.steps[0].step
    ledger = build_step_table(loaded, Selection(rank=0, step=step)).list_values()
    for title, sign in signs.items():
        for rank in (0, 1):
            texts = [cell(table, str(rank), title), grids.of(metrics[title]).figure_at(rank, 0).text]
            own = [number for number in ledger if number.leaves[0].name == f"{title.replace(' ', '_')}_ns"]
            texts += [number.text for number in own if rank == 0]
            for text in texts:
                assert text.startswith(sign) if sign and rank == 0 else text[0].isdigit(), (title, rank)


def test_the_critical_path_is_told_by_its_largest_shares(alone: LoadedRun) -> None:
    path = alone.report.time.critical_path
    shares = [share for part in build_path_parts(alone.report) for share in part if isinstance(share, Value)]
    assert shares[0].number == path.wall_ns
    largest = sorted(path.shares, key=lambda part: -part.ns)[: len(shares) - 1]
    assert [share.number for share in shares[1:]] == [
        pytest.approx(part.ns / path.wall_ns) for part in largest
    ]
    on_path = sum(part.ns for part in path.shares if part.rank == 0)
    assert figure(build_rank_table(alone.report), "0", "on path").number == on_path
    assert cell(build_rank_table(with_ranks(alone, 3, 1).report), "2", "on path") == "-"


def test_rows_of_a_lateness_and_of_a_wait_are_those_of_the_rank(alone: LoadedRun) -> None:
    number = MetricGrids(alone).of(RankMetric.LATENESS).figure_at(1, 2)
    rows = find_rows(number, alone)
    entry = alone.report.time.lateness[number.leaves[0].indices[0]]
    assert (set(rows["rank"]), set(rows["step"])) == ({1}, {entry.step})
    assert rows["lateness_ns"].iloc[0] == entry.largest_ns == rows["lateness_ns"].max()
    assert rows["lateness_ns"].mean() == pytest.approx(entry.mean_ns, abs=1)
    table = build_rank_table(alone.report)
    caused, own = (find_rows(figure(table, "0", title), alone) for title in ("wait caused", "exposed wait"))
    assert set(caused["blamed_rank"]) == set(own["rank"]) == {0}
    assert caused["exposed_wait_ns"].is_monotonic_decreasing


def test_the_ledger_of_a_step_sums_and_has_the_rows_of_its_rank(alone: LoadedRun) -> None:
    for entry in alone.report.time.steps:
        table = build_step_table(alone, Selection(rank=entry.rank, step=entry.step), ascii_only=True)
        assert all(column.title.isascii() for column in table.columns)
        wall, *terms, hidden = table.list_values()
        assert (wall.number, hidden.number) == (entry.wall_ns, entry.overlapped_ns)
        assert sum(term.number or 0 for term in terms) == entry.wall_ns
        assert {leaf.name for term in terms for leaf in term.leaves} == set(LEDGER_TERMS)
    for number in (wall, *terms, hidden):
        rows = find_rows(number, alone)
        assert len(rows)
        if "rank" in rows.columns:
            assert rows["rank"].tolist() == [entry.rank]
            assert rows[number.leaves[0].name].tolist() == [number.number]
    for selected in (Selection(rank=0, step=999), Selection()):
        assert build_step_table(alone, selected).rows == ()
