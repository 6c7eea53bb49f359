"""Figures of a page that are no leaves: sums, shares of the whole, what is cut, and names."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from tests.support.memories import memory_of
from tests.support.reports import SITUATIONS, slower, straggler
from zprof.model.quantities import Value
from zprof.model.time import CriticalPath, PathKind, PathShare
from zprof.reports.page import Bars
from zprof.reports.pages.ledger import build_ledger_section, build_ledger_table, step_ns
from zprof.reports.pages.memory import build_memory_section
from zprof.reports.pages.memory_formulas import describe_states
from zprof.reports.pages.ranks import list_path_kinds, list_path_ranks, order_by_waiting
from zprof.reports.pages.tenants import peak_bytes, select_largest_ranks
from zprof.reports.presenters.run_formatting import group_name
from zprof.reports.table import Bar, Table

MS = 1_000_000


def column(table: Table, at: int) -> list[float]:
    return [cell.number or 0.0 for row in table.rows if isinstance(cell := row.cells[at], Value)]


def test_terms_and_their_changes_sum_to_the_steps_and_their_change() -> None:
    report = slower()
    times = report.comparison.step_time
    for table in (build_ledger_table(report), build_ledger_section(report)[0].blocks[0]):
        *before, step_before = column(table, 1)
        *now, step_now = column(table, 2)
        *changes, change = column(table, 4)
        assert sum(changes) == pytest.approx(change) == times.b_ns - times.a_ns
        assert sum(now) == pytest.approx(step_now, abs=100_000) == step_ns(report.time.per_rank)
        assert sum(before) == pytest.approx(step_before, abs=100_000)
    less = {term: -change for term, change in report.comparison.ledger_delta.items()}
    faster = replace(report, comparison=replace(report.comparison, ledger_delta=less))
    slow, fast = build_ledger_table(report), build_ledger_table(faster)
    assert [row.key for row in fast.rows] == [row.key for row in slow.rows]
    assert sum(column(build_ledger_table(straggler()), 2)) == pytest.approx(1, abs=0.01), "of the step"


@pytest.mark.parametrize("name", ["slower", "straggler", "trace", "rank_missing"])
def test_the_waterfall_has_no_gaps_and_ends_at_the_whole(name: str) -> None:
    bars = [row.cells[-1] for row in build_ledger_table(SITUATIONS[name]()).rows]
    drawn = [bar.segments for bar in bars if isinstance(bar, Bar) and bar.segments]
    edges = [(segments[0][1], segments[-1][2]) for segments in drawn]
    assert all(0 <= low <= high <= 1 for low, high in edges)
    *terms, whole = edges
    assert isinstance(bars[0], Bar)
    zero = end = bars[0].zero
    for low, high in terms:
        start = min((low, high), key=lambda edge: abs(edge - end))
        assert start == pytest.approx(end, abs=0.001)
        end = low + high - start
    assert {round(edge, 3) for edge in whole} == {round(zero, 3), round(end, 3)}


def test_a_stacked_bar_has_no_holes_and_the_largest_fills_the_width() -> None:
    (bars,) = [block for block in build_memory_section(slower())[0].blocks if isinstance(block, Bars)]
    for bar in bars.bars:
        assert bar.segments[0].start == 0
        for left, right in pairwise(bar.segments):
            assert left.start + left.width == pytest.approx(right.start, abs=0.01)
    widths = [
        sum(part.width for part in parts) for bar in bars.bars for parts in (bar.segments, bar.reference)
    ]
    assert max(widths) == pytest.approx(100, abs=0.1)
    assert len({part.letter for part in bars.legend}) == len(bars.legend)


def test_the_critical_path_is_summed_by_rank_and_by_kind() -> None:
    shares = ((1, PathKind.HOST, 1), (0, PathKind.HOST, 2), (1, PathKind.COMPUTE, 7))
    rows = tuple(PathShare(rank=rank, what=kind, ns=ms * MS) for rank, kind, ms in shares)
    path = CriticalPath(steps=1, wall_ns=10 * MS, shares=rows)
    ranks = [(rank.rank, rank.ns, rank.share) for rank in list_path_ranks(path)]
    assert ranks == [(1, 8 * MS, 0.8), (0, 2 * MS, 0.2)]
    assert list_path_kinds(path) == (("compute", 0.7), ("host", 0.3))


def test_ranks_with_the_largest_peaks_and_waits_are_shown_in_order() -> None:
    ranks = memory_of(3, ranks=6).per_rank
    assert select_largest_ranks(ranks, 2) == (4, 5)
    assert select_largest_ranks(ranks, 8) == tuple(range(6))
    assert peak_bytes(ranks) == ranks[5].peak_bytes
    times = [replace(slower().time.per_rank[0], rank=at, exposed_wait_ns=at % 7) for at in range(20)]
    order = order_by_waiting(times, range(20))
    assert {times[at].exposed_wait_ns for at in order[:4]} == {0, 6}
    assert sorted(order) == list(range(20))


@pytest.mark.parametrize(
    ("rests", "shown"), [((0, 0, 0), "exact to the byte"), ((8, 8, 8), "+24 B"), ((8, 8, -16), "32 B")]
)
def test_too_much_of_one_state_does_not_hide_too_little_of_another(
    rests: tuple[int, ...], shown: str
) -> None:
    checks = [check for check in memory_of(2).laws if check.rank == 0]
    off = [
        replace(check, unexplained_bytes=rest, cause="") for check, rest in zip(checks, rests, strict=True)
    ]
    assert shown in describe_states(off, 4)[0]


def test_the_rank_furthest_off_comes_first_however_many_there_are() -> None:
    states = [check for check in memory_of(2).laws if check.rank == 0]
    checks = [
        replace(check, rank=at, unexplained_bytes=(1 << 20) * (at == 30), cause="")
        for at in range(32)
        for check in states
    ]
    first, *_, left = describe_states(checks, 4)
    assert "rank 30" in first
    assert "4 of 32" in left


@pytest.mark.parametrize(
    ("group", "shown"),
    [
        ("0,1,2,3", "0,1,2,3"),
        ("0,1,2,3,4,5,6,7#fsdp", "0-7#fsdp"),
        (",".join(map(str, range(0, 1024, 8))), "0,8,..,1016 (128 ranks)"),
        ("0,1,2,3,8,9,10,11", "0-3,8-11"),
        ("0,1,4,5,8,9,12,13", "0-1,4-5,8-9,.. (8 ranks)"),
        ("a,b,c,d,e,f", "a,b,c,d,e,f"),
        ("1,2,3,4," + "9" * 40, "1,2,3,4," + "9" * 40),
    ],
)
def test_a_group_is_shown_short(group: str, shown: str) -> None:
    assert group_name(group) == shown
