"""Ranks of a report as a table: who is waited for comes first, and nobody is blamed without a judgement."""

import pytest
from msgspec.structs import replace

from tests.support.many_steps import MS, with_ranks, with_time
from tests.support.reports import slower
from tests.support.unsplit_ranks import make_unsplit
from zprof.model.memory import Memory
from zprof.model.quantities import Value
from zprof.model.time import CriticalPath, PathKind, PathShare, Time
from zprof.reports.pages.ranks import (
    build_lateness_map,
    build_path_parts,
    build_rank_table,
    build_step_time_map,
    list_path_kinds,
    list_path_ranks,
    order_by_waiting,
    sort_ranks,
)
from zprof.reports.table import MAX_ROWS, Table
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text, sort_lines


def cell(table: Table, key: str, title: str) -> str:
    line = next(line for line in table.rows if line.key == key)
    return get_text(line.cells[[column.title for column in table.columns].index(title)])


def figure(table: Table, key: str, title: str) -> Value:
    line = next(line for line in table.rows if line.key == key)
    found = line.cells[[column.title for column in table.columns].index(title)]
    assert isinstance(found, Value)
    return found


def test_the_rank_that_others_wait_for_is_first_and_sorting_finds_the_largest_of_all(
    alone: LoadedRun,
) -> None:
    many = with_ranks(alone, 1024, 20, late=341)
    ranks = [
        replace(entry, idle_ns=entry.idle_ns + 9 * MS * (entry.rank in (3, 900)))
        for entry in many.report.time.per_rank[::-1]
    ]
    table = build_rank_table(with_time(many, per_rank=tuple(ranks)).report)
    assert (table.rows[0].key, table.rows[0].target) == ("341", 341)
    assert figure(table, "341", "wait caused").number == 26 * MS // 3
    assert [cell(table, "341", title) for title in ("arrived last", "because")] == ["90.0 %", "compute"]
    assert len(table.rows) == MAX_ROWS
    by_idle = sort_lines(table, table.rows, [one.title for one in table.columns].index("idle"), reverse=True)
    assert {line.key for line in by_idle[:2]} == {"3", "900"}


@pytest.mark.parametrize(("ranks", "rows"), [(12, 12), (64, 64), (1024, 64)])
def test_the_late_rank_heads_the_heat_map_and_a_slow_step_of_all_heads_nothing(
    alone: LoadedRun, ranks: int, rows: int
) -> None:
    report = with_ranks(alone, ranks, 20, late=9).report
    late = build_lateness_map(report)
    assert late is not None
    names = [name for name, _ in late.rows]
    assert (len(names), names[0], "rank 9" in names[1:]) == (rows, "rank 9", False)
    assert max(cell.level for _, cells in late.rows[1:] for cell in cells) < late.rows[0][1][0].level
    steps = [replace(entry, wall_ns=entry.wall_ns * (1 + (entry.step == 3))) for entry in report.time.steps]
    slow = build_step_time_map(with_time(with_ranks(alone, ranks, 20), steps=tuple(steps)).report)
    assert slow is not None
    assert slow.rows[0][0].startswith("rank 0")


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


def test_with_ranks_missing_waits_and_transfers_are_bounds(alone: LoadedRun) -> None:
    first, second = alone.report.time.per_rank
    table = build_rank_table(with_time(alone, per_rank=(*make_unsplit([first]), second)).report)
    for title, sign in {"exposed wait": "≥", "exposed transfer": "≤", "compute": ""}.items():
        assert cell(table, "0", title).startswith(sign)
        assert cell(table, "1", title)[0].isdigit()


def test_without_ranks_there_is_no_row_and_no_path(alone: LoadedRun) -> None:
    run = replace(alone.report.run, ranks_loaded=())
    empty = replace(alone.report, run=run, time=Time(), memory=Memory())
    assert not build_rank_table(empty).rows
    assert build_path_parts(empty) == []


def test_the_critical_path_is_summed_by_rank_and_by_kind() -> None:
    shares = ((1, PathKind.HOST, 1), (0, PathKind.HOST, 2), (1, PathKind.COMPUTE, 7))
    rows = tuple(PathShare(rank=rank, what=kind, ns=ms * MS) for rank, kind, ms in shares)
    path = CriticalPath(steps=1, wall_ns=10 * MS, shares=rows)
    kinds = (("compute", 7 * MS), ("host", MS))
    assert list_path_ranks(path) == [(1, 8 * MS, kinds), (0, 2 * MS, (("host", 2 * MS),))]
    assert list_path_kinds(path) == (("compute", 0.7), ("host", 0.3))


def test_the_most_and_the_least_waiting_ranks_come_first() -> None:
    times = [replace(slower().time.per_rank[0], rank=at, exposed_wait_ns=at % 7) for at in range(20)]
    order = order_by_waiting(times, range(20))
    assert {times[at].exposed_wait_ns for at in order[:4]} == {0, 6}
    assert sorted(order) == list(range(20))
