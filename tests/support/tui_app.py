"""Run the terminal UI without a terminal: an app on a measured run, driven by keys."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.app import App
from textual.events import Key
from textual.pilot import Pilot

from zprof.run.reader import load as open_run
from zprof.tui.app import ZprofApp
from zprof.tui.background import Predictor, predict
from zprof.tui.popups import Popup
from zprof.tui.session import LoadedRun, RunRequest

SMALL, MIDDLE, LARGE = (80, 24), (120, 36), (200, 50)
_MAX_PAUSES, _QUIET_PAUSES, _PAUSE_S, _WHILE_READING_S = 2000, 4, 0.002, 0.01
Act = Callable[[ZprofApp, Pilot[int]], Awaitable[None]]


def app_on(
    loaded: LoadedRun, *, ascii_only: bool = False, mono: bool = False, predictor: Predictor = predict
) -> ZprofApp:
    """Return an app on a measured run."""
    request = RunRequest(path=loaded.run.path, opener=open_run)
    app = ZprofApp(request, loaded=loaded, ascii_only=ascii_only, mono=mono, predictor=predictor)
    app.animation_level = "none"
    return app


def play(app: ZprofApp, act: Act, size: tuple[int, int] = SMALL, *, notifications: bool = False) -> None:
    """Start the app and act in it; ``notifications``: messages are drawn."""

    async def run() -> None:
        async with app.run_test(size=size, notifications=notifications) as pilot:
            await settle(app, pilot)
            await act(app, pilot)

    asyncio.run(run())


async def settle(app: ZprofApp, pilot: Pilot[int]) -> None:
    """Wait until the screen in front is filled; a run that is still measured fills none.

    Messages are waited for, and not an idle processor as ``pilot.pause()`` does: that takes 20 ms each time.
    """
    quiet = 0
    for _ in range(_MAX_PAUSES):
        await pilot.pause(_PAUSE_S)
        screen = app.screen
        if getattr(screen, "is_reading", False):
            await pilot.pause(_WHILE_READING_S)
            quiet = 0
        elif app.loaded is None or isinstance(screen, Popup) or getattr(screen, "filled", True) is not None:
            quiet += 1  # a popup asks for its layout, and a screen for its data, some messages later
        if quiet == _QUIET_PAUSES:
            break


async def press(app: ZprofApp, pilot: Pilot[int], *keys: str) -> str:
    """Press keys one after the other and return what the terminal then shows."""
    for key in keys:
        if len(key) == 1 and not key.isalnum():
            await pilot.press(key)
        else:
            app.post_message(Key(key, key if len(key) == 1 else None))
        await settle(app, pilot)
    return screen_text(app)


async def wait_until(pilot: Pilot[int], condition: Callable[[], bool]) -> None:
    """Wait for what a worker thread does."""
    for _ in range(_MAX_PAUSES):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError("it did not happen")


async def finish_workers(app: ZprofApp, pilot: Pilot[int]) -> None:
    """Wait for files being written and runs being measured."""
    await app.workers.wait_for_complete()
    await pilot.pause()


def text_after(app: ZprofApp, *keys: str, size: tuple[int, int] = SMALL) -> str:
    """Start the app, press keys and return what the terminal shows."""
    seen: list[str] = []

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        seen.append(await press(app, pilot, *keys))

    play(app, act, size)
    return seen[0]


def messages(app: ZprofApp) -> list[str]:
    """Return the notifications that are open."""
    return [note.message for note in app._notifications]


def screen_text(app: App[Any]) -> str:
    """Return all that the terminal shows, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)
