"""A child process: its end is the end of all that it started, and is said rightly."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zprof.process.child import Child, end_children
from zprof.process.ranks import Ranks

PATIENCE_S = 60
#: Starts a process that would live as long, and ends.
PARENT = f"""
import subprocess, sys
child = "import sys, time; print(flush=True); time.sleep({PATIENCE_S})"
subprocess.Popen([sys.executable, "-c", child])
"""
#: Says that it is ready, then ignores what is asked of it, or saves its work first.
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
SAVING = STUBBORN.replace("signal.SIG_IGN", "lambda *_: exit(5)")


def start(code: str, reader: int, writer: int) -> Child:
    """Start a program, and wait until it has printed a line."""
    child = Child([sys.executable, "-c", code], stdout=writer, leads_session=True)
    assert os.read(reader, 1) == b"\n"
    return child


@pytest.mark.parametrize("has_ended", [False, True])
def test_nothing_that_a_child_started_outlives_it(has_ended: bool) -> None:
    reader, writer = os.pipe()
    code = PARENT if has_ended else f"{PARENT}import signal; signal.pause()"
    child = start(code, reader, writer)
    os.close(writer)
    if has_ended:
        assert child.wait(PATIENCE_S) == 0
    child.end()
    assert select.select([reader], [], [], PATIENCE_S / 2)[0], "its end of the pipe is closed with it"
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert child.end() == (0 if has_ended else -signal.SIGKILL), "once more: nothing is sent to its number"


@pytest.mark.parametrize(
    ("code", "grace_s", "expected"),
    [(STUBBORN, 0.0, -signal.SIGKILL), (STUBBORN, 0.2, -signal.SIGKILL), (SAVING, float(PATIENCE_S), 5)],
)
def test_a_child_is_asked_before_it_is_killed(code: str, grace_s: float, expected: int) -> None:
    reader, writer = os.pipe()
    children = [start(code, reader, writer) for _ in range(2)]
    end_children(children, grace_s)
    assert [child.poll() for child in children] == [expected] * 2
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.abort()", -6)])
def test_an_exit_is_known_before_the_number_is_free(code: str, expected: int) -> None:
    with Child([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as child:
        assert child.wait(PATIENCE_S) == expected
        os.kill(child.number, 0)  # still ours
        assert child.wait(0) == expected
    with pytest.raises(ProcessLookupError):
        os.kill(child.number, 0)


def test_ranks_that_never_end_are_told_from_those_that_did(tmp_path: Path) -> None:
    code = "import os, signal; print('hello'); os.environ['RANK'] == '1' and signal.pause()"
    ranks = Ranks(
        ["-u", "-c", code],
        2,
        tmp_path,
        environment={},
        stdin=subprocess.PIPE,
        lead_sessions=True,
        failure_grace_s=0.1,
        end_grace_s=0.0,
    )
    with ranks:
        assert ranks.wait(timeout_s=3.0) == {0: 0}
    assert [child.poll() for child in ranks.children] == [0, -signal.SIGKILL]
    assert [ranks.read_output(rank) for rank in range(2)] == [["hello"]] * 2


def test_a_child_that_the_system_reaped_has_ended() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Child([sys.executable, "-S", "-c", ""]) as child:
            assert child.wait(PATIENCE_S) == 0
    finally:
        signal.signal(signal.SIGCHLD, before)
