"""When ``zprof tui`` shows the live view: on a run in progress, or where it was asked for."""

import io
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.growing_run import GrowingRun
from zprof.cli import main
from zprof.run.manifest import MANIFEST_NAME, to_json
from zprof.tui.app import ZprofApp
from zprof.tui.live.app import LiveApp

FINISHED = Path(__file__).parents[2] / "data" / "tui" / "zero3"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The apps that would be run on a terminal, which end at once."""
    found: list[object] = []
    monkeypatch.setattr(
        "zprof.cli.tui.sys", SimpleNamespace(stdin=Terminal(), stdout=Terminal(), stderr=Terminal())
    )
    monkeypatch.setattr("zprof.cli.tui.os.nice", lambda by: by)
    monkeypatch.setenv("TERM", "xterm-256color")
    for app in (ZprofApp, LiveApp):
        monkeypatch.setattr(app, "run", lambda self: found.append(self))
    return found


def test_a_run_in_progress_is_shown_live(tmp_path: Path, started: list[object]) -> None:
    run = GrowingRun(tmp_path)
    recent = replace(run.manifest, created_ns=time.time_ns())
    (tmp_path / MANIFEST_NAME).write_text(to_json(recent))
    assert main(["tui", str(tmp_path)]) == 0
    assert [type(app) for app in started] == [LiveApp]


def test_a_finished_run_is_not(started: list[object]) -> None:
    assert main(["tui", str(FINISHED)]) == 0
    assert [type(app) for app in started] == [ZprofApp]


def test_a_run_that_is_not_there_yet_can_be_waited_for(tmp_path: Path, started: list[object]) -> None:
    assert main(["tui", str(tmp_path / "not-yet.zprof"), "--live", "--ascii"]) == 0
    (app,) = started
    assert isinstance(app, LiveApp)
    assert app.ascii_only


def test_who_opens_the_run_goes_on_to_all_screens(
    monkeypatch: pytest.MonkeyPatch, started: list[object]
) -> None:
    def run(self: LiveApp) -> None:
        started.append(self)
        self.opens = True

    monkeypatch.setattr(LiveApp, "run", run)
    assert main(["tui", str(FINISHED), "--live"]) == 0
    assert [type(app) for app in started] == [LiveApp, ZprofApp]


def test_without_a_terminal_the_report_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", str(FINISHED), "--live"]) == 0
    assert "323.5 ms a step" in capsys.readouterr().out
