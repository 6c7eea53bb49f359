"""Start one child process and end it, leaving nothing behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

_POLL_S = 0.01


class Child:
    """A running child, as a context manager that ends it at the end of the block.

    Args:
        command: The command line.
        environment: All its environment variables; by default those of this process.
        folder: Its working directory.
        leads_session: It leads a new session: all descendants in the session end with it, and no signal from
            the terminal reaches it.
        before: Called in the child before the command starts.
        pass_fds: Inherited file descriptors.

    Raises:
        OSError: The child cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdin: IO[bytes] | int | None = subprocess.DEVNULL,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
        leads_session: bool = False,
        before: Callable[[], None] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._leads_session = leads_session
        self._process = subprocess.Popen(
            list(command),
            env=None if environment is None else dict(environment),
            cwd=folder,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=leads_session,
            preexec_fn=before,
            pass_fds=pass_fds,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def number(self) -> int:
        """Its process number, which is not reused before the child is ended."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit code, or -n if signal n killed it; None while it runs."""
        if self._process.returncode is not None:
            return self._process.returncode
        try:
            state = os.waitid(os.P_PID, self.number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # this process ignores SIGCHLD, or other code has reaped it
            return self._process.poll()
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its exit and return its exit code; None if it still runs after ``timeout_s``."""
        if timeout_s is None and self._process.returncode is None:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.number, os.WEXITED | os.WNOWAIT)
            return self.poll()
        deadline_s = time.monotonic() + (timeout_s or 0.0)
        while (code := self.poll()) is None and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal only to this process, if it still runs."""
        if self.poll() is None:
            os.kill(self.number, number)

    def end(self, grace_s: float = 0.0) -> int:
        """End it (and its session if it leads one) and return its exit code. See ``end_children``."""
        end_children([self], grace_s)
        return self._process.returncode

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._leads_session:
                os.killpg(self.number, number)  # even if it has exited: its descendants may run
            else:
                self.send_signal(number)

    def _reap(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


def end_children(children: Iterable[Child], grace_s: float = 0.0) -> None:
    """End children with SIGTERM, and with SIGKILL if they still run after ``grace_s`` for all together.

    Without a grace period they are killed. A child that has already been ended is skipped, because process
    numbers are reused.
    """
    left = [child for child in children if child._process.returncode is None]
    if grace_s > 0:
        for child in left:
            child._send(signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        while time.monotonic() < deadline_s and any(child.poll() is None for child in left):
            time.sleep(_POLL_S)
    for child in left:
        child._send(signal.SIGKILL)
    for child in left:
        child._reap()


def start_idle(command: Sequence[str], output: IO[bytes], errors: IO[bytes]) -> Child:
    """Start a process at idle priority, to leave the recorded job undisturbed."""
    process = Child(command, stdout=output, stderr=errors)
    with suppress(OSError, AttributeError):  # it may have ended already, and not every system has SCHED_IDLE
        os.sched_setscheduler(process.number, os.SCHED_IDLE, os.sched_param(0))
    return process
