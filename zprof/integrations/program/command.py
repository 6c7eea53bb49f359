"""Runs any command as a child: streams as they are, signals passed on, its exit code returned.

A child that an interrupt has not ended in time is ended, with all that runs below it (``end_tree.py``).
"""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol

from zprof.integrations.program.end_tree import GRACE_S, TreeEnd
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
_INTERRUPTED = _SIGNAL_BASE + signal.SIGINT
#: How often to look for processes that are left after an interrupt.
_POLL_S = 0.1


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
    grace_s: float = GRACE_S,
    say: Callable[[str], None] = lambda note: None,
) -> int:
    """Run it to its end; its exit code, 128 + n where signal n ended it, 130 after an interrupt.

    Args:
        command: What to run.
        environment: Its variables.
        output: A file that gets what it writes; it then reads nothing.
        beside: Who has the terminal meanwhile.
        grace_s: From an interrupt to SIGTERM, and from there to SIGKILL, for all that still runs.
        say: Called with one line, when the terminal is free again, where something was ended so.

    Raises:
        BadInput: there is no such command.
    """
    if beside is None:
        code, note = _run(command, environment, output, None, grace_s)
    else:
        beside.start()
        try:
            code, note = _run(command, environment, output, beside, grace_s)
            beside.job_over(code)
        finally:
            beside.close()
    if note:
        say(note)
    return code


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes] | None,
    beside: Beside | None,
    grace_s: float,
) -> tuple[int, str]:
    """Return the exit code, and what had to be ended."""
    raise_lost_interrupt()
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = _start(command, environment, before, output)
        tree = TreeEnd(child.pid, grace_s)
        while child.poll() is None or tree.began:
            if beside is not None:
                beside.look()
            if tree.began and not tree.advance():
                break
            received = signal.sigtimedwait(watched, _POLL_S) if tree.began else signal.sigwaitinfo(watched)
            if received is None or received.si_signo == signal.SIGCHLD:
                continue
            if received.si_signo == signal.SIGINT:
                tree.interrupt()
            if _is_for_us_alone(received):
                child.send_signal(received.si_signo)
                if beside is not None:
                    beside.signalled(received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _exit_code(child, tree), tree.summary()


def _exit_code(child: subprocess.Popen[bytes], tree: TreeEnd) -> int:
    try:
        code = child.wait(_POLL_S if tree.began else None)
    except subprocess.TimeoutExpired:  # not even SIGKILL ends what waits for a dead device or file server
        return _INTERRUPTED
    if code >= 0:
        return code
    return _INTERRUPTED if tree.has_ended(child.pid) else _SIGNAL_BASE - code


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
