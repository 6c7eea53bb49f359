"""Every documented key is bound, and every bound key is documented or is Textual's own to move and edit."""

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from tests.support.tui_app import app_on, play
from tests.support.tui_keys import (
    MOVES,
    SCREEN_OF,
    bound,
    closed,
    documented,
    focusable,
    plain,
    pressed,
    shown,
)
from zprof.tui.app import SCREENS, ZprofApp
from zprof.tui.keys import KEYS, Key, Where
from zprof.tui.popups import Popup
from zprof.tui.session import LoadedRun
from zprof.tui.widgets.fact_table import FactTable

#: Keys with which Textual edits a line: none that the table has, but to leave.
EDITS = {key for binding in Input.BINDINGS for key in binding.key.split(",")}  # type: ignore[union-attr]


def places(app: ZprofApp, name: str) -> list[Where]:
    """Where the focus is."""
    own = [where for where, screen in SCREEN_OF.items() if screen == name]
    return [Where.EVERYWHERE, *([Where.TABLE] if isinstance(app.focused, FactTable) else []), *own]


@pytest.fixture(scope="module")
def seen(loaded: LoadedRun) -> dict[str, list[tuple[list[Where], dict[str, str]]]]:
    """By screen, for each of its parts: where it is, and what is bound while it has the focus."""
    found: dict[str, list[tuple[list[Where], dict[str, str]]]] = {}

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for name in SCREENS:
            await shown(app, pilot, name)
            for part in list(focusable(app)):
                app.screen.set_focus(part)
                await pilot.pause()
                found.setdefault(name, []).append((places(app, name), bound(app)))

    play(app_on(loaded), act, size=(200, 50))
    return found


@pytest.mark.parametrize("name", SCREENS)
def test_what_is_bound_is_documented(
    seen: dict[str, list[tuple[list[Where], dict[str, str]]]], name: str
) -> None:
    for wheres, keys in seen[name]:
        known = documented(wheres)
        unknown = {key: action for key, action in keys.items() if action not in known.get(key, ())}
        assert set(unknown) <= MOVES, unknown


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.where.name}-{key.written}-{key.action}")
def test_what_is_documented_is_bound(
    seen: dict[str, list[tuple[list[Where], dict[str, str]]]], key: Key
) -> None:
    if key.where in (Where.POPUP, Where.LIVE) or key.keys == "ctrl+c":
        return  # test_above_what_is_opened, tests/unit/tui/live, test_leaving
    bindings = [keys for parts in seen.values() for wheres, keys in parts if key.where in wheres]
    actions = {one.get(name) for one in bindings for name in key.keys.split(",")}
    assert plain(key.action) in actions


def test_above_what_is_opened(loaded: LoadedRun) -> None:
    """Popups have the keys of the app; where a line is typed, letters and digits are text."""
    known = documented([Where.EVERYWHERE, Where.POPUP])

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for opener in ("question_mark", "r", "e"):
            await pressed(app, pilot, opener)
            assert isinstance(app.screen, Popup), opener
            for part in list(focusable(app)):
                app.screen.set_focus(part)
                await pilot.pause()
                keys = bound(app)
                own = EDITS if isinstance(part, Input) else MOVES
                unknown = {key: action for key, action in keys.items() if action not in known.get(key, ())}
                assert set(unknown) <= own | MOVES, unknown
                assert keys["escape"] == "close"
                assert ("q" in keys) == (not isinstance(part, Input))
                assert isinstance(part, Input | OptionList) or keys["q"] == "quit"
            await closed(app, pilot)

    play(app_on(loaded), act)
