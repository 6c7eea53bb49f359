"""``zprof tui`` before it takes the screen: a report in a pipe, one line for what cannot be shown."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from zprof.cli import main
from zprof.cli.tui import TuiCommand
from zprof.tui.app import ZprofApp

DATA = Path(__file__).parents[2] / "data" / "tui"
RUN, BASELINE = DATA / "zero3", DATA / "ddp"


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[ZprofApp]:
    """A terminal; the apps that would be run on it, which end at once."""
    started: list[ZprofApp] = []

    def run(app: ZprofApp) -> None:
        started.append(app)

    monkeypatch.setattr(
        "zprof.cli.tui.sys", SimpleNamespace(stdin=Terminal(), stdout=Terminal(), stderr=Terminal())
    )
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(ZprofApp, "run", run)
    return started


def one_line(err: str) -> str:
    assert err.count("\n") == 1, err
    assert err.startswith("zprof: ")
    assert "Traceback" not in err
    return err


def test_a_pipe_gets_the_report() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zprof", "tui", str(RUN), "--baseline", str(BASELINE)],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "SLOWER" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_same_report_as_of_zprof_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", str(RUN)]) == 0
    shown = capsys.readouterr().out
    assert main(["report", str(RUN)]) == 0
    assert shown == capsys.readouterr().out


def test_a_dumb_terminal_gets_the_report(
    terminal: list[ZprofApp], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert main(["tui", str(RUN)]) == 0
    assert not terminal
    assert "NOT MEASURED" in capsys.readouterr().out


@pytest.mark.parametrize("is_baseline", [False, True])
def test_what_cannot_be_opened_is_one_line(
    terminal: list[ZprofApp], capsys: pytest.CaptureFixture[str], tmp_path: Path, is_baseline: bool
) -> None:
    damaged = tmp_path / "damaged.zprof"
    shutil.copytree(RUN, damaged)
    (damaged / "manifest.json").write_text("{")
    for path, says in ((tmp_path / "none", "no such run"), (damaged, "not a manifest")):
        arguments = [str(RUN), "--baseline", str(path)] if is_baseline else [str(path)]
        assert main(["tui", *arguments]) == 2
        assert says in one_line(capsys.readouterr().err)
    assert not terminal


def test_a_run_of_no_rank_is_one_line(
    terminal: list[ZprofApp], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty.zprof"
    empty.mkdir()
    shutil.copy(RUN / "manifest.json", empty)
    assert main(["tui", str(empty)]) == 3
    assert "no rank finished" in one_line(capsys.readouterr().err)
    assert not terminal


@pytest.mark.parametrize("has_terminal", [False, True])
def test_a_wrong_theme_lists_the_names(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], has_terminal: bool
) -> None:
    started = request.getfixturevalue("terminal") if has_terminal else []
    assert main(["tui", str(RUN), "--theme", "dracul\x1b[2Ja"]) == 2
    err = one_line(capsys.readouterr().err)
    assert "textual-light" in err
    assert "ansi-dark" in err
    assert "\x1b" not in err
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
def test_how_it_looks(
    terminal: list[ZprofApp], monkeypatch: pytest.MonkeyPatch, options: list[str], theme: str,
    is_ascii: bool, is_mono: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("NO_COLOR", "1" if is_mono else "")
    assert main(["tui", str(RUN), *(option for option in options if option != "NO_COLOR")]) == 0
    (app,) = terminal
    assert (app.theme, app.ascii_only, app.mono) == (theme, is_ascii, is_mono)


def test_a_trace_is_imported_before_the_screen(
    terminal: list[ZprofApp], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0 * at, "dur": 5.0}
        for at in range(4)
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert main(["tui", str(trace)]) == 0
    assert "importing" in capsys.readouterr().err
    (app,) = terminal
    assert app.asked.opener(trace).ranks == (0,)


def test_the_work_of_a_step_can_be_said(terminal: list[ZprofApp]) -> None:
    said = ["--tokens-per-step", "512", "--baseline-tokens-per-step", "128"]
    assert main(["tui", str(RUN), "--baseline", str(BASELINE), *said]) == 0
    (app,) = terminal
    tokens = [app.asked.opener(path).manifest.training.tokens_per_step for path in (RUN, BASELINE)]
    assert tokens == [512, 128]


def test_leaving_while_it_measures_does_not_wait(
    terminal: list[ZprofApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr(ZprofApp, "has_threads", property(lambda app: True))
    main(["tui", str(RUN)])
    assert ended == [0]


def test_the_help_has_an_example() -> None:
    assert "zprof tui zero3.zprof --baseline ddp.zprof" in (TuiCommand.__doc__ or "")
