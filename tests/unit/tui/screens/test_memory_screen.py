"""The memory screen by keys: another rank, a tenant, the tables, an allocation's stack, what is missing."""

from dataclasses import replace

import pytest
from textual.pilot import Pilot

from tests.support.full_memories import full_memory
from tests.support.memories import HOSTILE
from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, screen_text, settled
from tests.support.tui_keys import shown
from tests.support.tui_memory import NO_MEMORY, of_ranks, on_a_device, with_memory
from zprof.model.memory import Memory
from zprof.tui.app import ZprofApp
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.stacked_bars import StackedBars
from zprof.tui.widgets.trend import Trend


def seen(loaded: LoadedRun, *steps: tuple[str, ...], size: tuple[int, int] = SMALL) -> list[str]:
    """What is shown after each of these groups of keys, in one run of the app."""
    texts: list[str] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for keys in steps:
            for key in keys:
                await pilot.press(key)
                await settled(app, pilot)
            texts.append(screen_text(app))

    play(app_on(loaded), act, size)
    return texts


def test_all_that_matters_is_seen_at_once_and_up_and_down_pick_the_rank(alone: LoadedRun) -> None:
    first, up, down = seen(alone, ("2",), ("up",), ("down",))
    for said in ("parameters 1.5 MiB", "peak 9.9 MiB", "flat_unit.py:146 _resize", "step 2 backward"):
        assert said in first
    assert "▶ rank 1" in first
    assert "▶ rank 0" in up
    assert "peak, rank 0" in up
    assert "▶ rank 1" in down


def test_a_tenant_opens_with_its_kinds(alone: LoadedRun) -> None:
    (text,) = seen(alone, ("2", *["right"] * 5, "enter"), size=MIDDLE)
    assert "communication buffers: 3.9 MiB" in text
    assert "memory.per_rank[1].tenants.communication_buffers" in text
    assert "backend_scratch" in text


def test_pictures_are_explained_and_copied_as_what_is_under_their_cursor(alone: LoadedRun) -> None:
    copied = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for keys in (("2", "right", "y"), ("tab", "y"), ("tab", "m", "y")):
            await pilot.press(*keys)
            await settled(app, pilot)
            copied.append(app.clipboard)
        await pilot.press("shift+tab", "shift+tab", "question_mark")
        await settled(app, pilot)
        assert "Each column shows its highest point" in screen_text(app)

    play(app_on(alone), act, MIDDLE)
    assert "| gradients | 1.2 MiB | 11.7 % |" in copied[0]
    assert copied[1].startswith("| when | live | at | parameters |")
    assert copied[2].startswith("| state | law | measured |")


def test_a_click_picks_a_rank_and_a_tenant(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await settled(app, pilot)
        await pilot.click("#bars", offset=(4, 1))
        await settled(app, pilot)
        assert app.selected.rank == 0
        bars = app.screen.query_one(StackedBars)
        await pilot.click("#bars", offset=(30, 3))
        assert bars.cursor == 1
        await pilot.click("#trend", offset=(12, 2))
        assert app.screen.query_one(Trend).point == 10

    play(app_on(alone), act)


def test_m_brings_each_table_to_the_front(alone: LoadedRun) -> None:
    titles = ("law of the stage", "highest point", "who allocated it", "the whole device", "largest live")
    texts = seen(with_memory(alone, on_a_device()), ("2",), *[("m",)] * 5)
    for text, title in zip(texts[1:], titles, strict=True):
        assert title in text
        assert sum(other in text for other in titles) == 1
    assert ["live bytes" in text for text in texts] == [True, True, True, True, False, True]
    assert "context and the rest" in texts[4]  # the timeline made room for it


def test_the_timeline_has_a_cursor_and_rows_of_tables_open(alone: LoadedRun) -> None:
    loaded = with_memory(alone, full_memory())
    moved, opened, stack, law = seen(
        loaded, ("2", "tab", "right"), ("enter",), ("escape", "tab", "enter"), ("escape", "m", "enter")
    )
    assert "at 20.0 ms · step 3 optimizer" in moved
    assert "live = the six tenants + untagged" in opened
    assert "memory.timelines[0].tenants" in opened
    assert "allocated at, innermost first" in stack
    assert all(frame in stack for frame in loaded.report.memory.top[1].stack[:3])
    assert "parameters of rank 1 against the law" in law


def test_large_terminals_show_all_tables(alone: LoadedRun) -> None:
    (text,) = seen(with_memory(alone, on_a_device()), ("2",), size=LARGE)
    for title in ("largest live", "law of the stage", "highest point", "who allocated", "the whole device"):
        assert title in text


@pytest.mark.parametrize("size", [SMALL, pytest.param(MIDDLE, marks=pytest.mark.slow), LARGE], ids=str)
def test_no_line_is_longer_and_no_part_lower_than_the_terminal(
    alone: LoadedRun, size: tuple[int, int]
) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await settled(app, pilot)
        shown = [part for part in app.screen.query("#memory *") if part.display and part.size.height]
        assert max(part.region.bottom for part in shown) <= size[1] - 2
        assert max(part.region.right for part in shown) <= size[0]
        assert all(part.region.height >= 4 for part in app.screen.query("FactTable") if part in shown)

    play(app_on(with_memory(alone, replace(on_a_device(), per_rank=of_ranks(64).per_rank))), act, size)


def test_what_is_missing_says_what_helps(alone: LoadedRun) -> None:
    (text,) = seen(with_memory(alone, Memory(), NO_MEMORY), ("2",))
    assert NO_MEMORY.reason in text
    assert "what helps: zprof record -o RUN -- COMMAND" in text
    assert "largest live" not in text
    assert "each rank" not in text


def test_without_a_timeline_the_rest_is_there(alone: LoadedRun) -> None:
    (text,) = seen(with_memory(alone, replace(full_memory(), timelines=())), ("2",))
    assert "own peaks, memory window" in text
    assert "no timeline of this rank" in text


def test_a_name_from_the_run_does_not_steer(alone: LoadedRun) -> None:
    hostile = replace(full_memory(HOSTILE))
    ranks = tuple(replace(rank, peak_phase=HOSTILE) for rank in hostile.per_rank)
    timeline = replace(hostile.timelines[0], phases=((0, f"[bold]{HOSTILE}"),))
    memory = replace(hostile, per_rank=ranks, timelines=(timeline,))

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for key in ("2", "tab", "tab", "enter"):
            text = screen_text(app)
            assert not set(text) & set("\x1b\x07\r\u202e\u200d\u2028")
            await pilot.press(key)
            await settled(app, pilot)
        assert "\\x1b[2J" in screen_text(app)

    play(app_on(with_memory(alone, memory)), act, LARGE)


def test_the_keys_below_say_that_enter_opens_what_is_under_the_cursor_of_a_picture(alone: LoadedRun) -> None:
    for text in seen(alone, ("2",), ("tab",), ("tab",)):
        assert "enter open" in text.splitlines()[-1]


def test_side_by_side_each_table_fits_its_half(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await settled(app, pilot)
        for table in app.screen.query(FactTable):
            assert table.virtual_size.width <= table.size.width, table.id

    play(app_on(alone), act, (160, 45))


def test_the_window_that_memory_is_of_is_said(alone: LoadedRun) -> None:
    """It is another one than that of the times, whose step the line at the bottom has."""
    windows = {
        (2, 3): "memory window (steps 2-3)",
        (3,): "memory window (step 3)",
        (): "each rank at its own",
    }

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await shown(app, pilot, "memory")
        for kept, said in windows.items():
            run = replace(alone.report.run, memory_steps=kept)
            app.loaded = replace(alone, report=replace(alone.report, run=run))
            app.refill()
            await settled(app, pilot)
            assert said in screen_text(app)

    play(app_on(alone), act)
