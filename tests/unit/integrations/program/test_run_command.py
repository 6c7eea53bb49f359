"""A command as a child: its streams, its end, and the signals that are passed on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zprof.integrations.program.command import run_command
from zprof.model.errors import BadInput

PARENT = """
import os, sys
from zprof.integrations.program.command import run_command
sys.exit(run_command(sys.argv[1:], os.environ))
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
                ["sh", "-c", "cat; echo out; echo err >&2; exit 3"], os.environ, output=output, beside=beside
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
