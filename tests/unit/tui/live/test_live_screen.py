"""The live screen on a run that grows under it: looks are made by the test, never waited for."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO

import pytest
from textual.pilot import Pilot

from tests.support.growing_run import GrowingRun, line
from zprof.model.json_format import to_json as render
from zprof.tui.keys import KEYS, Where
from zprof.tui.live.app import END_JOB, LiveApp
from zprof.tui.live.screen import LiveScreen
from zprof.tui.live.watcher import ReportPoller, Watcher
from zprof.tui.session import LoadedRun

Act = Callable[[LiveApp, Pilot[int]], Awaitable[None]]
SMALL = (80, 24)


class Reports:
    """A measurement that gives this report."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(
        self, command: Sequence[str], output: IO[bytes], said: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-S", "-c", ""])
        process.wait()
        output.write(self._path.read_bytes())
        return process


def live_app(
    path: Path, report: Path | None = None, *, ascii_only: bool = False, log: Path | None = None
) -> LiveApp:
    measuring = ReportPoller(path, Reports(report)) if report else None
    return LiveApp(Watcher(path, measuring=measuring, log=log), every_s=0, ascii_only=ascii_only)


def play(app: LiveApp, act: Act, size: tuple[int, int] = SMALL) -> LiveApp:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await act(app, pilot)

    asyncio.run(run())
    return app


async def looked(app: LiveApp, pilot: Pilot[int], times: int = 1) -> str:
    for _ in range(times):
        app.poll()
    for _ in range(3):
        await pilot.pause()
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


@pytest.fixture
def report(alone: LoadedRun, tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(render(alone.report))
    return path


def test_steps_are_seen_as_they_come_and_windows_when_they_are_over(tmp_path: Path, report: Path) -> None:
    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        assert "waiting for the first step" in await looked(app, pilot)
        run = GrowingRun(tmp_path / "run")
        assert "warming up, 0 of 2 steps done" in await looked(app, pilot)
        run.step(0, 100, 150, process_bytes=1 << 30)
        text = await looked(app, pilot)
        assert "warming up, 1 of 2 steps done" in text
        assert "step 0: median 125.0 ms, 100.0 to 150.0 over 2 ranks, longest rank 1" in text
        assert "1.0 GiB" in text
        assert text.count("unknown") >= 22  # ledger and tenants
        for step in (1, 2):
            run.step(step, 100, 100, process_bytes=1 << 30)
        assert "writing the memory window" in await looked(app, pilot)
        run.finish("partial", memory=1)
        text = await looked(app, pilot, 3)
        assert "time window, 0 of 3 steps done" in text
        assert "│ step time         323.5  100.0 %" in text  # of the report that stands for what is measured
        assert "unknown" not in text

    play(live_app(tmp_path / "run", report), act)


def test_all_goes_on_after_the_end(tmp_path: Path, report: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    run.finish("complete", memory=1, time=1)

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        assert "recorded (w shows all of it)" in await looked(app, pilot, 3)
        await pilot.press("w")

    app = play(live_app(tmp_path / "run", report), act)
    assert app.opens
    assert app.return_value == 0


def test_nothing_is_opened_before_something_is_measured(tmp_path: Path) -> None:
    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        await looked(app, pilot)
        await pilot.press("w")
        await pilot.pause()
        assert app.is_running

    assert not play(live_app(tmp_path), act).opens


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", END_JOB)])
def test_leaving_and_ending_the_job_differ(tmp_path: Path, key: str, code: int) -> None:
    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        await pilot.press("question_mark", key)

    assert play(live_app(tmp_path), act).return_value == code


def test_the_view_goes_when_its_command_does(tmp_path: Path) -> None:
    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        app.watcher._job.hung_up = True
        app.poll()
        await pilot.pause()

    assert play(live_app(tmp_path), act).return_value == 0


def test_what_the_job_writes_is_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\x1b[2J[bold]loss[/bold] 3.5\n")

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        text = await looked(app, pilot, 2)
        assert "\\x1b[2J[bold]loss[/bold] 3.5" in text
        assert "\x1b" not in text

    play(live_app(tmp_path / "run", log=log), act)


def test_a_hostile_run_is_shown_and_counted(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "\x1b[2Jrun")
    run.step(0, 1, 1, device="[red]\x1b[3m", window="\x1b[31m", allocated_bytes=1)
    run.raw(0, b"\x1b]0;owned\x07\n" + b"x" * 99_999 + b"\n" + line(3))

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        text = await looked(app, pilot)
        assert "\x1b" not in text
        assert "2 lines of the logs of steps are damaged" in text

    play(live_app(run.path), act)


def test_a_thousand_ranks_are_scrolled_and_sorted(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, world_size=64)
    run.step(0, *(10.0 + rank for rank in range(64)))

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        text = await looked(app, pilot)
        assert "\n      0       1      10.0" in text
        assert "      63       1      73.0" not in text
        await pilot.press("s")
        assert "\n     63       1      73.0" in await looked(app, pilot)
        await pilot.press("end")
        await pilot.pause(0.0)
        app.screen.query_one("#ranks").scroll_end(animate=False)
        text = await looked(app, pilot)
        assert "\n      0       1      10.0" in text
        assert "rank   steps" in text  # the titles stay
        assert "median ▼" in text
        await pilot.press("s")
        assert "▼" not in await looked(app, pilot)

    play(live_app(tmp_path), act)


def test_the_verdict_has_two_lines_and_the_status_is_of_the_run(
    tmp_path: Path, report: Path, alone: LoadedRun
) -> None:
    run = GrowingRun(tmp_path / "run")
    run.finish("complete", memory=1, time=1)

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        lines = (await looked(app, pilot, 3)).split("\n")
        first = next(at for at, line in enumerate(lines) if "RISK" in line)
        said = " ".join(f"{lines[first]} {lines[first + 1]}".split()).removesuffix("…")
        assert len(said) > 100
        assert alone.report.verdict.sentence.startswith(said)
        assert "RISK" not in lines[-2]
        assert lines[-2].strip().startswith("2 ranks")

    play(live_app(tmp_path / "run", report), act)


def test_enter_on_a_rank_says_what_opens(tmp_path: Path) -> None:
    GrowingRun(tmp_path / "run").step(0, 100, 150)

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        await looked(app, pilot)
        await pilot.press("enter")
        assert ["opens nothing" in note.message for note in app._notifications] == [True]

    play(live_app(tmp_path / "run"), act)


def test_ascii_has_no_glyphs(tmp_path: Path, report: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    run.step(0, 100, 150)
    run.finish("partial", memory=1)

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        text = await looked(app, pilot, 3)
        assert text.isascii(), [character for character in text if not character.isascii()]

    play(live_app(tmp_path / "run", report, ascii_only=True), act)


def test_a_number_opens(tmp_path: Path, report: Path) -> None:
    run = GrowingRun(tmp_path / "run")
    run.finish("partial", memory=1)

    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        await looked(app, pilot, 3)
        app.screen.query_one("#ledger").focus()
        await pilot.press("right", "enter")
        assert "time.per_rank[*].wall_ns" in await looked(app, pilot)

    play(live_app(tmp_path / "run", report), act)


def test_every_key_of_the_view_is_bound(tmp_path: Path) -> None:
    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        await looked(app, pilot)
        assert isinstance(app.screen, LiveScreen)
        bound = {key: active.binding.action for key, active in app.screen.active_bindings.items()}
        for key in KEYS:
            if key.where is Where.LIVE:
                assert bound[key.keys] == key.action
        await pilot.press("f1")
        text = await looked(app, pilot)
        assert all(key.says in text for key in KEYS if key.where is Where.LIVE)

    play(live_app(tmp_path), act, size=(120, 36))


def test_the_view_rests_after_each_look_and_draws_only_what_changed(tmp_path: Path) -> None:
    async def act(app: LiveApp, pilot: Pilot[int]) -> None:
        await looked(app, pilot)
        drawn: list[object] = []
        app.take = drawn.append  # type: ignore[assignment]
        app._looked(app.watcher.look(), 1000.0)
        assert drawn == []
        looks: list[int] = []
        app._look = lambda: looks.append(1)  # type: ignore[assignment, method-assign, return-value]
        app.begin_look()
        assert looks == []
        app._rests_until = 0.0
        app.begin_look()
        app.begin_look()  # the first has not come back
        assert looks == [1]
        GrowingRun(tmp_path / "run")
        app._looked(app.watcher.look(), 0.0)
        assert len(drawn) == 1

    play(live_app(tmp_path / "run"), act)
