"""The view beside a job: the job never waits for it, and only its user can end the job through it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zprof.cli import live_view
from zprof.cli.live_view import LiveView, find_display_obstacle, should_show_live

#: A view that does as its first argument says; the pipe's end is the last but one of the others.
VIEW = """
import os, sys, time
pipe = int(sys.argv[sys.argv.index("--job") + 1])
what = sys.argv[1]
if what == "leave": sys.exit(0)
if what == "end": sys.exit(130)
if what == "crash": os.kill(os.getpid(), 9)
while content := os.read(pipe, 999):
    with open(sys.argv[2], "ab") as file: file.write(content)
    if what == "seen": sys.exit(0)
"""


class Views:
    """Makes views of that program."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.heard, self.left = folder, folder / "heard", 0
        (folder / "view.py").write_text(VIEW)

    def start(self, what: str) -> LiveView:
        view = LiveView(self.folder / "run", left=self._leave)
        view._command = [sys.executable, "-S", str(self.folder / "view.py"), what, str(self.heard)]
        view.start()
        return view

    def _leave(self) -> None:
        self.left += 1

    def ended(self, view: LiveView) -> None:
        """Looks once its process is over."""
        assert view._view is not None
        os.waitid(os.P_PID, view._view.pid, os.WEXITED | os.WNOWAIT)
        view.look()


@pytest.fixture
def views(tmp_path: Path) -> Views:
    return Views(tmp_path)


def test_who_leaves_is_told_once_and_the_job_goes_on(views: Views) -> None:
    view = views.start("leave")
    views.ended(view)
    view.look()
    view.job_over(0)  # returns at once
    assert views.left == 1


def test_a_view_that_crashes_is_a_note(views: Views, capsys: pytest.CaptureFixture[str]) -> None:
    views.ended(views.start("crash"))
    assert views.left == 1
    assert "the live view ended with exit code -9; the job goes on" in capsys.readouterr().err


def test_the_job_is_ended_as_the_terminal_would(views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(live_view.os, "killpg", lambda group, number: sent.append((group, number)))
    views.ended(views.start("end"))
    assert sent == [(os.getpgrp(), signal.SIGINT)]
    assert views.left == 0


def test_the_view_hears_of_the_end_and_is_waited_for(views: Views) -> None:
    view = views.start("seen")
    view.look()
    view.job_over(5)
    assert views.heard.read_bytes() == b'{"code": 5}\n'
    assert views.left == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_where_the_job_is_to_end_the_view_goes_first(views: Views, number: int) -> None:
    view = views.start("stay")
    view.signalled(signal.SIGUSR1)
    assert view._view is not None
    view.signalled(number)
    assert view._view is None
    view.close()


def test_a_view_that_will_not_go_is_ended(views: Views, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "_GO_S", 0.01)
    view = views.start("stay")
    process, kept = view._view, os.dup(view._pipe)
    view.close()
    os.close(kept)
    assert process is not None
    assert process.returncode == -9


def test_a_view_that_cannot_start_is_a_note(views: Views, capsys: pytest.CaptureFixture[str]) -> None:
    view = LiveView(Path("run"), left=views._leave)
    view._command = ["/no/such/program"]
    view.start()
    view.look()
    view.job_over(0)
    view.close()
    assert views.left == 1
    assert "no live view" in capsys.readouterr().err


def test_without_a_terminal_it_is_left_out_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert not should_show_live(True, Path("x.zprof"))
    assert "--live is left out, there is no terminal" in capsys.readouterr().err
    assert not should_show_live(False, Path("x.zprof"))
    assert capsys.readouterr().err == ""


def test_ranks_on_one_terminal_have_no_view_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert find_display_obstacle({"TERM": "xterm"}) == ""
    assert "ranks" in find_display_obstacle({"TERM": "xterm", "RANK": "0"})
    assert "screen" in find_display_obstacle({"TERM": "dumb"})


def test_record_goes_on_without_a_terminal(tmp_path: Path) -> None:
    program = ["sh", "-c", "echo out; exit 4"]
    done = subprocess.run(
        [sys.executable, "-m", "zprof", "record", "--live", "-o", str(tmp_path / "r"), "--", *program],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (4, "out\n")
    assert "zprof: --live is left out" in done.stderr
