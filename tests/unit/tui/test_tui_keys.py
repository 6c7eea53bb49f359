"""Keys: each documented one is bound where it works, does what it says, and fits the footer."""

from collections import Counter
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from tests.support import tui_keys
from tests.support.tui_app import LARGE, app_on, finish_workers, play, press
from tests.support.tui_docs import PAGE, with_keys
from tests.support.tui_keys import (
    MOVES,
    SCREEN_OF,
    close_popups,
    keys_of,
    list_bound,
    plain_action,
    show_screen,
)
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.keys import KEYS, Where
from zprof.tui.popups import LinePopup, PickPopup, Popup, TextPopup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.search import SearchPopup
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable

#: Keys with which Textual edits a line.
EDITS = {key for binding in Input.BINDINGS for key in binding.key.split(",")}
#: What is opened by the actions of the app.
OPENED = {
    "explain": TextPopup,
    "help": TextPopup,
    "gaps": TextPopup,
    "pick_rank": PickPopup,
    "pick_step": PickPopup,
    "baseline": LinePopup,
    "export": LinePopup,
    "search": SearchPopup,
    "command_palette": CommandPalette,
}


def test_a_key_does_one_thing_in_a_place_and_the_docs_have_it() -> None:
    for where in Where:
        shared = () if where is Where.LIVE else (Where.EVERYWHERE,)  # the live view is an app of its own
        counted = Counter(key.keys for key in KEYS if key.where in (where, *shared))
        assert max(counted.values(), default=1) == 1, counted
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_keys(page), "python -m tests.support.tui_docs writes them"


def test_what_is_bound_is_documented_and_what_is_documented_is_bound(loaded: LoadedRun) -> None:
    unseen = {key for key in KEYS if key.where not in (Where.POPUP, Where.LIVE) and key.keys != "ctrl+c"}

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            await show_screen(app, pilot, name)
            for part in list(tui_keys.list_focusable(app)):
                app.screen.set_focus(part)
                await pilot.pause(0)
                own = [where for where, screen in SCREEN_OF.items() if screen == name]
                wheres = [Where.EVERYWHERE, *([Where.TABLE] if isinstance(part, FactTable) else []), *own]
                known, bound = tui_keys.list_documented(wheres), list_bound(app)
                assert {key for key, action in bound.items() if action not in known.get(key, ())} <= MOVES
                for key in [key for key in unseen if key.where in wheres]:
                    if plain_action(key.action) in {bound.get(one) for one in key.keys.split(",")}:
                        unseen.discard(key)

    play(app_on(loaded), act, LARGE)
    assert not unseen


def test_popups_have_the_keys_of_the_app_and_a_typed_line_takes_letters_as_text(loaded: LoadedRun) -> None:
    known = tui_keys.list_documented([Where.EVERYWHERE, Where.POPUP])

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for opener in ("question_mark", "r", "e"):
            await press(app, pilot, opener)
            for part in list(tui_keys.list_focusable(app)):
                app.screen.set_focus(part)
                await pilot.pause(0)
                keys, moves = list_bound(app), MOVES | (EDITS if isinstance(part, Input) else set())
                assert {key for key, action in keys.items() if action not in known.get(key, ())} <= moves
                assert keys["escape"] == "close"
                assert ("q" in keys) == (not isinstance(part, Input))
            await close_popups(app, pilot)
        await press(app, pilot, "slash", *"2q?y")
        assert app.screen.query_one("#narrow", Input).value == "2q?y"

    play(app_on(loaded), act)


def test_each_key_that_works_everywhere_does_what_it_says(
    loaded: LoadedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def check(app: ZprofApp, pilot: Pilot[int], action: str, key: str) -> None:
        focused, step = app.focused, app.selected.step
        await press(app, pilot, key)
        if action.startswith("show("):
            assert app.screen.name_of == action.split("'")[1]
            assert app.focused is not None
        elif action in OPENED:
            assert isinstance(app.screen, OPENED[action]), action
            await press(app, pilot, "escape")
            assert isinstance(app.screen, PageScreen)
            assert app.focused is focused
        elif action.startswith("step("):
            assert app.selected.step == step + int(action[5:-1])
        elif action.startswith("copy_"):
            assert app.clipboard.startswith("|" if action == "copy_markdown" else "{")
        elif action == "perfetto":
            await finish_workers(app, pilot)
            assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
        elif action.startswith("app.focus_"):
            assert app.focused is not focused
        else:
            pytest.fail(f"{action} has no case")

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for key in keys_of(Where.EVERYWHERE):
            if key.action != "quit":  # test_leaving
                app.select(step=loaded.report.time.steps[1].step)
                await show_screen(app, pilot, "overview")
                await check(app, pilot, key.action, key.keys)
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {key.help for key in keys_of(Where.EVERYWHERE) if key.action in OPENED} - titles == {
            key.help for key in KEYS if key.action == "command_palette"
        }

    play(app_on(loaded), act)


@pytest.mark.parametrize("keys", [["q"], ["question_mark", "q"], ["r", "tab", "q"], ["e", "ctrl+c"]])
def test_leaving_from_a_screen_a_popup_and_a_typed_line(loaded: LoadedRun, keys: list[str]) -> None:
    app = app_on(loaded)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, *keys[:-1])
        assert isinstance(app.focused, OptionList) == ("tab" in keys)
        assert app.return_code is None
        await pilot.press(keys[-1])

    play(app, act)
    assert app.return_code == 0


def test_popups_stack_and_close_and_keys_of_the_screen_in_front_are_listed_first(loaded: LoadedRun) -> None:
    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        depth = len(app.screen_stack)
        for keys, left in ((["f1", "g", "e"], 3), (["escape"] * 3, 0), (["f1", "g", "1"], 0)):
            await press(app, pilot, *keys)
            assert len(app.screen_stack) == depth + left
        assert not isinstance(app.screen, Popup)
        for number, where in (("4", Where.TIMELINE), ("6", Where.COMPARE)):
            await press(app, pilot, number, "f1")
            listed = app.screen.copies
            assert listed.index(keys_of(where)[0].help) < listed.index(keys_of(Where.EVERYWHERE)[0].help)
            assert all(key.help in listed for key in KEYS)

    play(app_on(loaded), act)
