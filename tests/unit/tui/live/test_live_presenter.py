"""Stage, ledger, tenants and rows of the live view: unknown until a window is over, then of the report."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.growing_run import PLAN, GrowingRun
from tests.support.tui_leaves import assert_leaves
from zprof.model.json_format import to_json
from zprof.model.tenants import Tenant
from zprof.reports.table import Table
from zprof.run.live import LiveRun
from zprof.tui.live.presenter import (
    Activity,
    Stage,
    build_ledger_table,
    build_rank_rows,
    build_tenants_table,
    compute_spreads,
    describe_stage,
    explain_number,
    find_stage,
    format_gaps,
    format_windows,
    get_verdict,
)
from zprof.tui.live.watcher import JobState, LiveReport, LiveSnapshot
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text

MIB = 1 << 20
RUNS, ENDED = JobState(is_own=True), JobState(is_own=True, code=3)


@pytest.fixture(scope="module")
def tree(alone: LoadedRun) -> dict[str, Any]:
    """The report on a finished run, as JSON."""
    return dict(json.loads(to_json(alone.report)))


def snapshot(
    path: Path, steps: int = 1, job: JobState = RUNS, *, memory: int = 0, status: str = "partial", **more: Any
) -> LiveSnapshot:
    """Return what is seen after so many steps of two ranks."""
    run = GrowingRun(path)
    for step in range(steps):
        run.step(step, 10, 10)
    if memory:
        run.finish(status, memory=memory)
    return LiveSnapshot(state=LiveRun(path).look(), job=job, **more)


def texts(table: Table) -> list[str]:
    return [get_text(line.cells[1]) for line in table.rows]


@pytest.mark.parametrize(
    ("steps", "memory", "expected"),
    [
        (0, 0, Stage(activity=Activity.WARMING, done=0, total=2)),
        (1, 0, Stage(activity=Activity.WARMING, done=1, total=2)),
        (2, 0, Stage(activity=Activity.MEMORY, done=0, total=1)),
        (3, 0, Stage(activity=Activity.WRITING_MEMORY)),
        (3, 1, Stage(activity=Activity.TIME, done=0, total=3)),
        (5, 1, Stage(activity=Activity.TIME, done=2, total=3)),
        (6, 1, Stage(activity=Activity.WRITING_TIME)),
    ],
)
def test_a_recording_goes_through_its_stages(
    tmp_path: Path, steps: int, memory: int, expected: Stage
) -> None:
    assert (PLAN.skip, PLAN.memory, PLAN.time) == (2, 1, 3)
    assert find_stage(snapshot(tmp_path, steps, memory=memory)) == expected


def test_a_recording_waits_for_its_slowest_rank_and_ends(tmp_path: Path) -> None:
    nothing = LiveRun(tmp_path / "none").look()
    assert find_stage(LiveSnapshot(state=nothing, job=RUNS)).activity is Activity.WAITING
    assert find_stage(LiveSnapshot(state=nothing, job=ENDED)).activity is Activity.NOTHING
    cut_short = snapshot(tmp_path / "a", 4, ENDED, memory=1)
    assert find_stage(cut_short).activity is Activity.CUT_SHORT
    assert "exit code 3" in describe_stage(cut_short)
    done = snapshot(tmp_path / "b", 6, memory=1, status="complete")
    assert find_stage(done).activity is Activity.RECORDED
    damaged = LiveSnapshot(state=done.state, measured=LiveReport(problem="damaged"))
    assert "damaged" in describe_stage(damaged)
    run = GrowingRun(tmp_path / "c")
    for ranks in ((10, 10), (10, 10), (10,)):  # rank 1 is still in the first step of the memory window
        run.step(run.path.exists() and len(LiveRun(run.path).look().ranks[0].steps), *ranks)
    state = LiveRun(run.path).look()
    assert find_stage(LiveSnapshot(state=state)) == Stage(activity=Activity.MEMORY, done=0, total=1)


def test_numbers_are_unknown_until_their_window_is_over(tmp_path: Path, tree: dict[str, Any]) -> None:
    before = snapshot(tmp_path)
    notes = set()
    for seen in (
        before,
        LiveSnapshot(state=before.state, job=ENDED),
        LiveSnapshot(state=before.state, measured=LiveReport(busy=True)),
    ):
        assert set(texts(build_ledger_table(seen))) == set(texts(build_tenants_table(seen))) == {"unknown"}
        assert get_verdict(seen) == ""
        notes.add(build_ledger_table(seen).note)
    assert len(notes) == 3, "waited for, never comes, being measured"
    part = tree | {"time": tree["time"] | {"per_rank": []}, "run": tree["run"] | {"steps": []}}
    no_time = LiveSnapshot(state=before.state, measured=LiveReport(tree=part))
    assert set(texts(build_ledger_table(no_time))) == {"unknown"}
    assert "unknown" not in texts(build_tenants_table(no_time))
    assert get_verdict(no_time) == ""


def test_numbers_are_leaves_of_the_report_and_the_ledger_sums(
    tmp_path: Path, tree: dict[str, Any], alone: LoadedRun
) -> None:
    seen = snapshot(tmp_path, measured=LiveReport(tree=tree))
    ledger, tenants = build_ledger_table(seen), build_tenants_table(seen)
    for table in (ledger, tenants):
        assert_leaves(tree, table.list_values())
        assert all(explain_number(number) for number in table.list_values())
    wall, *terms = (number for line in ledger.rows for number in line.cells[1:2])
    total = sum(number.number or 0 for number in terms)
    assert total == pytest.approx(wall.number, rel=1e-3)
    peaks = [rank["peak_bytes"] for rank in tree["memory"]["per_rank"]]
    highest = f"per_rank[{peaks.index(max(peaks))}]"
    keys = ["peak", *(tenant.replace("_", " ") for tenant in Tenant), "untagged"]
    assert [line.key for line in tenants.rows] == keys
    assert all(highest in str(leaf) for number in tenants.list_values() for leaf in number.leaves)
    assert get_verdict(seen) == alone.report.verdict.sentence
    assert all(gap["reason"] in format_gaps(seen) for gap in tree["gaps"])


def test_rows_of_ranks_have_last_and_median_step_and_mark_the_longest(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, world_size=3)
    run.step(0, 10, 20, 10, process_bytes=5 * MIB)
    run.step(1, 30, 29, 29.5, process_bytes=6 * MIB)
    ranks = LiveRun(tmp_path).look().ranks
    rows = build_rank_rows(ranks, 80, slowest_first=False, ascii_only=True)
    assert rows.titles == ("rank", "steps", "last ms", "median", "process")
    assert rows.rows[0].cells == ("0", "2", "30.0", "20.0", "6.0 MiB")
    assert rows.rows[2].cells == ("2", "2", "29.5", "19.8", "6.0 MiB")
    assert not any(row.is_slowest for row in rows.rows), "ranks 0 and 2 end within a twentieth"
    assert len(rows.rows[0].bars) == 2
    run.step(2, 10, 40, 20)
    ranks = LiveRun(tmp_path).look().ranks
    slowest = build_rank_rows(ranks, 80, slowest_first=True, ascii_only=True).rows
    assert [row.rank for row in slowest] == [1, 2, 0]
    assert [row.is_slowest for row in slowest] == [True, False, False]


def test_steps_have_least_median_and_most_of_the_ranks_that_are_done(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, world_size=3)
    run.step(1, 10, 30, 11)
    run.step(2, 10)
    first, second = compute_spreads(LiveRun(tmp_path).look().ranks, 9)
    assert (first.min_ns, first.median_ns, first.max_ns) == (10_000_000, 11_000_000, 30_000_000)
    assert (first.slowest_rank, first.ranks) == (1, 3)
    assert (second.step, second.ranks, second.window) == (2, 1, "memory")
    assert format_windows([first, second]) == ".m"
    assert [found.step for found in compute_spreads(LiveRun(tmp_path).look().ranks, 1)] == [2]
