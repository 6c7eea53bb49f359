"""Every key of the table does what it says, on every screen where it works.

A key that is added is pressed here, too: one that everywhere does something needs a case in ``CASES``, one
of a table or a screen must change what the terminal shows.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot

from tests.support.tui_app import LARGE, MIDDLE, SMALL, app_on, play, screen_text, settled
from tests.support.tui_keys import (
    SCREEN_OF,
    bound,
    closed,
    drawn,
    focusable,
    full_table,
    keys_of,
    plain,
    pressed,
    shown,
)
from zprof.tui import export
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.keys import KEYS, Where
from zprof.tui.popups import LinePopup, PickPopup, TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable

#: Rows of a heat map are folded where there are more ranks than rows: its own test has so many.
NEEDS_MORE_RANKS = ("fold",)
#: What works everywhere is the same code everywhere: the first screen, and slowly all of them.
ONE_OR_ALL = [name if name == "overview" else pytest.param(name, marks=pytest.mark.slow) for name in SCREENS]
Case = Callable[[ZprofApp, Pilot[int], str], Awaitable[None]]


def shows(name: str) -> Case:
    async def case(app: ZprofApp, pilot: Pilot[int], key: str) -> None:
        await pressed(app, pilot, key)
        if name in SCREENS:
            assert isinstance(app.screen, PageScreen)
            assert app.screen.name_of == name
            assert app.focused is not None

    return case


def opens(kind: type[object], title: str) -> Case:
    async def case(app: ZprofApp, pilot: Pilot[int], key: str) -> None:
        focused = app.focused
        await pressed(app, pilot, key)
        assert isinstance(app.screen, kind)
        assert title in str(getattr(app.screen, "shown_title", ""))
        await pressed(app, pilot, "escape")
        assert isinstance(app.screen, PageScreen)
        assert app.focused is focused

    return case


async def steps(app: ZprofApp, pilot: Pilot[int], key: str) -> None:
    before = app.selected.step
    other = {"left_square_bracket": "right_square_bracket"}.get(key, "left_square_bracket")
    await pressed(app, pilot, other, key)  # and back, where it was not the last one already
    await pressed(app, pilot, key)
    assert before is not None
    assert app.selected.step is not None
    assert (app.selected.step < before) == (key == "left_square_bracket")
    app.select(step=before)


async def copies(app: ZprofApp, pilot: Pilot[int], key: str) -> None:
    app._clipboard = ""
    await pressed(app, pilot, key)
    begins = "|" if key == "y" else "{"
    assert app.clipboard.startswith(begins)


async def writes(app: ZprofApp, pilot: Pilot[int], key: str) -> None:
    await pressed(app, pilot, key)
    await app.workers.wait_for_complete()
    assert Path("slice.json").exists()
    Path("slice.json").unlink()


async def palette(app: ZprofApp, pilot: Pilot[int], key: str) -> None:
    await pilot.press(key)
    await pilot.pause()
    assert CommandPalette.is_open(app)
    await pilot.press("escape")
    await pilot.pause()
    assert not CommandPalette.is_open(app)


async def focuses(app: ZprofApp, pilot: Pilot[int], key: str) -> None:
    parts, before = list(focusable(app)), app.focused
    await pressed(app, pilot, key)
    assert (app.focused is not before) == (len(parts) > 1)
    assert app.focused in parts


async def leaves(app: ZprofApp, pilot: Pilot[int], key: str) -> None:
    """test_leaving presses it; here it would be the last key."""


CASES: dict[str, Case] = {
    **{f"show('{name}')": shows(name) for name in ("overview", "memory", "communication")},
    **{f"show('{name}')": shows(name) for name in ("timeline", "ranks", "compare", "plan")},
    "explain": opens(TextPopup, ""),
    "help": opens(TextPopup, "keys"),
    "pick_rank": opens(PickPopup, "rank"),
    "pick_step": opens(PickPopup, "step"),
    "step(-1)": steps,
    "step(1)": steps,
    "baseline": opens(LinePopup, "baseline"),
    "gaps": opens(TextPopup, "could not be measured"),
    "copy_markdown": copies,
    "copy_json": copies,
    "export": opens(LinePopup, "write the report"),
    "perfetto": writes,
    "command_palette": palette,
    "quit": leaves,
    "app.focus_next": focuses,
    "app.focus_previous": focuses,
}


def test_each_has_a_case() -> None:
    assert {key.action for key in keys_of(Where.EVERYWHERE)} == set(CASES)


@pytest.mark.parametrize("name", ONE_OR_ALL)
def test_everywhere(loaded: LoadedRun, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sliced(*_: object) -> str:
        Path("slice.json").write_text("{}")
        return "wrote"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "export_perfetto", sliced)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for key in keys_of(Where.EVERYWHERE):
            await shown(app, pilot, name)
            await CASES[key.action](app, pilot, key.keys)
            await closed(app, pilot)

    play(app_on(loaded), act)


async def shows_all_again(app: ZprofApp, pilot: Pilot[int], table: FactTable) -> bool:
    """``esc`` where a text was searched for."""
    table.search("no row has this")
    await pilot.pause()
    await pressed(app, pilot, "escape")
    return table.wanted == ""


async def does_something(app: ZprofApp, pilot: Pilot[int], key: str, others: list[str]) -> bool:
    """Whether it changes the terminal, at once or after one of the others of its place."""
    for first in ("", *others):
        await pressed(app, pilot, *([first] if first else []))
        await closed(app, pilot)
        before = drawn(app)
        await pressed(app, pilot, key)
        changed = drawn(app) != before
        await closed(app, pilot)
        if changed:
            return True
    return False


@pytest.mark.parametrize("name", ONE_OR_ALL)
def test_in_tables(loaded: LoadedRun, name: str) -> None:
    keys = [key.keys for key in keys_of(Where.TABLE)]

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await shown(app, pilot, name)
        table = full_table(app)
        if table is None:
            return
        for key in keys:
            app.screen.set_focus(table)
            await settled(app, pilot)
            if key == "escape":
                assert await shows_all_again(app, pilot, table)
            else:
                assert await does_something(app, pilot, key, [*keys, "right", "down"]), key

    play(app_on(loaded), act, LARGE)


@pytest.mark.parametrize("where", [where for where, name in SCREEN_OF.items() if name in SCREENS])
def test_on_a_screen(loaded: LoadedRun, where: Where) -> None:
    mine = keys_of(where)
    others = [one for key in mine for one in key.keys.split(",")]

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for key in (key for key in mine if key.action not in NEEDS_MORE_RANKS):
            for one in key.keys.split(","):
                await shown(app, pilot, SCREEN_OF[where])
                await focus_for(app, pilot, one, key.action)
                assert await does_something(app, pilot, one, others), key

    play(app_on(loaded), act)


async def focus_for(app: ZprofApp, pilot: Pilot[int], key: str, action: str) -> None:
    """Focus a part of the screen where the key does this."""
    for part in list(focusable(app)):
        app.screen.set_focus(part)
        await pilot.pause()
        if bound(app).get(key) == plain(action):
            return
    pytest.fail(f"{key} is not bound to {action}")


@pytest.mark.parametrize(
    "keys",
    [
        ["q"],
        ["ctrl+c"],
        ["question_mark", "q"],
        pytest.param(["r", "tab", "q"], marks=pytest.mark.slow),
        ["e", "ctrl+c"],
    ],
)
def test_leaving(loaded: LoadedRun, keys: list[str]) -> None:
    """From a screen, from what is opened above it, and by ctrl+c from a line that is typed."""

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, *keys[:-1])
        assert not app._exit
        await pilot.press(keys[-1])
        assert app._exit
        assert app.return_code == 0

    play(app_on(loaded), act)


def test_letters_and_digits_are_text_where_a_line_is_typed(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pressed(app, pilot, "slash", "2", "q", "question_mark", "y")
        assert isinstance(app.screen, LinePopup)
        assert app.screen.query_one("#line").value == "2q?y"  # type: ignore[attr-defined]
        await pressed(app, pilot, "escape")
        assert isinstance(app.screen, PageScreen)
        assert app.screen.name_of == "overview"

    play(app_on(loaded), act)


def test_what_is_opened_stacks_and_closes(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        depth = len(app.screen_stack)
        await pressed(app, pilot, "f1", "g", "e")
        assert len(app.screen_stack) == depth + 3
        await pressed(app, pilot, "escape", "escape", "escape")
        assert len(app.screen_stack) == depth
        await pressed(app, pilot, "f1", "g", "1")
        assert len(app.screen_stack) == depth

    play(app_on(loaded), act)


def test_the_keys_of_the_screen_in_front_are_listed_first(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for number, name in (("4", "timeline"), ("6", "compare"), ("1", "everywhere")):
            await pressed(app, pilot, number, "f1")
            lines = screen_text(app).split("\n")
            title = next(at for at, line in enumerate(lines) if "─ keys ─" in line)
            assert name in lines[title + 1]
            await pressed(app, pilot, "escape")
        await pressed(app, pilot, "question_mark", "f1")
        assert isinstance(app.screen, TextPopup)
        assert app.screen.copies.startswith("what is opened")

    play(app_on(loaded), act)


@pytest.mark.parametrize(("size", "is_there"), [(SMALL, False), (MIDDLE, True)], ids=str)
def test_f1_is_in_the_footer_where_there_is_room(
    loaded: LoadedRun, size: tuple[int, int], is_there: bool
) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in ("overview", "timeline", "ranks", "compare"):
            await shown(app, pilot, name)
            last = screen_text(app).split("\n")[-1]
            assert ("F1 keys" in last) == is_there, last
            assert last.endswith("q quit")

    play(app_on(loaded), act, size)


def test_all_commands_are_in_the_palette(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        titles = [command.title for command in app.get_system_commands(app.screen)]
        wanted = [key.says for key in KEYS if key.where is Where.EVERYWHERE]
        missing = {key.says for key in KEYS if key.action in ("quit", "command_palette")}
        assert {says for says in wanted if says not in titles} == missing
        assert "Quit" in titles

    play(app_on(loaded), act)
