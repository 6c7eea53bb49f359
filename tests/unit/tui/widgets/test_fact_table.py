"""A table in a terminal: columns in its own width, sorted and opened by mouse, searched without a hit."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.pilot import Pilot

from tests.support.tui_app import app_on, play, press, screen_text, settle
from zprof.model.quantities import Path, Unit, Value
from zprof.reports.table import Column, Kind, LazyRows, Row, Table
from zprof.tui.app import ZprofApp
from zprof.tui.opening import NumberPopup
from zprof.tui.popups import Popup
from zprof.tui.search import SearchPopup
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import MAX_ROWS
from zprof.tui.widgets.fact_table import FactTable, shrink_widths


def line(at: int, name: str = "") -> Row:
    number = Value(number=at, unit=Unit.COUNT, leaves=(Path(("a",)),))
    return Row(key=str(at), cells=((name or f"name {at}"), number, f"more of {at}"))


def table(lines: LazyRows | tuple[Row, ...], note: str = "") -> Table:
    columns = (
        Column(title="name", kind=Kind.TEXT),
        Column(title="count"),
        Column(title="more", kind=Kind.TEXT, from_width=60),
    )
    return Table(name="t", title="t", columns=columns, rows=lines, note=note)


class _Two(App[None]):
    """Two tables side by side."""

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield FactTable(id="a", classes="fill")
            yield FactTable(id="b", classes="fill")

    def on_mount(self) -> None:
        for part in self.query(FactTable):
            part.styles.width = "1fr"
            part.styles.border = ("round", "white")
            part.show(table((line(1, "x" * 10_000), line(1_000_000))))


def act_in_two(act: Callable[[_Two, Pilot[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        app = _Two()
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            await act(app, pilot)

    asyncio.run(run())


def titles(part: FactTable) -> list[str]:
    return [str(column.label) for column in part.ordered_columns]


def focused_key(part: FactTable) -> str:
    found = part.get_focused_line()
    return found[0].key


def test_columns_are_for_its_own_width_and_titles_of_numbers_stand_over_their_ends() -> None:
    async def act(app: _Two, pilot: Pilot[None]) -> None:
        for width, shown in ((80, ["name", "count"]), (160, ["name", "count", "more"])):
            await pilot.resize_terminal(width, 24)
            await pilot.pause()
            for part in app.query(FactTable):
                assert titles(part) == shown
                assert part.virtual_size.width <= part.size.width
        title, _, row = (text[:80] for text in screen_text(app).split("\n")[1:4])
        end = title.index("count") + len("count")
        assert row[:end].endswith(" 1000000")
        assert row[end] == " "

    act_in_two(act)


@pytest.mark.parametrize(
    ("widths", "grows", "width_limit", "shrunk"),
    [
        ([30, 10, 50], [False] * 3, 60, [22, 10, 22]),
        ([30, 10, 50], [False, False, True], 60, [30, 10, 14]),
        ([30, 10, 50], [False, False, True], 50, [26, 10, 8]),
        ([5, 10, 5], [False] * 3, 8, [5, 10, 5]),
        ([5, 10, 5], [False] * 3, 80, [5, 10, 5]),
    ],
)
def test_the_longest_texts_give_way_and_numbers_do_not(
    widths: list[int], grows: list[bool], width_limit: int, shrunk: list[int]
) -> None:
    assert shrink_widths(widths, [True, False, True], grows, width_limit) == shrunk


def test_of_many_lines_the_first_are_made_and_all_are_searched_and_sorted() -> None:
    made: list[int] = []

    def make(at: int) -> Row:
        made.append(at)
        return line(at)

    async def act(app: _Two, pilot: Pilot[None]) -> None:
        part = app.query_one("#a", FactTable)
        part.show(table(LazyRows(2000, make)))
        assert part.row_count == MAX_ROWS == len(made)
        assert f"{MAX_ROWS} of 2000" in str(part.border_subtitle)
        part.search("name 1999")
        assert (part.row_count, len(made)) == (1, 2000)
        part.search("")
        part.focus()
        await pilot.press("s", "s")
        assert titles(part)[1] == "count ▼"
        assert focused_key(part) == "1999"
        await pilot.press("S")
        assert (titles(part)[1], focused_key(part)) == ("count ▲", "0")
        part.search("zzz")
        assert "'zzz'" in titles(part)[0]
        assert part.get_focused_line() is None
        await pilot.press("s", "S", "enter")
        assert await pilot.click("#a", offset=(3, 1))
        part.show(table((), note="none ran"))
        part.search("")
        assert titles(part) == ["none ran"]

    act_in_two(act)


def test_a_click_on_a_title_sorts_and_one_on_a_cell_opens_it(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "3")
        part = app.screen.query_one("#units", FactTable)
        for sign in "▼▲":
            assert await pilot.click("#units", offset=(3, 1))
            await pilot.pause()
            assert titles(part)[0] == f"unit {sign}"
        widths = [column.get_render_width(part) for column in part.ordered_columns]
        assert await pilot.click("#units", offset=(1 + sum(widths[:3]) + 2, 3))
        await settle(app, pilot)
        assert part.cursor_coordinate == (1, 3)
        found = part.get_focused_line()
        assert isinstance(app.screen, NumberPopup)
        assert app.screen.number is found[1]

    play(app_on(loaded), act, (160, 45))


def test_a_search_is_of_the_focused_table_and_esc_clears_it_before_it_closes(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "6", "tab", "slash")
        assert isinstance(app.screen, SearchPopup)
        await press(app, pilot, *"stage", "enter")
        upper, lower = (app.screen.query_one(f"#{name}", FactTable) for name in ("compare", "settings"))
        assert (upper.search_text, lower.search_text, lower.row_count) == ("", "stage", 1)
        await press(app, pilot, "escape")
        assert lower.search_text == ""
        assert lower.row_count > 1
        await press(app, pilot, "3", "enter")
        part = app.screen.query_one(FactTable)
        part.search("rank 1")
        await press(app, pilot, "escape")
        assert part.search_text == ""
        assert isinstance(app.screen, Popup)
        await press(app, pilot, "escape")
        assert not isinstance(app.screen, Popup)

    play(app_on(loaded), act)
