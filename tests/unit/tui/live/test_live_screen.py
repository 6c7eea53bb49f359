"""The live screen on a run that grows under it: the test polls, nothing is waited for."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO

import pytest
from textual.pilot import Pilot

from tests.support.growing_run import GrowingRun, line
from tests.support.tui_app import screen_text, wait_until
from zprof.model.json_format import to_json
from zprof.process.child import Child
from zprof.tui.keys import KEYS, Where
from zprof.tui.live.app import END_JOB, LiveApp
from zprof.tui.live.watcher import ReportPoller, Watcher
from zprof.tui.session import LoadedRun

Act = Callable[[LiveApp, Pilot[int]], Awaitable[None]]


def play(app: LiveApp, act: Act) -> LiveApp:
    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await act(app, pilot)

    asyncio.run(run())
    return app


async def poll(app: LiveApp, pilot: Pilot[int], times: int = 1) -> str:
    for _ in range(times):
        app.poll()
    for _ in range(3):
        await pilot.pause()
    return screen_text(app)


@pytest.fixture
def poller(alone: LoadedRun, tmp_path: Path) -> ReportPoller:
    """A measurement of tmp_path/run that gives the report of the slow run."""

    def start(command: Sequence[str], output: IO[bytes], errors: IO[bytes]) -> Child:
        process = Child([sys.executable, "-S", "-c", ""])
        process.wait()
        output.write(to_json(alone.report).encode())
        return process

    return ReportPoller(tmp_path / "run", start)


@pytest.mark.parametrize("ascii_only", [False, True], ids=["glyphs", "ascii"])
def test_a_recording_is_followed_to_its_end_and_all_screens_opened(
    tmp_path: Path, poller: ReportPoller, ascii_only: bool
) -> None:
    watcher = Watcher(tmp_path / "run", measuring=poller)

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        await poll(app, pilot)
        await pilot.press("w")
        assert app.is_running, "nothing is measured yet"
        run = GrowingRun(tmp_path / "run")
        assert "0 of 2 steps" in await poll(app, pilot)
        run.step(0, 100, 150, process_bytes=1 << 30)
        text = await poll(app, pilot)
        assert all(part in text for part in ("1 of 2 steps", "125.0 ms", "rank 1", "1.0 GiB"))
        assert text.count("unknown") >= 22, "ledger and tenants"
        for step in (1, 2):
            run.step(step, 100, 100, process_bytes=1 << 30)
        run.finish("partial", memory=1)
        text = await poll(app, pilot, 3)
        assert "0 of 3 steps" in text
        assert " 323.5 " in text
        assert "unknown" not in text
        assert text.isascii() or not ascii_only
        app.screen.query_one("#ledger").focus()
        await pilot.press("right", "enter")
        assert "time.per_rank[*].wall_ns" in await poll(app, pilot)
        await pilot.press("escape", "w")

    app = play(LiveApp(watcher, every_s=0, ascii_only=ascii_only), act)
    assert app.opens
    assert app.return_value == 0


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", END_JOB), (None, 0)])
def test_leaving_ending_the_job_and_the_end_of_the_command_differ(
    tmp_path: Path, key: str | None, code: int
) -> None:
    reader, writer = os.pipe()

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        await poll(app, pilot)
        if key is None:
            os.close(writer)
            app.poll()
            await pilot.pause()
        else:
            await pilot.press("question_mark", key)

    assert play(LiveApp(Watcher(tmp_path, job=reader), every_s=0), act).return_value == code
    os.close(reader)
    if key is not None:
        os.close(writer)


def test_names_and_output_of_the_job_are_text_and_damaged_lines_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\x1b[2J[bold]loss[/bold] 3.5\n")
    run = GrowingRun(tmp_path / "\x1b[2Jrun")
    run.step(0, 1, 1, device="[red]\x1b[3m", window="\x1b[31m", allocated_bytes=1)
    run.raw(0, b"\x1b]0;owned\x07\n" + b"x" * 99_999 + b"\n" + line(3))

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        shown = ("2 damaged lines", "\\x1b[2J[bold]loss[/bold] 3.5")
        await wait_until(pilot, lambda: all(part in screen_text(app) for part in shown))
        assert "\x1b" not in screen_text(app)

    play(LiveApp(Watcher(run.path, log=log), every_s=0.02), act)


def test_many_ranks_are_scrolled_and_sorted_and_every_key_is_bound(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, world_size=64)
    run.step(0, *(10.0 + rank for rank in range(64)))

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        first, last = "\n      0       1      10.0", "\n     63       1      73.0"
        text = await poll(app, pilot)
        assert (first in text, last in text) == (True, False)
        await pilot.press("s")
        assert last in await poll(app, pilot)
        await pilot.press("end")
        app.screen.query_one("#ranks").scroll_end(animate=False)
        text = await poll(app, pilot)
        assert first in text
        assert "rank   steps" in text, "the titles stay"
        bound = {key: active.binding.action for key, active in app.screen.active_bindings.items()}
        assert all(bound[key.keys] == key.action for key in KEYS if key.where is Where.LIVE)

    play(LiveApp(Watcher(tmp_path), every_s=0), act)
