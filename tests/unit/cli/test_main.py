"""main(): what it prints where, and which exit code it returns, also where a stream or memory fails."""

import errno
import io
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_calls import Call
from zprof.base.errors import CheckFailed, MissingData
from zprof.cli import console, entry
from zprof.cli.registry import COMMANDS
from zprof.process.memory_limit import find_exhausted_limit


@pytest.mark.parametrize("command", ["", *[entry.name for entry in COMMANDS]])
def test_help_has_an_example(call: Call, command: str) -> None:
    code, out, _ = call(*([command] if command else []), "--help")
    assert code == 0
    assert f"\n  zprof {command}" in out[out.rindex("examples:" if command else "Getting started:") :]
    if not command:
        assert all(entry.name in out for entry in COMMANDS)
        assert all(len(line) <= 80 for line in out.splitlines())


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Parsing, the first thing that main() does, fails."""

    def fail(arguments: object) -> None:
        raise error

    monkeypatch.setattr(entry, "parse", fail)


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
    call: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    monkeypatch.delenv("ZPROF_DEBUG", raising=False)
    failing(monkeypatch, error)
    got, out, err = call("report")
    assert (got, out) == (code, "")
    assert err.startswith("zprof: ")
    assert err.count("\n") == 1
    assert err.removesuffix("\n").isprintable()


def test_debug_shows_the_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZPROF_DEBUG", "1")
    failing(monkeypatch, ValueError("why"))
    code, _, err = call("report")
    assert (code, "Traceback" in err) == (70, True)


def test_a_limit_of_the_system_is_found_in_the_cause_of_an_error() -> None:
    limits = (OSError(errno.EMFILE, "x"), OSError(errno.EFBIG, "x"), RuntimeError("x. Too many open files"))
    for error in (*limits, ConnectionResetError(errno.ECONNRESET, "reset"), RuntimeError("a peer is gone")):
        outer = RuntimeError("broadcast failed")
        outer.__cause__ = error
        assert bool(find_exhausted_limit(error)) == bool(find_exhausted_limit(outer)) == (error in limits)


def test_a_terminal_without_glyphs_gets_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    console.print_data("✗ SLOWER 5 µs ██▍ 層\n")
    assert raw.getvalue() == b"x SLOWER 5 us ##| \\u5c64\n"


def shell(*arguments: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    root = str(Path(entry.__file__).parents[2])
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    environment = os.environ | {"PYTHONPATH": root, "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-m", "zprof", *map(str, arguments)]
    return subprocess.run(command, text=True, check=False, env=environment, **streams)


def test_stdout_that_cannot_be_written_is_one_line_and_code_2(runs: Path) -> None:
    with open("/dev/full", "w") as full:
        ends = [shell("report", runs / "good.zprof", stdout=full), shell("--help", stdout=full)]
    ends.append(shell("--help", stdout=None, preexec_fn=lambda: os.close(1)))
    for done in ends:
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith("zprof: ")


def test_a_reader_that_goes_away_ends_it_quietly(runs: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = shell("report", runs / "good.zprof", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "mebibytes",
    [32, pytest.param(100, marks=pytest.mark.slow), 180, pytest.param(260, marks=pytest.mark.slow)],
)
def test_a_limited_address_space_is_one_line_and_code_2(
    runs: Path, mebibytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of these is enough for pandas and pyarrow; at some of them OpenBLAS or the loader would crash."""
    monkeypatch.setenv("ZPROF_NO_CACHE", "1")
    limit = mebibytes << 20
    done = shell(
        "report",
        runs / "good.zprof",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f" {mebibytes} MiB" in done.stderr


def test_an_interrupt_that_became_another_error_is_an_interrupt(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(arguments: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("a module written in C") from None

    monkeypatch.setattr(entry, "parse", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, err = call("report")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, err) == (130, "zprof: interrupted\n")


def test_an_interrupt_within_exec_of_a_string_has_its_exit_code(tmp_path: Path) -> None:
    """Python ends a module by SIGINT where one passed through exec(), caught or not; imports run many."""
    (tmp_path / "interrupted.py").write_text(
        "import sys\n"
        "from zprof.cli import entry, main\n"
        "entry.parse = lambda arguments: exec('raise KeyboardInterrupt')\n"
        "sys.exit(main([]))\n"
    )
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[3])))
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "zprof: interrupted\n")
