"""What keys do, for tests: what is bound where, and what the terminal shows with its styles."""

from collections.abc import Iterator, Sequence

from textual.pilot import Pilot
from textual.widget import Widget

from tests.support.tui_app import settled
from zprof.tui.app import ZprofApp
from zprof.tui.keys import KEYS, Key, Where
from zprof.tui.popups import Popup
from zprof.tui.widgets.fact_table import FactTable

#: Keys of Textual's own that are not in the table: to move, to edit a line, to select text, and to leave.
MOVES = {
    "up", "down", "left", "right", "pageup", "pagedown", "home", "end", "ctrl+home", "ctrl+end",
    "ctrl+pageup", "ctrl+pagedown", "enter", "ctrl+q", "super+c",
}  # fmt: skip
#: The screen on which the keys of a place work.
SCREEN_OF = {
    Where.MEMORY: "memory",
    Where.COMMUNICATION: "communication",
    Where.TIMELINE: "timeline",
    Where.RANKS: "ranks",
    Where.COMPARE: "compare",
    Where.PLAN: "plan",
}


def keys_of(where: Where) -> list[Key]:
    """The keys of a place."""
    return [key for key in KEYS if key.where is where]


def focusable(app: ZprofApp) -> Iterator[Widget]:
    """What can have the focus on the screen in front."""
    yield from (part for part in app.screen.query("*") if part.focusable and part.region)


def bound(app: ZprofApp) -> dict[str, str]:
    """Keys that work now, and their actions without a namespace."""
    found = app.screen.active_bindings
    return {key: plain(one.binding.action) for key, one in found.items()}


def plain(action: str) -> str:
    """An action without the namespace in which it is looked for."""
    return action.removeprefix("app.").removeprefix("screen.")


def drawn(app: ZprofApp) -> list[object]:
    """The terminal: every character with its style."""
    return [[(s.text, s.style) for s in strip] for strip in app.screen._compositor.render_strips()]


async def pressed(app: ZprofApp, pilot: Pilot[int], *keys: str) -> None:
    """Press them, one after the other."""
    for key in keys:
        await pilot.press(key)
        await pilot.pause()


async def shown(app: ZprofApp, pilot: Pilot[int], name: str) -> None:
    """The screen of this name, with nothing above it."""
    app.clear_notifications()
    app.action_show(name)
    await settled(app, pilot)


async def closed(app: ZprofApp, pilot: Pilot[int]) -> None:
    """Close what is open."""
    while isinstance(app.screen, Popup):
        await pressed(app, pilot, "escape")


def full_table(app: ZprofApp) -> FactTable | None:
    """A table with two rows at least."""
    tables = [table for table in app.screen.query(FactTable) if table.region and table.row_count > 1]
    return tables[0] if tables else None


def documented(wheres: Sequence[Where]) -> dict[str, set[str]]:
    """Keys of these places, and the actions that they may have."""
    found: dict[str, set[str]] = {"ctrl+c": {"copy_text"}}  # where text is selected; else it leaves
    for key in KEYS:
        if key.where in wheres:
            for one in key.keys.split(","):
                found.setdefault(one, set()).add(plain(key.action))
    return found
