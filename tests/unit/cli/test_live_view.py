"""The view beside a job: the job never waits for it, only its user can end the job, output is kept."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.growing_run import GrowingRun
from zprof.base.errors import BadInput
from zprof.cli import live_view
from zprof.cli.live_view import (
    JOB_LOG,
    LiveView,
    find_display_obstacle,
    open_job_log,
    should_show_live,
)

#: A view in place of ``python -m zprof tui RUN --live --job PIPE`` that does as the name of its run says.
VIEW = """\
#!{python} -S
import os, sys, time
run, pipe = sys.argv[4], int(sys.argv[sys.argv.index("--job") + 1])
what = os.path.basename(run)
if what == "leave": sys.exit(0)
if what == "end": sys.exit(130)
if what == "crash": os.kill(os.getpid(), 9)
if what == "ignore": time.sleep(600)
while content := os.read(pipe, 999):
    with open(run + ".heard", "ab") as file: file.write(content)
    if what == "seen": sys.exit(0)
open(run + ".gone", "w").close()
"""
PATIENCE_S = 60


class Views:
    """Starts views of that program and counts those that the user left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.leave_count = folder, 0

    def start(self, what: str) -> LiveView:
        view = LiveView(self.folder / what, on_leave=self._leave)
        view.start()
        return view

    def _leave(self) -> None:
        self.leave_count += 1

    def look_until(self, view: LiveView, is_over: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_over() and time.monotonic() < deadline:
            view.poll()
            time.sleep(0.01)


@pytest.fixture
def views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Views:
    program = tmp_path / "view"
    program.write_text(VIEW.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return Views(tmp_path)


@pytest.mark.parametrize("what", ["leave", "crash"])
def test_the_job_goes_on_without_a_view_that_ended(
    views: Views, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    view = views.start(what)
    views.look_until(view, lambda: views.leave_count)
    view.poll()
    view.finish_job(0)  # returns at once
    assert views.leave_count == 1
    assert ("exit code -9" in capsys.readouterr().err) is (what == "crash")


def test_the_job_is_ended_as_the_terminal_would(views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(live_view.os, "killpg", lambda group, number: sent.append((group, number)))
    views.look_until(views.start("end"), lambda: sent)
    assert sent == [(os.getpgrp(), signal.SIGINT)]
    assert views.leave_count == 0


def test_the_view_hears_of_the_end_and_is_waited_for(views: Views) -> None:
    view = views.start("seen")
    view.poll()
    view.finish_job(5)
    assert (views.folder / "seen.heard").read_bytes() == b'{"code": 5}\n'
    assert views.leave_count == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_where_the_job_is_to_end_the_view_goes_first(views: Views, number: int) -> None:
    view = views.start("stay")
    view.handle_signal(signal.SIGUSR1)
    assert not (views.folder / "stay.gone").exists()
    view.handle_signal(number)
    assert (views.folder / "stay.gone").exists()
    view.close()


@pytest.mark.slow
def test_a_view_that_will_not_go_is_killed(views: Views, capfd: pytest.CaptureFixture[str]) -> None:
    views.start("ignore").close()
    assert "\x1b[?25h" in capfd.readouterr().err, "the terminal is as before"


def test_a_screen_needs_a_terminal_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not should_show_live(True, Path("x.zprof"))
    assert "zprof tui x.zprof --live" in capsys.readouterr().err
    assert not should_show_live(False, Path("x.zprof"))
    assert capsys.readouterr().err == ""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert find_display_obstacle({"TERM": "xterm"}) == ""
    assert find_display_obstacle({"TERM": "xterm", "RANK": "0"})
    assert find_display_obstacle({"TERM": "dumb"})


def test_output_of_a_job_goes_into_its_run(tmp_path: Path) -> None:
    run = tmp_path / "folder" / "run.zprof"
    with open_job_log(run) as (path, file):
        file.write(b"loss 3\n")
        assert path.read_bytes() == b"loss 3\n"
        GrowingRun(run)
    assert (run / JOB_LOG).read_bytes() == b"loss 3\n"
    assert [each.name for each in run.parent.iterdir()] == ["run.zprof"]


def test_without_a_run_the_output_stays_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_job_log(tmp_path / "silent.zprof"):
        pass
    assert (list(tmp_path.iterdir()), capsys.readouterr().err) == ([], "")
    with open_job_log(tmp_path / "run.zprof") as (path, file):
        file.write(b"ImportError\n")
    assert path.read_bytes() == b"ImportError\n"
    assert str(path) in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput), open_job_log(tmp_path / "file/run"):
        pass
