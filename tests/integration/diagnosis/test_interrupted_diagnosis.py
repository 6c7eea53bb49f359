"""A Ctrl-C at any moment of a diagnosis of many ranks: one line, exit code 130, and no process is left."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zprof.cli import main

ROOT = Path(__file__).parents[3]
TRIES = 30
#: Share of the tries in which Python itself is still starting, or zprof has just started.
EARLY_TRIES, EARLY_S = 10, 0.3
TIME_LIMIT_S = 300
#: How long workers may take to notice that their parent ended.
LEAVE_LIMIT_S = 30
#: A line of a traceback.
IN_MAIN = re.compile(r'zprof/cli/__init__\.py", line \d+, in main')
Outcome = tuple[int, str, str]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["traces", "run"])
def test_an_interrupted_diagnosis_says_so_in_one_line(source: str, tmp_path: Path) -> None:
    assert main(["simulate", "-o", str(tmp_path / "traces"), "--ranks", "64"]) == 0
    if source == "run":
        assert main(["import", str(tmp_path / "traces"), "-o", str(tmp_path / "run")]) == 0
    folder = tmp_path / source
    with busy_process():
        begin = time.monotonic()
        whole = diagnose_and_interrupt(folder, tmp_path / "cache", None)
        duration_s = time.monotonic() - begin
        assert whole[0] == 0
        draw = random.Random(48)
        outcomes = []
        for number in range(TRIES):
            limit_s = EARLY_S if number < EARLY_TRIES else duration_s
            moment = (draw.uniform(0, limit_s), number % 2 == 0)
            outcomes.append((moment, diagnose_and_interrupt(folder, tmp_path / f"cache{number}", moment)))
    kinds = [name_outcome(outcome, whole) for _, outcome in outcomes]
    wrong = [each for each, kind in zip(outcomes, kinds, strict=True) if kind == "wrong"]
    assert not wrong
    assert kinds.count("interrupted") >= TRIES / 2


def name_outcome(outcome: Outcome, whole: Outcome) -> str:
    """Tell what happened; "before zprof" and "finished" are moments that no command can answer."""
    code, out, error = outcome
    notes = error.removesuffix("zprof: interrupted\n")  # that traces are imported is said before
    if code == 130 and notes != error and whole[2].startswith(notes):
        return "interrupted"
    if outcome == whole:
        return "finished"
    # Python is killed, or says where it was; main() catches all that comes after it was entered.
    is_in_main = IN_MAIN.search(error) is not None or "zprof: " in error
    if code in (-signal.SIGINT, 1) and not out and not is_in_main:
        return "before zprof"
    return "wrong"


def diagnose_and_interrupt(folder: Path, cache: Path, moment: tuple[float, bool] | None) -> Outcome:
    """Diagnose in a session of its own; return exit code, stdout and stderr once no process is left.

    ``moment``: seconds until SIGINT, and whether all processes get it, as from a terminal, or only the first.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "zprof", "diagnose", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache), "ZPROF_NO_CACHE": "1"},
        start_new_session=True,
        # A background job of a script ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    if moment is not None:
        delay_s, to_all = moment
        try:
            process.wait(delay_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT) if to_all else process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=TIME_LIMIT_S)
    deadline = time.monotonic() + LEAVE_LIMIT_S
    while (left := list_session(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    return process.returncode, out, error


def list_session(session: int) -> list[str]:
    """Return the command lines of all processes of a session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # after the name, which may hold anything: state, parent, group, session
            if int(entry.read_text().rpartition(")")[2].split()[3]) == session:
                found.append((entry.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has just ended
            continue
    return found


@contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()
