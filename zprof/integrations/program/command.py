"""Runs any command as a child: streams as they are, signals passed on, its exit code returned."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Protocol

from zprof.model.errors import BadInput
from zprof.model.interrupts import raise_lost_interrupt

#: Passed on to the child.  One from the terminal reaches the child by itself: it is in the same group.
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_SIGNAL_BASE = 128


class Beside(Protocol):
    """What has the terminal while the command runs: told of what happens, and never in its way."""

    def start(self) -> None:
        """The command is about to begin."""

    def look(self) -> None:
        """A child of this process has ended, maybe another than the command."""

    def signalled(self, number: int) -> None:
        """This signal was passed on to the command."""

    def job_over(self, code: int) -> None:
        """It has ended; returns when the terminal is free again."""

    def close(self) -> None:
        """Free the terminal at once."""


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: IO[bytes] | None = None,
    beside: Beside | None = None,
) -> int:
    """Run it to its end; its exit code, 128 + n where signal n ended it.

    Args:
        command: What to run.
        environment: Its variables.
        output: A file that gets what it writes; it then reads nothing.
        beside: Who has the terminal meanwhile.

    Raises:
        BadInput: there is no such command.
    """
    if beside is None:
        return _run(command, environment, output, None)
    beside.start()
    try:
        code = _run(command, environment, output, beside)
        beside.job_over(code)
    finally:
        beside.close()
    return code


def _run(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None, beside: Beside | None
) -> int:
    raise_lost_interrupt()
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = _start(command, environment, before, output)
        while child.poll() is None:
            if beside is not None:
                beside.look()
            received = signal.sigwaitinfo(watched)
            if received.si_signo != signal.SIGCHLD and _is_for_us_alone(received):
                child.send_signal(received.si_signo)
                if beside is not None:
                    beside.signalled(received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else _SIGNAL_BASE - child.returncode


def _is_for_us_alone(received: signal.struct_siginfo) -> bool:
    """The kernel's own (positive) are from the terminal; those of this process went to the whole group."""
    return received.si_code <= 0 and received.si_pid != os.getpid()


def _start(
    command: Sequence[str],
    environment: Mapping[str, str],
    mask: set[int | signal.Signals],
    output: IO[bytes] | None,
) -> subprocess.Popen[bytes]:
    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        return subprocess.Popen(
            list(command),
            env=dict(environment),
            preexec_fn=unblock,
            stdin=subprocess.DEVNULL if output else None,
            stdout=output,
            stderr=output,
        )
    except OSError as error:
        raise BadInput(
            f"{command[0]}: cannot be run ({os.strerror(error.errno or 0)})",
            hint="a script needs its interpreter: zprof record -o RUN -- python train.py",
        ) from None
