"""Rows of ranks, and steps over ranks: what is not known is unknown, and a bar has a highest."""

from pathlib import Path

from tests.support.growing_run import GrowingRun
from zprof.run.live import LiveRun
from zprof.tui.live.steps import build_rank_rows, compute_bar_top, compute_spreads, draw_bars, format_windows

MIB = 1 << 20


def test_rows_of_ranks_without_a_device(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(0, 10, 20, process_bytes=5 * MIB)
    run.step(1, 30, 20, process_bytes=6 * MIB)
    rows = build_rank_rows(LiveRun(tmp_path).look().ranks, 80, slowest_first=False, ascii_only=True)
    assert rows.titles == ("rank", "steps", "last ms", "median", "process")
    assert [row.cells for row in rows.rows] == [
        ("0", "2", "30.0", "20.0", "6.0 MiB"),
        ("1", "2", "20.0", "20.0", "6.0 MiB"),
    ]
    assert [row.is_longest for row in rows.rows] == [True, False]
    assert [row.bars for row in rows.rows] == ["3" + "7", "5" + "5"]


def test_a_device_tells_what_is_allocated(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, world_size=1)
    run.step(0, 10, device="cuda:0", allocated_bytes=3 * MIB, peak_allocated_bytes=4 * MIB)
    ranks = LiveRun(tmp_path).look().ranks
    narrow = build_rank_rows(ranks, 80, slowest_first=False, ascii_only=False)
    assert (narrow.titles[-1], narrow.rows[0].cells[-1]) == ("allocated", "3.0 MiB")
    wide = build_rank_rows(ranks, 120, slowest_first=False, ascii_only=False)
    assert wide.titles[-3:] == ("allocated", "peak so far", "process")
    assert wide.rows[0].cells[-3:] == ("3.0 MiB", "4.0 MiB", "unknown")


def test_what_is_not_known_is_unknown(tmp_path: Path) -> None:
    GrowingRun(tmp_path, world_size=1)
    row = build_rank_rows(LiveRun(tmp_path).look().ranks, 80, slowest_first=False, ascii_only=True).rows[0]
    assert row.cells == ("0", "0", "unknown", "unknown", "unknown")
    assert row.bars == ""


def test_the_slowest_is_first_when_asked_for(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, world_size=3)
    run.step(0, 10, 30, 20)
    ranks = LiveRun(tmp_path).look().ranks
    rows = build_rank_rows(ranks, 80, slowest_first=True, ascii_only=True).rows
    assert [row.rank for row in rows] == [1, 2, 0]


def test_ranks_that_end_together_blame_nobody(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    run.step(0, 100, 104)
    rows = build_rank_rows(LiveRun(tmp_path).look().ranks, 80, slowest_first=False, ascii_only=True).rows
    assert not any(row.is_longest for row in rows)


def test_steps_over_ranks(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, world_size=3)
    run.step(1, 10, 30, 11)
    run.step(2, 10)
    first, second = compute_spreads(LiveRun(tmp_path).look().ranks, 9)
    assert (first.least_ns, first.median_ns, first.most_ns) == (10_000_000, 11_000_000, 30_000_000)
    assert (first.longest, first.ranks) == (1, 3)
    assert (second.step, second.ranks, second.window) == (2, 1, "memory")
    assert format_windows([first, second]) == ".m"
    assert [found.step for found in compute_spreads(LiveRun(tmp_path).look().ranks, 1)] == [2]


def test_bars_are_cut_at_their_top_and_never_fail() -> None:
    values = [1.0, 2.0, 2.0, 2.0, 500.0]
    assert draw_bars(values, compute_bar_top(values), ascii_only=True) == "35558"
    assert draw_bars([0, 0], compute_bar_top([0, 0]), ascii_only=True) == "11"
    assert draw_bars([], compute_bar_top([]), ascii_only=False) == ""
