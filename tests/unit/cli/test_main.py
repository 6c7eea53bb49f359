"""main(): what it prints where, and which exit code it returns."""

import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.schedules import Spec, play, write
from zprof.cli import console, entry, main
from zprof.cli.live_view import find_display_obstacle
from zprof.cli.progress import import_progress, steps_progress
from zprof.cli.registry import COMMANDS
from zprof.model.errors import CheckFailed, MissingData
from zprof.model.memory_limit import find_exhausted_limit
from zprof.version import __version__


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(ranks=2, steps=4)
    return write(tmp_path_factory.mktemp("runs") / "good.zprof", spec, play(spec))


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_report_goes_to_stdout_and_nothing_else(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    code, out, err = outcome(capsys, "report", str(run))
    assert (code, err) == (0, "")
    assert "WHERE THE TIME GOES" in out


def test_json_is_json(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    code, out, _ = outcome(capsys, "report", str(run), "--baseline", str(run), "-f", "json")
    assert code == 0
    assert json.loads(out)["comparison"]["baseline"] == "good"


def test_output_file_chooses_the_format_and_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.json"
    code, out, err = outcome(capsys, "report", str(run), "-o", str(target))
    assert (code, out) == (0, "")
    assert str(target) in err
    first = target.read_text()
    assert json.loads(first)["schema"] == "zprof.report/1"
    target.write_text("mine")
    code, _, err = outcome(capsys, "report", str(run), "-o", str(target))
    assert (code, target.read_text()) == (2, "mine")
    assert "--force" in err
    assert outcome(capsys, "report", str(run), "-o", str(target), "--force")[0] == 0
    assert target.read_text() == first
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "RUN", "-f", "yaml"], "formats: text, json"),
        (["report", "RUN", "-o", "TMP/report.xyz"], "add -f"),
        (["report", "RUN", "-o", "TMP/no/report.txt"], "no such folder"),
        (["report", "RUN", "-f", "json", "-o", "TMP"], "is a folder"),
        (["report", "RUN", "--expected-busbw", "fast"], "not a number above 0"),
        (["report"], "required: RUN"),
        (["repot", "RUN"], "invalid choice"),
        ([], "no command"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    filled = [a.replace("RUN", str(run)).replace("TMP", str(tmp_path)) for a in arguments]
    code, out, err = outcome(capsys, *filled)
    assert (code, out) == (2, "")
    assert err.startswith("zprof: ")
    assert err.count("\n") == 1
    assert words in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(capsys, "--version") == (0, f"zprof {__version__}\n", "")


@pytest.mark.parametrize("command", ["", *[entry.name for entry in COMMANDS]])
def test_help_has_an_example_and_fits(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = outcome(capsys, *([command] if command else []), "--help")
    assert code == 0
    assert f"\n  zprof {command}" in out[out.index("example") :]
    if command in ("", "report"):
        assert all(len(line) <= 80 for line in out.splitlines())


def test_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = outcome(capsys, "--help")
    assert all(entry.name in out and entry.summary.split()[0] in out for entry in COMMANDS)


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr(entry, "_run", fail)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailed("peak grew", hint="look"), 1),
        (MissingData("no steps", hint="record"), 3),
        (ValueError("x\ny\x1b[2J"), 70),
        (RecursionError(), 70),
        (MemoryError(), 2),
        (OSError(errno.ENOMEM, "x"), 2),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 2),
        (ImportError("no such name"), 70),
        (OSError(errno.ENOSPC, "x", "run.zprof/\x1b[2J"), 2),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), 2),
        (BrokenPipeError(errno.EPIPE, "x"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_one_line_and_their_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    monkeypatch.delenv("ZPROF_DEBUG", raising=False)
    failing(monkeypatch, error)
    got, out, err = outcome(capsys, "report")
    assert (got, out) == (code, "")
    assert err.startswith("zprof: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "x"), "Too many open files"),
        (RuntimeError("[enforce fail at device.cc] rv != -1. Too many open files"), "Too many open files"),
        (OSError(errno.EFBIG, "x"), "File too large"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), ""),
        (RuntimeError("a peer is gone"), ""),
    ],
)
def test_a_limit_of_the_system_is_told_from_other_errors(error: BaseException, words: str) -> None:
    outer = RuntimeError("broadcast failed")
    outer.__cause__ = error
    assert find_exhausted_limit(error) == find_exhausted_limit(outer) == words


def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZPROF_DEBUG", "1")
    failing(monkeypatch, ValueError("why"))
    code, _, err = outcome(capsys, "report")
    assert code == 70
    assert "Traceback" in err


def test_a_terminal_without_glyphs_gets_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    console.data("✗ SLOWER 5 µs ██▍ 層\n")
    assert raw.getvalue() == b"x SLOWER 5 us ##| \\u5c64\n"


def called(run: Path, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "zprof", *arguments, *([str(run)] if arguments[0] == "report" else [])]
    root = str(Path(entry.__file__).parents[2])
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    environment = os.environ | {"PYTHONPATH": root, "PYTHONUNBUFFERED": ""}
    return subprocess.run(command, text=True, check=False, env=environment, **streams)


@pytest.mark.parametrize("arguments", [["report"], ["report", "-f", "json"], ["--help"], ["plan", "--help"]])
def test_stdout_that_cannot_be_written_is_one_line_and_code_2(run: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = called(run, *arguments, stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("zprof: stdout: ")
    assert done.stderr.count("\n") == 1
    closed = called(run, *arguments, stdout=None, preexec_fn=lambda: os.close(1))
    assert closed.returncode == 2
    assert closed.stderr.count("\n") == 1


def test_a_reader_that_goes_away_ends_it_quietly(run: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = called(run, "report", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_stderr_that_cannot_be_written_changes_nothing(run: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = called(run, "report", "-o", str(tmp_path / "a.json"), stderr=full)
    assert (done.returncode, done.stdout) == (0, "")
    closed = called(
        run, "report", "-o", str(tmp_path / "b.json"), stderr=None, preexec_fn=lambda: os.close(2)
    )
    assert closed.returncode == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_progress_and_the_live_view_do_without_streams_that_were_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    with import_progress() as watch, steps_progress("a run", 2) as on_step:
        watch.begin(1, 1 << 30)
        on_step(1)
    assert find_display_obstacle({}) == "there is no terminal"


@pytest.mark.parametrize("mebibytes", [32, 100, 180, 260])
def test_a_limited_address_space_is_one_line_and_code_2(run: Path, mebibytes: int) -> None:
    """None of these is enough for pandas and pyarrow; at some of them OpenBLAS or the loader would crash."""
    limit = mebibytes << 20
    done = called(run, "report", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert (done.returncode, done.stdout) == (2, "")
    assert f" {mebibytes} MiB" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interrupt_that_was_turned_into_another_error_is_an_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(arguments: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("a module written in C") from None
        return 0

    monkeypatch.setattr(entry, "_run", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, err = outcome(capsys, "report")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, err) == (130, "zprof: interrupted\n")


def test_an_interrupt_within_exec_of_a_string_has_its_exit_code(tmp_path: Path) -> None:
    """Python ends a module by SIGINT where one passed through exec(), caught or not; imports run many."""
    (tmp_path / "interrupted.py").write_text(
        "import sys\n"
        "from zprof.cli import entry\n"
        "entry.parse = lambda arguments: exec('raise KeyboardInterrupt')\n"
        "sys.exit(entry.main([]))\n"
    )
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[3])))
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "zprof: interrupted\n")
