"""A command as a child: its streams, its end, and the signals that are passed on."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from zprof.base.errors import BadInput
from zprof.process.command import run_command

ROOT = str(Path(__file__).parents[3])
PARENT = """
import os, sys
from zprof.process.command import run_command
say = lambda note: print(note, file=sys.stderr)
sys.exit(run_command(sys.argv[2:], os.environ, grace_s=float(sys.argv[1]), print_note=say))
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
#: Its child, in a session of its own, ignores the interrupt that ends the command itself a little later: a
#: descendant is found while its parent is there, for which a busy machine needs its time.
ORPHANING = """
import os, signal, time
def end_later(*_):
    time.sleep(1.5)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, end_later)
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(1, b"%d\\n" % os.getpid())
while True:  # a signal that comes just before the sleep does not end it
    time.sleep(0.05)
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


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137)])
def test_the_exit_code_is_that_of_a_shell(script: str, code: int) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert run_command(["sh", "-c", script], os.environ) == code
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_signals_that_the_parent_blocks_are_not_blocked_in_the_child() -> None:
    code = "import signal; raise SystemExit(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    assert run_command([sys.executable, "-c", code], os.environ) == 0


class Beside:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.start = lambda: self.told.append("start")
        self.poll = lambda: self.told.append("poll")
        self.close = lambda: self.told.append("close")
        self.handle_signal = lambda number: self.told.append(f"signal {number}")
        self.finish_job = lambda code: self.told.append(f"over {code}")


def test_the_owner_of_the_terminal_is_told_of_the_end(tmp_path: Path) -> None:
    observer, command = Beside(), ["sh", "-c", "cat; sleep 0.3; echo out; echo err >&2; exit 3"]
    with (tmp_path / "log").open("w+b") as output:
        assert run_command(command, os.environ, output=output, observer=observer) == 3
        output.seek(0)
        assert output.read() == b"out\nerr\n"
    assert (observer.told[0], observer.told[-2:]) == ("start", ["over 3", "close"])
    assert set(observer.told[1:-2]) == {"poll"}


@pytest.mark.parametrize("command", ["no-such-command-at-all", "/etc/passwd"])
def test_the_terminal_is_freed_if_nothing_can_be_run(command: str) -> None:
    observer = Beside()
    with pytest.raises(BadInput, match=command):
        run_command([command], os.environ, observer=observer)
    assert observer.told == ["start", "close"]


def start_parent(
    child: list[str],
    *,
    grace_s: float,
    number: int = signal.SIGINT,
    disposition: signal.Handlers = signal.SIG_DFL,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(grace_s), *child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": ROOT},
        start_new_session=True,
        # A shell cannot trap what was ignored when it began: tests in the background ignore SIGINT.
        preexec_fn=lambda: signal.signal(number, disposition),
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 9), (signal.SIGINT, 130)])
def test_a_signal_to_the_parent_reaches_the_child(number: signal.Signals, code: int) -> None:
    trap = f"trap 'echo got; exit 9' {number.name.removeprefix('SIG')}"
    child = ["sh", "-c", f"{trap}; echo ready; while :; do sleep 0.05; done"]
    parent = start_parent(child, grace_s=10, number=number)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(number)
        assert parent.communicate(timeout=30)[0] == "got\n"
        assert parent.returncode == code
    finally:
        parent.kill()
        parent.wait()


def is_running(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def interrupt(
    child: str, *, grace_s: float, started: int = 1, again: bool = False
) -> tuple[list[str], str, int]:
    """Return what the child printed, stderr and the exit code after SIGINT to the process group.

    ``started``: the lines that the child prints before it is interrupted.  ``again``: until it has ended.
    """
    parent = start_parent([sys.executable, "-c", child], grace_s=grace_s)
    assert parent.stdout is not None
    printed = [parent.stdout.readline().strip() for _ in range(started)]
    try:
        os.killpg(parent.pid, signal.SIGINT)
        for _ in range(20 if again else 0):
            time.sleep(0.5)
            if not any(is_running(int(line)) for line in printed):  # one more would hit the parent's exit
                break
            os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=30)
    finally:
        for left in (parent.pid, *(int(line) for line in printed if line.isdigit())):
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
    return [*printed, *out.splitlines()], err, parent.returncode


@pytest.mark.parametrize(
    ("child", "processes", "grace_s", "again", "end"),
    [
        (STUBBORN, 2, 0.3, False, "SIGKILL"),
        (STUBBORN, 2, 60.0, True, "SIGKILL"),
        (ORPHANING, 1, 4.0, False, "SIGTERM"),
    ],
    ids=["in time", "at the second interrupt", "orphan"],
)
def test_processes_that_outlive_an_interrupt_are_ended(
    child: str, processes: int, grace_s: float, again: bool, end: str
) -> None:
    printed, err, code = interrupt(child, grace_s=grace_s, started=processes, again=again)
    assert (len(printed), code) == (processes, 130)
    assert all(f" {process} ({end})" in err for process in printed)


def test_a_program_that_ends_in_time_is_left_alone() -> None:
    assert interrupt(SAVING, grace_s=10.0) == (["ready", "saved"], "", 130)


#: Goes on until it is told to end.
LISTENING = """
import sys
print("ready", flush=True)
print("got", sys.stdin.readline().strip())
"""


@pytest.mark.parametrize("to_all", [True, False])
def test_a_background_job_goes_on_after_an_interrupt(to_all: bool) -> None:
    """A shell's Ctrl-C reaches its background jobs, which ignore it: with zprof as without."""
    parent = start_parent([sys.executable, "-c", LISTENING], grace_s=0.1, disposition=signal.SIG_IGN)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        for _ in range(2):
            (os.killpg if to_all else os.kill)(parent.pid, signal.SIGINT)
            time.sleep(0.4)  # longer than the grace period
        assert parent.communicate("the end\n", timeout=30) == ("got the end\n", "")
        assert parent.returncode == 0
    finally:
        parent.kill()
        parent.wait()
