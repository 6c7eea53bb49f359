"""Runs any command as a child: streams as they are, signals passed on, its exit code returned."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from zprof.model.errors import BadInput

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


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run it to its end; its exit code, 128 + n where signal n ended it.

    Raises:
        BadInput: there is no such command.
    """
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = _start(command, environment, before)
        while child.poll() is None:
            received = signal.sigwaitinfo(watched)
            # The kernel's own (positive) are from the terminal.
            if received.si_signo != signal.SIGCHLD and received.si_code <= 0:
                child.send_signal(received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else _SIGNAL_BASE - child.returncode


def _start(
    command: Sequence[str], environment: Mapping[str, str], mask: set[int | signal.Signals]
) -> subprocess.Popen[bytes]:
    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        return subprocess.Popen(list(command), env=dict(environment), preexec_fn=unblock)
    except OSError as error:
        raise BadInput(
            f"{command[0]}: cannot be run ({os.strerror(error.errno or 0)})",
            hint="a script needs its interpreter: zprof record -o RUN -- python train.py",
        ) from None
