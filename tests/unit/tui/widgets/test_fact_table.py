"""A table in a terminal: columns in its own width, sorted and opened by mouse, searched without a hit."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from rich.console import Console, RenderableType
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.pilot import Pilot
from textual.widgets import _data_table

from tests.support.tui_app import app_on, play, screen_text, settled
from tests.support.tui_keys import pressed
from zprof.tui.app import ZprofApp
from zprof.tui.figures import Figure, Unit
from zprof.tui.popups import LinePopup, Popup
from zprof.tui.session import LoadedRun
from zprof.tui.tables import MAX_ROWS, Column, LazyLines, Line, Table, TextCell, numeric_column
from zprof.tui.widgets.fact_table import FactTable, shrink_widths

_LONG = 10_000


def line(at: int, name: str = "") -> Line:
    return Line(
        key=str(at),
        cells=(
            TextCell(name or f"name {at}"),
            Figure(value=at, unit=Unit.COUNT, leaves=("a",)),
            TextCell(f"more of {at}"),
        ),
    )


def table(lines: LazyLines | tuple[Line, ...], note: str = "") -> Table:
    columns = (Column(title="name"), numeric_column("count"), Column(title="more", from_width=60))
    return Table(name="t", title="t", columns=columns, lines=lines, note=note)


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
            part.show(table((line(1, "x" * _LONG), line(2))))


def in_two(act: Callable[[_Two, Pilot[None]], Awaitable[None]]) -> None:
    """Act in an app of two tables."""

    async def run() -> None:
        app = _Two()
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            await act(app, pilot)

    asyncio.run(run())


def test_columns_are_for_its_own_width_and_long_texts_are_cut() -> None:
    async def act(app: _Two, pilot: Pilot[None]) -> None:
        for part in app.query(FactTable):
            assert titles(part) == ["name", "count"]
            assert part.virtual_size.width <= part.size.width
        await pilot.resize_terminal(160, 24)
        await pilot.pause()
        for part in app.query(FactTable):
            assert titles(part) == ["name", "count", "more"]
            assert part.virtual_size.width <= part.size.width

    in_two(act)


def test_the_longest_texts_give_way_and_numbers_do_not() -> None:
    assert shrink_widths([30, 10, 50], [True, False, True], [False] * 3, 60) == [22, 10, 22]
    assert shrink_widths([30, 10, 50], [True, False, True], [False, False, True], 60) == [30, 10, 14]
    assert shrink_widths([30, 10, 50], [True, False, True], [False, False, True], 50) == [26, 10, 8]
    assert shrink_widths([5, 10], [True, False], [False, False], 8) == [5, 10]
    assert shrink_widths([5, 10], [True, False], [False, False], 80) == [5, 10]


def screen_of(app: _Two) -> list[str]:
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def titles(part: FactTable) -> list[str]:
    return [str(column.label) for column in part.ordered_columns]


def test_of_many_lines_the_first_are_made_and_all_are_searched_and_sorted() -> None:
    made: list[int] = []

    def make(at: int) -> Line:
        made.append(at)
        return line(at)

    async def act(app: _Two, pilot: Pilot[None]) -> None:
        part = app.query_one("#a", FactTable)
        part.show(table(LazyLines(2000, make), note="ms"))
        assert part.row_count == MAX_ROWS == len(made)
        assert f"first {MAX_ROWS} of 2000 rows: / narrows" in str(part.border_subtitle)
        part.search("name 1999")
        assert part.row_count == 1
        assert len(made) == 2000
        part.search("")
        part.focus()
        await pilot.press("s", "s")
        assert titles(part)[1] == "count ▼"
        found = part.focused_line()
        assert found is not None
        assert found[0].key == "1999"

    in_two(act)


def test_titles_of_numbers_stand_over_their_ends() -> None:
    async def act(app: _Two, pilot: Pilot[None]) -> None:
        part = app.query_one("#a", FactTable)
        part.show(table((line(1_000_000),)))
        await pilot.pause()
        assert [str(column.label.justify) for column in part.ordered_columns] == ["left", "right"]
        title, row = screen_of(app)[1:3]
        assert title[:38].index("count") + len("count") == row[:38].rindex("1000000") + len("1000000")

    in_two(act)


def test_no_cell_is_measured_when_nothing_else_is_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []
    whole = _data_table.measure

    def counted(console: Console, renderable: RenderableType, default: int) -> int:
        measured.append(renderable)
        return whole(console, renderable, default)

    async def act(app: _Two, pilot: Pilot[None]) -> None:
        await pilot.pause()
        monkeypatch.setattr(_data_table, "measure", counted)
        part = app.query_one("#a", FactTable)
        part.show(table(LazyLines(2000, line)))
        await pilot.pause()
        assert len(measured) <= len(part.ordered_columns)
        assert part.virtual_size.height == MAX_ROWS + 1
        assert part.virtual_size.width == sum(each.get_render_width(part) for each in part.ordered_columns)

    in_two(act)


def test_before_it_has_a_size_the_rows_of_a_screen_are_drawn_and_then_all() -> None:
    drawn: list[int] = []

    class Watched(FactTable):
        def show(self, table: Table) -> None:
            super().show(table)
            drawn.append(self.row_count)

    class OfMany(App[None]):
        def compose(self) -> ComposeResult:
            yield Watched(id="a", classes="fill")

        def on_mount(self) -> None:
            self.query_one(Watched).show(table(LazyLines(2000, line)))

    async def run() -> None:
        app = OfMany()
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            part = app.query_one(Watched)
            assert (*drawn, part.row_count) == (50, MAX_ROWS)
            assert f"first {MAX_ROWS} of 2000" in str(part.border_subtitle)

    asyncio.run(run())


def test_a_search_without_a_hit_and_a_table_without_rows_say_so() -> None:
    async def act(app: _Two, pilot: Pilot[None]) -> None:
        part = app.query_one("#a", FactTable)
        part.focus()
        part.search("zzz")
        assert titles(part)[0].startswith("no row has 'zzz': esc shows all")
        assert part.focused_line() is None
        await pilot.press("s", "S", "enter")
        assert await pilot.click("#a", offset=(3, 1))
        part.search("")
        assert part.row_count == 2
        part.show(table((), note="none ran"))
        assert titles(part) == ["none ran"]

    in_two(act)


def test_a_click_on_a_title_sorts_and_one_on_a_cell_opens_it(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("3")
        await settled(app, pilot)
        part = app.screen.query_one("#units", FactTable)
        assert await pilot.click("#units", offset=(3, 1))
        await pilot.pause()
        assert titles(part)[0] == "unit ▼"
        assert await pilot.click("#units", offset=(3, 1))
        await pilot.pause()
        assert titles(part)[0] == "unit ▲"
        names = [each.cells[0].text for each in part._lines]
        assert names == sorted(names)
        widths = [column.get_render_width(part) for column in part.ordered_columns]
        assert await pilot.click("#units", offset=(1 + sum(widths[:3]) + 2, 3))
        await settled(app, pilot)
        assert part.cursor_coordinate == (1, 3)
        assert "exposed" in screen_text(app)
        assert f"{part._lines[1].cells[0].text}: " in screen_text(app)

    play(app_on(loaded), act, (160, 45))


def test_the_prompt_names_its_table_and_esc_shows_all_again(loaded: LoadedRun) -> None:
    """In the table that has the focus, which may be the second one; and in a window before that closes."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "6", "tab", "slash")
        assert isinstance(app.screen, LinePopup)
        assert app.screen.shown_title.startswith("settings: ")
        assert app.screen.shown_title.endswith(": show rows with")
        await pressed(app, pilot, *"stage", "enter")
        upper, lower = (app.screen.query_one(f"#{name}", FactTable) for name in ("compare", "settings"))
        assert (upper.wanted, lower.wanted) == ("", "stage")
        assert lower.row_count == 1
        assert "/stage (esc: all)" in screen_text(app)
        await pressed(app, pilot, "escape")
        assert lower.wanted == ""
        assert lower.row_count > 1
        before = screen_text(app)
        await pressed(app, pilot, "escape")
        assert screen_text(app) == before
        await pressed(app, pilot, "3", "enter")
        await settled(app, pilot)
        part = app.screen.query_one(FactTable)
        part.search("rank 1")
        await pressed(app, pilot, "escape")
        assert part.wanted == ""
        assert isinstance(app.screen, Popup)
        await pressed(app, pilot, "escape")
        assert not isinstance(app.screen, Popup)

    play(app_on(loaded), act)
