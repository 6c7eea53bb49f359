"""The ranks screen, by keys: the map's numbers, shared rows and pages, what is taken to other screens."""

import re

import pytest
from textual.pilot import Pilot

from tests.support.many_steps import with_ranks
from tests.support.tui_app import app_on, play, press, screen_text, settle
from zprof.tui.app import ZprofApp
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.widgets.heat_map import RankHeatMap


@pytest.fixture(scope="module")
def many(alone: LoadedRun) -> LoadedRun:
    """60 ranks of 6 steps, rank 41 late."""
    return with_ranks(alone, 60, 6, late=41)


def rows(app: ZprofApp) -> list[str]:
    """Return the names of the rows of the heat map."""
    lines = screen_text(app).splitlines()
    return [line.split()[0] for line in lines if line.startswith(" r") and "rank" not in line]


def cursor_line(app: ZprofApp) -> str:
    """Return what is said of the number under the cursor."""
    return next(line for line in screen_text(app).splitlines() if re.match(r" rank \d+( step \d+)?: ", line))


async def cursor(app: ZprofApp, pilot: Pilot[int], *keys: str) -> tuple[int, ...]:
    await press(app, pilot, *keys)
    return tuple(int(number) for number in re.findall(r"\d+", cursor_line(app).partition(":")[0]))


def test_the_cursor_moves_by_keys_and_clicks_and_the_number_under_it_is_copied(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert await cursor(app, pilot, "5") == (0, 5)
        assert "3.3 ms  ! far above" in cursor_line(app)
        assert await cursor(app, pilot, "right", "l", "down") == (1, 7)
        assert "324.1 µs" in cursor_line(app)
        for key, place in (("up", (0, 7)), ("left", (0, 6)), ("h", (0, 5)), ("j", (1, 5)), ("down", (1, 5))):
            assert await cursor(app, pilot, key) == place
        assert await cursor(app, pilot, "k", "l", "right", "right") == (0, 7)
        await press(app, pilot, "down", "y")
        assert app.clipboard.split("\n")[2] == "| 1 | 7 | 324.1 µs |"
        await press(app, pilot, "Y")
        assert "time.lateness[9].mean_ns" in app.clipboard
        heat = app.screen.query_one(RankHeatMap)
        for offset in ((20, 1), (0, 2)):
            await pilot.click(RankHeatMap, offset=offset)
            assert heat.focused_cell() == (0, 1)
        await pilot.click(RankHeatMap, offset=(20, 1))
        await settle(app, pilot)
        assert app.selected == Selection(rank=0, step=4), "a second click takes it"

    play(app_on(alone), act)


def test_metrics_go_round_both_ways_and_memory_has_no_step(alone: LoadedRun) -> None:
    titles = ["lateness", "step time", "compute", "exposed wait", "exposed transfer", "idle", "peak memory"]

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await press(app, pilot, "5")
        for title in (*titles[1:], titles[0]):
            text = await press(app, pilot, "m")
            assert f"\n {title} " in text
        assert f"\n {titles[-1]} " in await press(app, pilot, "M")
        assert "9.9 MiB" in cursor_line(app)
        await press(app, pilot, "up", "enter")
        assert app.selected == Selection(rank=0, step=7)
        assert app.screen.name_of == "memory"

    play(app_on(alone), act)


def test_shared_rows_show_the_worst_and_f_gives_each_rank_its_own(many: LoadedRun) -> None:
    shared = ["r0-7", "r8-16", "r17-24", "r25-33", "r34-41", "r42-50", "r51-59"]
    app = app_on(many)
    app.selected = Selection(rank=38, step=3)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert await cursor(app, pilot, "5") == (41, 3, *())
        assert rows(app) == shared
        assert "34-41" in cursor_line(app)
        await press(app, pilot, "f")
        assert rows(app) == [f"r{rank}" for rank in range(35, 42)]
        assert "34-41" not in cursor_line(app)
        assert await cursor(app, pilot, "j") == (42, 3)
        assert rows(app) == [f"r{rank}" for rank in range(42, 49)]
        await press(app, pilot, "f", "k", "l", "enter")
        assert app.selected == Selection(rank=41, step=4)
        assert app.screen.name_of == "timeline"

    play(app, act)


def test_the_cursor_follows_the_step_of_all_screens_and_a_rank_of_the_table(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        assert await cursor(app, pilot, "5", "left_square_bracket") == (0, 6)
        assert await cursor(app, pilot, "left", "tab", "enter") == (0, 5)
        assert app.selected == Selection(rank=0, step=6), "the cursor keeps its step"

    play(app_on(alone), act)
