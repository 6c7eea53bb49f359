"""The ranks screen, by keys: the map's numbers, shared rows and pages, what is taken to other screens."""

from dataclasses import replace

import pytest
from textual.pilot import Pilot

from tests.support.many_steps import with_ranks
from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, press, screen_text, settled
from zprof.model.memory import Memory
from zprof.model.time import LateReason, Time
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.heat_map import HeatMap


@pytest.fixture(scope="module")
def many(alone: LoadedRun) -> LoadedRun:
    """60 ranks of 6 steps, rank 41 late."""
    return with_ranks(alone, 60, 6, late=41)


def rows(text: str) -> list[str]:
    """The heat map's."""
    return [line for line in text.splitlines() if line.startswith(" r") and "rank" not in line]


def seen(app: ZprofApp, *keys: str, size: tuple[int, int] = SMALL) -> list[str]:
    """What the terminal shows of this screen, and after each of these keys."""
    texts: list[str] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for key in ("5", *keys):
            await pilot.press(key)
            await settled(app, pilot)
            texts.append(screen_text(app))

    play(app, act, size)
    return texts


def app_at(loaded: LoadedRun, rank: int, step: int) -> ZprofApp:
    """An app with this rank and step selected."""
    app = app_on(loaded)
    app.selected = Selection(rank=rank, step=step)
    return app


def test_the_number_under_the_cursor_is_written(alone: LoadedRun) -> None:
    texts = seen(app_on(alone), "up", "left", "h", "j", "down", "k", "l", "right", "right")
    assert "lateness 91.4 µs" in texts[0]
    assert "critical path 323.6 ms  r1 compute 30.0 %" in texts[0]
    assert "rank 1 step 7: 324.1 µs" in texts[0]
    places = ["0 step 7", "0 step 6", "0 step 5", "1 step 5", "1 step 5", "0 step 5", "0 step 6"]
    for place, text in zip([*places, "0 step 7", "0 step 7"], texts[1:], strict=True):
        assert f"\n rank {place}: " in text


def test_metrics_are_gone_through_both_ways(alone: LoadedRun) -> None:
    titles = ["lateness", "step time", "compute", "exposed wait", "exposed transfer", "idle", "peak memory"]
    texts = seen(app_on(alone), *["m"] * 7, "M", "tab", "m")
    for text, title in zip(
        texts, [*titles, "lateness", "peak memory", "peak memory", "lateness"], strict=True
    ):
        assert f"\n {title} " in text
    assert "rank 1: 9.9 MiB" in texts[6]
    assert "rank 1 step 7: 324.1 µs" in texts[7]


def test_shared_rows_show_the_worst_and_f_gives_each_its_own(many: LoadedRun) -> None:
    shared, alone, below, above = seen(app_at(many, 38, 3), "f", "j", "f")
    assert [line.split()[0] for line in rows(shared)] == [
        "r0-7", "r8-16", "r17-24", "r25-33", "r34-41", "r42-50", "r51-59"
    ]  # fmt: skip
    assert "rank 41 step 3: 27.0 ms  ! far above the rest  the most of ranks 34-41" in shared
    assert [line.split()[0] for line in rows(alone)] == [f"r{rank}" for rank in range(35, 42)]
    assert "rank 41 step 3: 27.0 ms  ! far above the rest" in alone
    assert "the most of" not in alone
    assert [line.split()[0] for line in rows(below)] == [f"r{rank}" for rank in range(42, 49)]
    assert "rank 42 step 3: " in below
    assert "the most of ranks 42-50" in above


@pytest.mark.parametrize(
    ("size", "count"), [(SMALL, 7), pytest.param(MIDDLE, 13, marks=pytest.mark.slow), (LARGE, 20)], ids=str
)
def test_half_of_the_body_is_left_to_the_table(many: LoadedRun, size: tuple[int, int], count: int) -> None:
    text = press(app_on(many), "5", size=size)
    assert len(rows(text)) == count
    assert "r41" in text.partition("those that others wait for")[2].splitlines()[2]


def test_enter_takes_rank_and_step_to_the_timeline(many: LoadedRun) -> None:
    app = app_at(many, 38, 4)
    text = press(app, "5", "h", "enter")
    assert app.selected == Selection(rank=41, step=3)
    assert ("those that others wait for" in text) == ("timeline" not in SCREENS)


def test_of_the_memory_only_the_rank_is_taken(alone: LoadedRun) -> None:
    app = app_on(alone)
    text = press(app, "5", "M", "up", "enter")
    assert app.selected == Selection(rank=0, step=7)
    assert "peak" in text
    assert "critical path" not in text


def test_the_cursor_follows_what_is_selected(alone: LoadedRun) -> None:
    texts = seen(app_on(alone), "left_square_bracket", "tab", "enter")
    assert "rank 1 step 6: " in texts[1]
    assert "rank 0 step 6: " in texts[3]


def test_a_rank_of_the_table_leaves_the_cursor_on_its_step(alone: LoadedRun) -> None:
    texts = seen(app_on(alone), "left", "left", "tab", "enter")
    assert "rank 1 step 5: " in texts[2]
    assert "rank 0 step 5: " in texts[4]
    assert "rank 0 step 7" in texts[4], "what all screens show"


@pytest.mark.parametrize("size", [SMALL, MIDDLE, pytest.param(LARGE, marks=pytest.mark.slow)], ids=str)
def test_reasons_are_read_in_full_and_no_wait_stands_twice(alone: LoadedRun, size: tuple[int, int]) -> None:
    blame = alone.report.time.blame
    assert blame is not None
    reason = {LateReason.PREVIOUS_COLLECTIVE: 5}
    ranks = tuple(replace(entry, reasons=reason) for entry in blame.per_rank)
    time = replace(alone.report.time, blame=replace(blame, per_rank=ranks))
    loaded = replace(alone, report=replace(alone.report, time=time))
    text = press(app_on(loaded), "5", size=size)
    assert text.count("previous collective") == 2
    titles = next(line for line in text.splitlines() if "because" in line).split()
    assert titles.count("wait") == 1
    assert ("idle" in titles) == (size != SMALL)


def copied(app: ZprofApp, *keys: str) -> list[str]:
    """What is on the clipboard after these keys and ``y``, and after ``Y``."""
    found: list[str] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for key in (*keys, "y", "Y"):
            await pilot.press(key)
            await settled(app, pilot)
            found.append(app.clipboard)

    play(app, act)
    return found[-2:]


def test_a_row_of_the_table_is_copied(alone: LoadedRun) -> None:
    for text, begins in zip(
        copied(app_on(alone), "5", "tab", "down"), ("| rank |", '{"rank": "r'), strict=True
    ):
        assert text.startswith(begins)
        assert "r1" in text


def test_ranks_are_searched_and_sorted(many: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        async def first(*keys: str) -> str:
            for key in keys:
                await pilot.press(key)
                await settled(app, pilot)
            found = app.screen.query_one(FactTable).focused_line()
            assert found is not None
            return found[0].key

        assert await first("5", "tab", "slash", *"r17", "enter") == "17"
        assert await first("escape") == "41"
        by_name = await first("s")
        assert by_name == "9", "by letters, the last one first"
        assert await first("S") == "0"

    play(app_on(many), act)


def test_a_click_goes_there_and_another_one_takes_it(alone: LoadedRun) -> None:
    found: list[object] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("5")
        await settled(app, pilot)
        heat = app.screen.query_one(HeatMap)
        await pilot.click(HeatMap, offset=(11, 1))
        found.append(heat.focused_place())
        await pilot.click(HeatMap, offset=(0, 2))
        found.append(heat.focused_place())
        await pilot.click(HeatMap, offset=(11, 1))
        await settled(app, pilot)
        found.append(app.selected)

    play(app_on(alone), act)
    assert found == [(0, 1), (0, 1), Selection(rank=0, step=4)]


def test_space_opens_the_number(alone: LoadedRun) -> None:
    text = press(app_on(alone), "5", "space", size=MIDDLE)
    assert "lateness, rank 1 step 7: 324.1 µs" in text
    assert "time.lateness[9].mean_ns" in text
    assert "formula" in text
    assert "reduce_scatter" in text


def test_the_focused_number_is_what_y_copies(alone: LoadedRun) -> None:
    as_markdown, as_json = copied(app_on(alone), "5")
    assert as_markdown == "| rank | step | lateness |\n| --- | --- | --- |\n| 1 | 7 | 324.1 µs |"
    assert '"time.lateness[9].mean_ns"' in as_json


def test_without_colours_glyphs_say_it(many: LoadedRun) -> None:
    text = press(app_on(many, mono=True), "5", "m")
    assert any("@@@" in line for line in rows(text))
    assert "·" in text
    text = press(app_on(many, ascii_only=True), "5", "m")
    assert any("@@@" in line for line in rows(text))
    assert "[" in "".join(rows(text))


def test_a_light_terminal_stays_light(many: LoadedRun) -> None:
    grounds: list[list[object]] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.theme = "textual-light"
        await pilot.press("5")
        await settled(app, pilot)
        strips = app.screen._compositor.render_strips()
        grounds.extend([part.style.bgcolor if part.style else None for part in strip] for strip in strips)

    play(app_on(many), act)
    assert all(None not in line for line in grounds)
    assert all(min(line[-1].triplet) > 200 for line in grounds[1:11])  # type: ignore[attr-defined]


def test_what_is_unknown_says_why(alone: LoadedRun) -> None:
    time = replace(alone.report.time, lateness=())
    loaded = replace(alone, report=replace(alone.report, time=time))
    first, text = seen(app_on(loaded), "M")
    assert "\n step time " in first
    assert "lateness is unknown: no collective was seen on all of its ranks" in text
    assert all("?" in line for line in rows(text))


def test_a_run_without_ranks_has_no_map(alone: LoadedRun) -> None:
    run = replace(alone.report.run, ranks_loaded=())
    loaded = replace(alone, report=replace(alone.report, run=run, time=Time(), memory=Memory()))
    assert "those that others wait for" in press(app_on(loaded), "5", "m")
