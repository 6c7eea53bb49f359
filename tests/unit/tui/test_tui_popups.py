"""Popups: a number with its rows, a list to pick from, a page of text, the status line and its help."""

from itertools import accumulate, pairwise

from msgspec.structs import replace
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import OptionList

from tests.support.tui_app import app_on, play, press, screen_text, settle
from zprof.tui.app import ZprofApp
from zprof.tui.opening import NumberPopup
from zprof.tui.popups import PickPopup
from zprof.tui.screens.overview import OverviewScreen
from zprof.tui.screens.page_screen import PageScreen, format_status
from zprof.tui.session import LoadedRun, RunPreview
from zprof.tui.widgets.fact_table import PagedTable


def test_no_column_of_the_rows_is_shown_in_part_wherever_the_cursor_is(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        text = await press(app, pilot, "5", "m", "space", "tab")
        assert isinstance(app.screen, NumberPopup)
        assert text.count(app.screen.number.text) >= 2, "in its title and in the only row"
        table = app.screen.query_one("#rows", PagedTable)
        assert table.virtual_size.width > table.size.width
        for _ in table.ordered_columns:
            begins = [0, *accumulate(column.get_render_width(table) for column in table.ordered_columns)]
            left, right = table.scroll_x, table.scroll_x + table.size.width
            assert not [begin for begin, end in pairwise(begins) if begin < left < end]
            assert all(end <= right or begin >= right - 1 for begin, end in pairwise(begins))
            assert left <= begins[table.cursor_column] < right
            await press(app, pilot, "right")

    play(app_on(alone), act)


def test_a_list_begins_at_what_is_picked_and_finds_any_of_very_many(alone: LoadedRun) -> None:
    choices = [(str(rank), f"rank {rank}") for rank in range(1024)]

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.select(rank=1, step=alone.report.time.steps[-2].step)
        before = app.selected
        await press(app, pilot, "t", "enter", "r", "enter")
        assert app.selected == before
        await press(app, pilot, "t", "down", "enter")
        assert app.selected.step == alone.report.time.steps[-1].step
        app.push_screen(PickPopup("rank", choices, "1000"))
        await settle(app, pilot)
        listed = app.screen.query_one(OptionList)
        assert listed.get_option_at_index(listed.highlighted or 0).id == "1000"
        assert "200 of 1024" in screen_text(app)
        await press(app, pilot, "7", "7", "7")
        assert listed.option_count == 1

    play(app_on(alone), act)


def test_a_long_name_gives_way_before_the_numbers_of_the_status_line_do(alone: LoadedRun) -> None:
    facts = replace(alone.report.run, ranks_loaded=(0,), world_size=8, name="a-long-name-" * 9)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        step = app.selected.step
        await press(app, pilot, "left_square_bracket")
        app.preview = RunPreview(facts=facts)
        said = format_status(app, 78)
        assert said.startswith("a-long-name-")
        for part in ("1 of 8 ranks", f"step {(step or 0) - 1} ·", "4 gaps"):
            assert part in said

    play(app_on(alone), act)


def test_a_second_key_closes_no_second_screen(alone: LoadedRun) -> None:
    """Keys that come faster than screens are drawn."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for open_it in (app.action_command_palette, app.action_help, app.action_export):
            open_it()
            await pilot.pause()
            opened = app.screen
            opened.dismiss(None)
            opened.dismiss(None)
            await pilot.pause()
            assert isinstance(app.screen, OverviewScreen)

    play(app_on(alone), act)


def test_the_palette_opens_once_whatever_lies_above_it(alone: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.action_command_palette()
        app.action_help()
        app.action_command_palette()
        await pilot.pause()
        assert sum(isinstance(screen, CommandPalette) for screen in app.screen_stack) == 1
        app.action_show("ranks")
        await pilot.pause()
        assert isinstance(app.screen, PageScreen)
        for _ in range(20):
            app.action_command_palette()
            app.simulate_key("escape")
        await settle(app, pilot)

    play(app_on(alone), act)
