"""Of many ranks, the late one is on the first screen: rows of the timeline, heat map, selected rank."""

import re
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.simulations import simulated, with_pace
from tests.support.tui_app import LARGE, app_on, play, press, screen_text
from zprof.analysis.step_timeline.rank_rows import build_rank_row, order_ranks
from zprof.run.reader import load as open_run
from zprof.simulator.job import Pace
from zprof.simulator.regular import make_job
from zprof.tui.app import ZprofApp
from zprof.tui.session import LoadedRun, RunRequest, load
from zprof.tui.widgets.lanes import Lanes
from zprof.tui.widgets.rank_rows import RankRows

RANKS, LATE = 20, 17


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    """20 ranks, rank 17 computes at 4/5 of the pace."""
    job = with_pace(
        make_job(seed=9, ranks=RANKS, steps=3, units=3, unit_params=1 << 22), Pace(gpu=1.25), LATE
    )
    run = simulated(job, tmp_path_factory.mktemp("late")).run
    return load(RunRequest(path=run.path, opener=open_run), lambda doing: None)


def read_rows(app: ZprofApp) -> list[tuple[int, str]]:
    """Return rank and note of each row of the timeline."""
    found = (re.match(r" ?r(\d+) (late|waits)?", line) for line in screen_text(app).splitlines())
    return [(int(match[1]), match[2] or "") for match in found if match]


@pytest.mark.parametrize(("ranks", "culprit", "seed"), [(2, 1, 21), (5, 3, 22), (8, 0, 23)])
def test_the_planted_rank_is_first_and_then_who_waits_for_it(
    tmp_path: Path, ranks: int, culprit: int, seed: int
) -> None:
    job = with_pace(
        make_job(seed=seed, ranks=ranks, steps=2, units=3, unit_params=1 << 22), Pace(gpu=1.4), culprit
    )
    run = simulated(job, tmp_path).run
    loaded = load(RunRequest(path=run.path, opener=open_run), lambda doing: None)
    step = loaded.report.time.steps[0].step
    order = order_ranks(loaded.analysis, step)
    assert order.culprit == culprit == order.ranks[0]
    assert order.ranks[1] in order.waits_ns
    assert sorted(order.ranks) == list(range(ranks))
    for rank in order.ranks[:2]:
        row = build_rank_row(loaded.run, loaded.analysis, rank, step)
        ledger = next(each for each in loaded.report.time.steps if (each.rank, each.step) == (rank, step))
        for role, cover in row.lane.covers.items():
            assert cover.length_ns == pytest.approx(getattr(ledger, role.value), abs=2, rel=1e-6), role


def test_the_timeline_stacks_the_late_rank_and_its_victims_first(late: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert app.selected.rank == LATE
        await press(app, pilot, "4")
        rows = read_rows(app)
        assert rows[0] == (LATE, "late")
        assert {note for _, note in rows[1:]} == {"waits"}
        stack, lanes = app.screen.query_one(RankRows), app.screen.query_one(Lanes)
        while app.focused is lanes:
            await press(app, pilot, "up")
        assert f"rank {LATE} is late: {RANKS - 1} ranks wait" in screen_text(app)
        text = await press(app, pilot, "down")
        victim = rows[1][0]
        assert f"rank {victim} waits" in text
        await press(app, pilot, "enter")
        assert app.selected.rank == victim == lanes.model.rank
        assert read_rows(app) == rows, "the order does not depend on the selected rank"
        last = max(set(range(RANKS)) - {rank for rank, _ in rows})
        app.select(rank=last)
        await press(app, pilot, "up")
        assert last in [rank for rank, _ in read_rows(app)]
        for _ in rows:
            await press(app, pilot, "down")
        assert app.focused is lanes
        assert stack.display

    play(app_on(late), act)


def test_a_larger_terminal_has_more_ranks(late: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "4")
        assert len(read_rows(app)) == RANKS

    play(app_on(late), act, LARGE)


def test_the_heat_map_begins_at_the_late_rank(late: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert f" rank {LATE} step" in await press(app, pilot, "5")

    play(app_on(late), act)
