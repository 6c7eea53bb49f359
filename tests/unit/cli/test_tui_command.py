"""``zprof tui`` before it takes the screen: which app is started, a report in a pipe, errors in a line."""

import io
import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.support.command_calls import Call
from tests.support.growing_run import GrowingRun
from zprof.run.manifest import MANIFEST_NAME, to_json
from zprof.tui.app import ZprofApp
from zprof.tui.live.app import LiveApp

DATA = Path(__file__).parents[2] / "data" / "tui"
RUN, BASELINE = DATA / "zero3", DATA / "ddp"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ZprofApp | LiveApp]:
    """The apps that would be run on a terminal, which end at once."""
    found: list[ZprofApp | LiveApp] = []
    streams = SimpleNamespace(stdin=Terminal(), stdout=Terminal(), stderr=Terminal())
    monkeypatch.setattr("zprof.cli.tui.sys", streams)
    monkeypatch.setattr("zprof.cli.tui.os.nice", lambda by: by)
    monkeypatch.setenv("TERM", "xterm-256color")
    for app in (ZprofApp, LiveApp):
        monkeypatch.setattr(app, "run", lambda self: found.append(self))
    return found


Started = list[ZprofApp | LiveApp]


def test_without_a_terminal_the_report_is_printed(call: Call) -> None:
    _, report, _ = call("report", RUN)
    assert call("tui", RUN, "--live")[:2] == (0, report)


@pytest.mark.parametrize("options", [[], ["--baseline"]])
def test_what_cannot_be_opened_is_one_line(
    call: Call, started: Started, tmp_path: Path, options: list[str]
) -> None:
    damaged = shutil.copytree(RUN, tmp_path / "damaged.zprof")
    (damaged / "manifest.json").write_text("{")
    empty = tmp_path / "empty.zprof"
    empty.mkdir()
    shutil.copy(RUN / "manifest.json", empty)
    for path, wanted in ((tmp_path / "none", 2), (damaged, 2), (empty, 3)):
        code, _, err = call("tui", *([RUN] if options else []), *options, path)
        assert (code, err.count("\n"), path.name in err) == (wanted, 1, True)
    assert not started


@pytest.mark.parametrize(
    ("options", "theme", "is_ascii", "is_mono"),
    [
        ([], "textual-dark", False, False),
        (["--theme", "light"], "textual-light", False, False),
        (["--theme", "ansi-light", "--ascii"], "ansi-light", True, False),
        (["NO_COLOR"], "textual-dark", False, True),
    ],
)
def test_options_of_the_screen(
    call: Call, started: Started, monkeypatch: pytest.MonkeyPatch, options: list[str], theme: str,
    is_ascii: bool, is_mono: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("NO_COLOR", "1" if is_mono else "")
    assert call("tui", RUN, *(option for option in options if option != "NO_COLOR"))[0] == 0
    (app,) = started
    assert (app.theme, app.ascii_only, app.mono) == (theme, is_ascii, is_mono)


def test_a_trace_is_imported_before_the_screen(call: Call, started: Started, tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0 * at, "dur": 5.0}
        for at in range(4)
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert call("tui", trace)[0] == 0
    (app,) = started
    assert isinstance(app, ZprofApp)
    assert app.request.opener(trace).ranks == (0,)


def test_the_work_of_a_step_can_be_stated(call: Call, started: Started) -> None:
    said = ("--tokens-per-step", "512", "--baseline-tokens-per-step", "128")
    assert call("tui", RUN, "--baseline", BASELINE, *said)[0] == 0
    (app,) = started
    assert isinstance(app, ZprofApp)
    tokens = [app.request.opener(path).manifest.training.tokens_per_step for path in (RUN, BASELINE)]
    assert tokens == [512, 128]


def test_leaving_while_it_measures_does_not_wait(
    call: Call, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr(ZprofApp, "has_threads", property(lambda app: True))
    call("tui", RUN)
    assert ended == [0]


def test_only_a_run_in_progress_is_shown_live(call: Call, started: Started, tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    recent = replace(run.manifest, created_ns=time.time_ns())
    (tmp_path / MANIFEST_NAME).write_text(to_json(recent))
    assert call("tui", tmp_path)[0] == 0
    assert call("tui", RUN)[0] == 0
    assert [type(app) for app in started] == [LiveApp, ZprofApp]


def test_a_run_that_is_not_there_yet_can_be_waited_for(call: Call, started: Started, tmp_path: Path) -> None:
    assert call("tui", tmp_path / "not-yet.zprof", "--live", "--ascii")[0] == 0
    (app,) = started
    assert isinstance(app, LiveApp)
    assert app.ascii_only


def test_all_screens_follow_the_live_view(
    call: Call, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: LiveApp) -> None:
        started.append(self)
        self.opens = True

    monkeypatch.setattr(LiveApp, "run", run)
    assert call("tui", RUN, "--live")[0] == 0
    assert [type(app) for app in started] == [LiveApp, ZprofApp]
