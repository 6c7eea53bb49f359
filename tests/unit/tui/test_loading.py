"""The first picture comes from the manifest; what is measured comes later, and of several only the last."""

import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.tui_app import play, screen_text
from zprof.model.errors import BadInput
from zprof.run.reader import load as open_run
from zprof.tui.app import ZprofApp
from zprof.tui.screens.page_screen import PageScreen
from zprof.tui.session import LoadedRun, Progress, RunRequest

_MOST_PAUSES = 400


class Gate:
    """A loader that waits until it is let through; of several, each by its baseline."""

    def __init__(self, loaded: LoadedRun) -> None:
        self.loaded, self.said = loaded, "measuring zero3: 2 ranks"
        self.gates: dict[Path | None, threading.Event] = {}
        self.ended: list[Path | None] = []

    def __call__(self, asked: RunRequest, progress: Progress, /) -> LoadedRun:
        gate = self.gates.setdefault(asked.baseline, threading.Event())
        progress(self.said)
        gate.wait(60)
        try:
            progress("asking the rules")
        finally:
            self.ended.append(asked.baseline)
        return self.loaded

    def open(self, baseline: Path | None) -> None:
        self.gates.setdefault(baseline, threading.Event()).set()


async def until(pilot: Pilot[int], is_so: Callable[[], bool]) -> None:
    for _ in range(_MOST_PAUSES):
        if is_so():
            return
        await pilot.pause(0.02)
    pytest.fail("it did not come to be")


def test_the_first_picture_is_from_the_manifest(alone: LoadedRun, slow_run: Path) -> None:
    gate = Gate(alone)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "measuring zero3: 2 ranks ..." in screen_text(app))
        text = screen_text(app)
        assert "zero3 · 2 ranks · 5 steps" in text
        assert "ZP401" not in text
        await pilot.press("3", "y", "o", "enter", "f1")
        await pilot.pause()
        assert "all keys" in screen_text(app)
        await pilot.press("escape", "1")
        assert app.loaded is None
        gate.open(None)
        await until(pilot, lambda: "ZP401" in screen_text(app))
        assert app.focused is not None
        assert not app.is_measuring
        assert isinstance(app.screen, PageScreen)

    play(ZprofApp(RunRequest(path=slow_run, opener=open_run), loader=gate), act)


def test_what_was_measured_is_not_looked_through_for_garbage(alone: LoadedRun, slow_run: Path) -> None:
    gc.unfreeze()
    gate = Gate(alone)
    gate.open(None)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.loaded is not None)
        assert not any(one is alone for one in gc.get_objects())

    play(ZprofApp(RunRequest(path=slow_run, opener=open_run), loader=gate), act)
    gc.freeze()


def test_another_baseline_stops_the_measuring_before(
    alone: LoadedRun, loaded: LoadedRun, slow_run: Path
) -> None:
    gate, other = Gate(loaded), Path("other.zprof")

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.is_measuring and None in gate.gates)
        app._compare_with(str(other))
        await until(pilot, lambda: other in gate.gates)
        gate.open(None)
        await until(pilot, lambda: gate.ended == [None])
        await pilot.pause()
        assert app.loaded is None
        assert app.is_measuring
        gate.open(other)
        await until(pilot, lambda: app.loaded is not None)
        assert app.asked.baseline == other

    play(ZprofApp(RunRequest(path=slow_run, opener=open_run), loader=gate), act)


@pytest.mark.parametrize(
    "error", [BadInput("a/b[bold]: torn", hint="record again"), ZeroDivisionError("x\x1b[2J")]
)
def test_what_cannot_be_measured_is_said(alone: LoadedRun, slow_run: Path, error: Exception) -> None:
    def fails(asked: RunRequest, progress: Progress, /) -> LoadedRun:
        raise error

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        says = "a/b[bold]: torn (record again)" if isinstance(error, BadInput) else "internal error, Zero"
        await until(pilot, lambda: says in screen_text(app))
        assert "\x1b" not in screen_text(app)
        await pilot.press("q")
        assert app.return_code == 0

    play(ZprofApp(RunRequest(path=slow_run, opener=open_run), loader=fails), act)


def test_a_baseline_that_cannot_be_opened_leaves_what_was_there(loaded: LoadedRun) -> None:
    def refuses(asked: RunRequest, progress: Progress, /) -> LoadedRun:
        raise BadInput(f"{asked.baseline}: no such run", hint="give the folder")

    asked = RunRequest(path=loaded.run.path, opener=open_run)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        await pilot.press("b")
        await pilot.press(*"nope", "enter")
        await until(pilot, lambda: not app.is_measuring)
        await pilot.pause()
        assert app.loaded is loaded
        assert app.asked == asked
        assert "nope: no such run" in " ".join(note.message for note in app._notifications)
        assert "ZP401" in screen_text(app)

    play(ZprofApp(asked, loaded=loaded, loader=refuses), act)


def test_a_later_success_takes_the_message_of_a_failure_away(loaded: LoadedRun) -> None:
    gate = Gate(replace(loaded))
    gate.open(Path("good"))

    def some(asked: RunRequest, progress: Progress, /) -> LoadedRun:
        if asked.baseline == Path("bad"):
            raise BadInput("bad: no such run", hint="give the folder")
        return gate(asked, progress)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app._compare_with("bad")
        await until(pilot, lambda: bool(app._notifications))
        app._compare_with("good")
        assert not app._notifications
        app.notify("meanwhile")
        await until(pilot, lambda: not app.is_measuring)
        await pilot.pause()
        assert not app._notifications

    play(ZprofApp(RunRequest(path=loaded.run.path, opener=open_run), loaded=loaded, loader=some), act)


def test_rank_and_step_stay_where_they_were(loaded: LoadedRun) -> None:
    gate = Gate(replace(loaded))
    gate.open(None)

    async def act(app: ZprofApp, pilot: Pilot[int]) -> None:
        app.select(rank=0, step=6)
        before = app.selected
        app.measure(app.asked)
        await until(pilot, lambda: not app.is_measuring)
        assert app.loaded is gate.loaded
        assert app.selected == before

    play(ZprofApp(RunRequest(path=loaded.run.path, opener=open_run), loaded=loaded, loader=gate), act)
