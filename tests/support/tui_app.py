"""The terminal UI without a terminal: an app on a measured run, driven by keys, and what it shows."""

import asyncio
from collections.abc import Awaitable, Callable

from textual.pilot import Pilot

from tests.support.outlooks import foreseen
from zprof.run.reader import load as open_run
from zprof.tui.app import ZprofApp
from zprof.tui.background import Predictor
from zprof.tui.popups import Popup
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, RunRequest

SMALL, MIDDLE, LARGE = (80, 24), (120, 36), (200, 50)
SIZES = (SMALL, MIDDLE, LARGE)
_MOST_PAUSES, _WHILE_READING_S = 600, 0.01
Act = Callable[[ZprofApp, Pilot[int]], Awaitable[None]]


def app_on(
    loaded: LoadedRun, *, ascii_only: bool = False, mono: bool = False, predictor: Predictor = foreseen
) -> ZprofApp:
    """An app on what is measured already; predictions are those of a test, not the planner's."""
    asked = RunRequest(path=loaded.run.path, opener=open_run)
    return ZprofApp(asked, loaded=loaded, ascii_only=ascii_only, mono=mono, predictor=predictor)


def play(app: ZprofApp, act: Act, size: tuple[int, int] = SMALL, *, notifications: bool = False) -> None:
    """Start the app and act in it; ``notifications``: messages are drawn."""

    async def run() -> None:
        async with app.run_test(size=size, notifications=notifications) as pilot:
            await settled(app, pilot)
            await act(app, pilot)

    asyncio.run(run())


async def settled(app: ZprofApp, pilot: Pilot[int]) -> None:
    """Until the screen in front is there and filled; a run that is still measured fills none."""
    for _ in range(_MOST_PAUSES):
        await pilot.pause()
        screen = app.screen
        if app.loaded is None:
            break
        if getattr(screen, "is_reading", False):
            await app.workers.wait_for_complete()
            await pilot.pause(_WHILE_READING_S)
            continue
        if isinstance(screen, Popup) or (isinstance(screen, PageScreen) and screen.filled is not None):
            break
    await pilot.pause()


def press(app: ZprofApp, *keys: str, size: tuple[int, int] = SMALL) -> str:
    """What the terminal shows after these keys."""
    seen: list[str] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        for key in keys:
            await pilot.press(key)
            await settled(app, pilot)
        seen.append(screen_text(app))

    play(app, act, size)
    return seen[0]


def screen_text(app: ZprofApp) -> str:
    """All that the terminal shows, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)
