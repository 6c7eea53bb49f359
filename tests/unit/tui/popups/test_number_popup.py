"""A number, opened: its rows are seen, all of them."""

import re
from itertools import accumulate, pairwise

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, screen_text, settled
from tests.support.tui_keys import closed, pressed
from zprof.tui.app import ZprofApp
from zprof.tui.figures import Unit, figure, strip_unit
from zprof.tui.number_popup import NumberPopup, build_rows_table, explain_number, find_rows
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import PagedTable, align_to_pages


@pytest.mark.parametrize("size", [SMALL, pytest.param(MIDDLE, marks=pytest.mark.slow), LARGE], ids=str)
def test_the_only_row_is_not_hidden_by_a_bar(alone: LoadedRun, size: tuple[int, int]) -> None:
    """A step of a rank is one row, with more columns than there is room for in 80."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "5", "m", "space")
        assert isinstance(app.screen, NumberPopup)
        lines = screen_text(app).split("\n")
        titles = next(at for at, line in enumerate(lines) if re.search(r"step +rank +wall +compute ", line))
        wall = f"{app.screen.number.text}"
        assert wall in lines[titles + 1]
        says_more = "more columns" in screen_text(app)
        assert says_more == (size != LARGE)
        await pressed(app, pilot, "tab", *["right"] * 9)
        assert " overlapped " in screen_text(app)

    play(app_on(alone), act, size)


@pytest.mark.parametrize(
    "keys",
    [("5", "m", "space"), pytest.param(("6", "right", "right", "enter"), marks=pytest.mark.slow)],
    ids=["ranks", "compare"],
)
def test_no_column_is_seen_in_part(loaded: LoadedRun, keys: tuple[str, ...]) -> None:
    """Whatever column the cursor is on, each value has its unit."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, *keys, "tab")
        table = app.screen.query_one("#rows", PagedTable)
        assert table.virtual_size.width > table.size.width
        for _ in table.ordered_columns:
            widths = [column.get_render_width(table) for column in table.ordered_columns]
            begins = [0, *accumulate(widths)]
            left, right = table.scroll_x, table.scroll_x + table.size.width
            across = [begin for begin in begins[:-1] if begin < left < begins[begins.index(begin) + 1]]
            assert across == []
            assert all(end <= right or begin >= right - 1 for begin, end in pairwise(begins))
            assert left <= begins[table.cursor_column] < right
            await pressed(app, pilot, "right")

    play(app_on(loaded), act)


def test_rows_are_of_a_step_and_rank_and_begin_with_what_was_asked_for(loaded: LoadedRun) -> None:
    idle = figure(loaded.tree, Unit.NS, "time.per_rank[0].idle_ns")
    rows = find_rows(idle, loaded)
    assert rows is not None
    titles = [column.title for column in build_rows_table(rows, "idle_ns").columns]
    assert titles[:3] == ["step", "rank", "idle"]
    assert sorted(titles) == sorted(strip_unit(name) for name in rows.columns)
    assert all(
        cell.text.endswith("s")
        for line in build_rows_table(rows, "idle_ns").lines
        for cell in line.cells[2:4]
    )


def test_leaves_and_inputs_have_the_words_of_the_screens(loaded: LoadedRun) -> None:
    number = figure(loaded.tree, Unit.NS, "time.per_rank[0].wall_ns")
    said = explain_number(number, loaded)
    assert "  step time of a rank  time.per_rank[0].wall_ns" in said
    (wait,) = [line for line in said if line.endswith("  exposed_wait_ns")]
    assert wait.split()[:2] == ["exposed", "wait"]
    saving = figure(loaded.tree, Unit.NS, "findings[0].saving_ns[0]")
    (line,) = [line for line in explain_number(saving, loaded) if "findings[0].saving_ns[0]" in line]
    assert "sav" in line.partition("findings")[0]


@pytest.mark.parametrize(
    ("widths", "room", "found"),
    [([4, 4], 20, [4, 4]), ([4, 4, 4], 14, [4, 6, 13]), ([30, 4], 14, [30, 13]), ([], 5, [])],
)
def test_the_last_column_of_a_page_fills_it(widths: list[int], room: int, found: list[int]) -> None:
    assert align_to_pages(widths, room) == found


def test_its_title_says_which_number_of_the_row_it_is(loaded: LoadedRun) -> None:
    titles = {
        ("4", "tab", "right", "enter"): "─ █ compute: ",
        ("5", "tab", "right", "right", "enter"): ", compute: ",
        ("6", "right", "right", "enter"): "─ step time, B: ",
        ("1", "shift+tab", "enter"): "─ exposed transfer: ",
        ("right", "right", "enter"): "─ exposed transfer, of step: ",  # of the same row
    }

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for keys, title in titles.items():
            for key in keys:
                await pilot.press(key)
                await settled(app, pilot)
            assert title in screen_text(app), keys
            await closed(app, pilot)

    play(app_on(loaded), act)
