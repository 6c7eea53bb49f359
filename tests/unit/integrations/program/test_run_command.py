"""A command as a child: its streams, its end, and the signals that are passed on."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from zprof.integrations.program.command import run_command
from zprof.model.errors import BadInput

PARENT = """
import os, sys
from zprof.integrations.program.command import run_command
sys.exit(run_command(sys.argv[1:], os.environ))
"""
IMPATIENT = """
import os, sys
from zprof.integrations.program.command import run_command
say = lambda note: print(note, file=sys.stderr)
sys.exit(run_command(sys.argv[2:], os.environ, grace_s=float(sys.argv[1]), say=say))
"""
#: Two generations in sessions of their own that no signal but SIGKILL ends; the first is the command.
STUBBORN = """
import os, signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
first = os.fork()
if first == 0:
    os.setsid()
os.write(1, b"%d\\n" % os.getpid())
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_the_exit_code_is_what_a_shell_would_say(script: str, code: int) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert run_command(["sh", "-c", script], os.environ) == code
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.parametrize("command", ["no-such-command-at-all", "/etc/passwd"])
def test_what_cannot_be_run_is_one_line(command: str) -> None:
    with pytest.raises(BadInput, match="cannot be run"):
        run_command([command], os.environ)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_to_the_parent_reaches_the_child(number: signal.Signals) -> None:
    child = (
        f"trap 'echo got; exit 9' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.05; done"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "sh", "-c", child],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
        # A shell cannot trap what was ignored when it began: tests in the background ignore SIGINT.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(number)
        assert parent.stdout.readline() == "got\n"
        assert parent.wait(30) == 9
    finally:
        parent.kill()
        parent.wait()


def test_the_child_has_the_signals_that_it_would_have() -> None:
    """Signals that the parent blocks to wait for them are not blocked in the child."""
    code = "import signal; raise SystemExit(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    assert run_command([sys.executable, "-c", code], os.environ) == 0


def test_it_speaks_on_the_same_streams() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT, "sh", "-c", "cat; echo error >&2; exit 3"],
        input="typed",
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
    )
    assert (done.stdout, done.stderr, done.returncode) == ("typed", "error\n", 3)


class Beside:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    def look(self) -> None:
        self.told.append("look")

    def signalled(self, number: int) -> None:
        self.told.append(f"signal {number}")

    def job_over(self, code: int) -> None:
        self.told.append(f"over {code}")

    def close(self) -> None:
        self.told.append("close")


def test_who_has_the_terminal_is_told_of_the_end(tmp_path: Path) -> None:
    beside = Beside()
    with (tmp_path / "log").open("w+b") as output:
        assert (
            run_command(
                ["sh", "-c", "cat; sleep 1; echo out; echo err >&2; exit 3"],
                os.environ,
                output=output,
                beside=beside,
            )
            == 3
        )
        output.seek(0)
        assert output.read() == b"out\nerr\n"
    assert (beside.told[0], beside.told[-2:]) == ("start", ["over 3", "close"])
    assert set(beside.told[1:-2]) == {"look"}


def test_the_terminal_is_freed_where_nothing_can_be_run() -> None:
    beside = Beside()
    with pytest.raises(BadInput):
        run_command(["no-such-command-at-all"], os.environ, beside=beside)
    assert beside.told == ["start", "close"]


#: Its child, in a session of its own, ignores the interrupt that ends the command itself.
ORPHANING = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(1, b"%d\\n" % os.getpid())
time.sleep(60)
"""
SAVING = """
import signal, sys, time
def save(number, frame):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(5)
signal.signal(signal.SIGINT, save)
print("ready", flush=True)
while True:  # a signal that comes just before the sleep does not end it
    time.sleep(0.05)
"""


def interrupted(
    child: str, *, grace_s: float, started: int = 1, interrupts: int = 1
) -> tuple[list[str], str, int]:
    """What the child printed, stderr, and the exit code, where the process group gets SIGINT.

    ``started``: the lines that the child prints before it is interrupted.
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, str(grace_s), sys.executable, "-c", child],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert parent.stdout is not None
    printed = [parent.stdout.readline().strip() for _ in range(started)]
    try:
        for number in range(interrupts):
            time.sleep(0.5 if number else 0)
            os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=15)
    finally:
        for left in (parent.pid, *(int(line) for line in printed if line.isdigit())):
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
    return [*printed, *out.splitlines()], err, parent.returncode


@pytest.mark.parametrize(("grace_s", "interrupts"), [(0.3, 1), (60.0, 2)])
def test_what_ignores_an_interrupt_is_ended_in_time_or_at_the_second_one(
    grace_s: float, interrupts: int
) -> None:
    printed, err, code = interrupted(STUBBORN, grace_s=grace_s, started=2, interrupts=interrupts)
    assert code == 130
    assert err.count("\n") == 1
    assert all(f" {process} (SIGKILL)" in err for process in printed)


def test_what_outlives_an_interrupted_parent_is_ended() -> None:
    (process,), err, code = interrupted(ORPHANING, grace_s=0.3)
    assert code == 130
    assert err.rstrip().endswith(f" {process} (SIGTERM)")


def test_a_program_that_ends_in_time_is_left_alone() -> None:
    assert interrupted(SAVING, grace_s=10.0) == (["ready", "saved"], "", 5)
