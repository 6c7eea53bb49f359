"""What keys do, for tests: what is bound where, and what the terminal shows with its styles."""

from collections.abc import Iterator, Sequence

from textual.pilot import Pilot
from textual.widget import Widget

from tests.support.tui_app import press, settle
from zprof.tui.app import ZprofApp
from zprof.tui.keys import KEYS, Key, Where
from zprof.tui.popups import Popup

#: Keys of Textual's own that are not in the table: to move, to edit a line, to select text, and to leave.
MOVES = {
    "up", "down", "left", "right", "pageup", "pagedown", "home", "end", "ctrl+home", "ctrl+end",
    "ctrl+pageup", "ctrl+pagedown", "enter", "ctrl+q", "super+c",
}  # fmt: skip
SCREEN_OF = {
    Where.MEMORY: "memory",
    Where.COMMUNICATION: "communication",
    Where.TIMELINE: "timeline",
    Where.RANKS: "ranks",
    Where.COMPARE: "compare",
    Where.PLAN: "plan",
}


def keys_of(where: Where) -> list[Key]:
    """Return the keys of a place."""
    return [key for key in KEYS if key.where is where]


def list_focusable(app: ZprofApp) -> Iterator[Widget]:
    """Yield what can have the focus on the screen in front."""
    yield from (part for part in app.screen.query("*") if part.focusable and part.region)


def list_bound(app: ZprofApp) -> dict[str, str]:
    """Return the keys that work now with their actions, without a namespace."""
    found = app.screen.active_bindings
    return {key: plain_action(one.binding.action) for key, one in found.items()}


def plain_action(action: str) -> str:
    """Return an action without its namespace."""
    return action.removeprefix("app.").removeprefix("screen.")


def styled_cells(app: ZprofApp) -> list[object]:
    """Return every character of the terminal with its style."""
    return [[(s.text, s.style) for s in strip] for strip in app.screen._compositor.render_strips()]


async def show_screen(app: ZprofApp, pilot: Pilot[int], name: str) -> None:
    """Show the screen of this name, with nothing above it."""
    app.clear_notifications()
    app.action_show(name)
    await settle(app, pilot)


async def close_popups(app: ZprofApp, pilot: Pilot[int]) -> None:
    """Close what is open."""
    while isinstance(app.screen, Popup):
        await press(app, pilot, "escape")


def list_documented(wheres: Sequence[Where]) -> dict[str, set[str]]:
    """Return the keys of these places with the actions that they may have."""
    found: dict[str, set[str]] = {"ctrl+c": {"copy_text"}}  # where text is selected; else it leaves
    for key in KEYS:
        if key.where in wheres:
            for one in key.keys.split(","):
                found.setdefault(one, set()).add(plain_action(key.action))
    return found
