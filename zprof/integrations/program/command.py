"""Run any command as a child: keep its streams, forward signals, return its exit code.

A child that does not end in time after an interrupt is terminated with all its descendants: SIGINT came from
the terminal or was forwarded, SIGTERM follows after a grace period, SIGKILL after another. A second interrupt
sends SIGKILL at once.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from zprof.model.errors import BadInput
from zprof.model.interrupts import raise_lost_interrupt

#: From the interrupt to SIGTERM, and from there to SIGKILL.
GRACE_S = 3.0
#: Some launchers forward the signal that the terminal has sent to all: that is not a second interrupt.
_SAME_INTERRUPT_S = 0.25
_MAX_NAMED = 8
_PROC = Path("/proc")
# Fields of proc_pid_stat(5), counted after the name in parentheses; start is in ticks since boot.
_STATE, _PARENT, _THREADS, _START = 0, 1, 17, 19


@dataclass(frozen=True, slots=True)
class Process:
    """A process; numbers are reused, but a number with its start time is unique."""

    number: int
    start: int


@dataclass(frozen=True, slots=True)
class _Entry:
    process: Process
    parent: int
    name: str


class TreeEnd:
    """Terminates the process tree of one command after its first interrupt.

    Descendants are found while their parents live, and remembered: one that outlives its parent becomes a
    child of init. A process that left the tree before the interrupt is a daemon and is not terminated.

    Args:
        root: Process number of the command, a child of this process.
        grace_s: Time between two signals.
    """

    def __init__(self, root: int, grace_s: float) -> None:
        self._root, self._grace_s = root, grace_s
        self._known: set[Process] = set()
        self._interrupted_s: float | None = None
        self._deadline_s = 0.0
        self._signals = [signal.SIGTERM, signal.SIGKILL]
        self._sent: dict[Process, tuple[str, signal.Signals]] = {}

    @property
    def began(self) -> bool:
        """True after an interrupt."""
        return self._interrupted_s is not None

    def interrupt(self) -> None:
        """Start the termination; a second interrupt kills the rest at once."""
        now = time.monotonic()
        if self._interrupted_s is None:
            self._interrupted_s, self._deadline_s = now, now + self._grace_s
        elif now > self._interrupted_s + _SAME_INTERRUPT_S:
            self._signals, self._deadline_s = [signal.SIGKILL], now

    def advance(self) -> bool:
        """Send the signal that is due; return False if nothing is left, or the rest cannot be killed."""
        running = self._find()
        now = time.monotonic()
        if not running or now < self._deadline_s:
            return bool(running)
        if not self._signals:
            return False
        number = self._signals.pop(0)
        for entry in running:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(entry.process.number, number)
                self._sent[entry.process] = entry.name, number
        self._deadline_s = now + self._grace_s
        return True

    def has_ended(self, number: int) -> bool:
        """Return whether this process was sent a terminating signal."""
        return any(process.number == number for process in self._sent)

    def summary(self) -> str:
        """Return one line with the signals that processes got; empty if the interrupt was enough."""
        if not self._sent:
            return ""
        named = [f"{name} {process.number} ({number.name})" for process, (name, number) in self._sent.items()]
        rest = len(named) - _MAX_NAMED
        return "ended after the interrupt: " + ", ".join(
            [*named[:_MAX_NAMED], *([f"{rest} more"] if rest > 0 else [])]
        )

    def _find(self) -> list[_Entry]:
        """Return the processes of the tree that still run."""
        entries = _read_processes()
        below: dict[int, list[_Entry]] = {}
        for entry in entries.values():
            below.setdefault(entry.parent, []).append(entry)
        pending = [self._root, *(process.number for process in self._alive(entries))]
        if self._root in entries:
            self._known.add(entries[self._root].process)
        while pending:
            for child in below.get(pending.pop(), ()):
                if child.process not in self._known:
                    self._known.add(child.process)
                    pending.append(child.process.number)
        return [entries[process.number] for process in self._alive(entries)]

    def _alive(self, entries: Mapping[int, _Entry]) -> Iterable[Process]:
        return [p for p in self._known if p.number in entries and entries[p.number].process == p]


def _read_processes() -> dict[int, _Entry]:
    """Return all running processes of this machine by number."""
    entries = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            before, _, after = (folder / "stat").read_text(errors="replace").rpartition(")")
        except OSError:  # it has ended in the meantime
            continue
        fields = after.split()
        # The main thread may end before the others.
        if fields[_STATE] not in "ZX" or int(fields[_THREADS]) > 1:
            process = Process(int(folder.name), int(fields[_START]))
            entries[process.number] = _Entry(process, int(fields[_PARENT]), before.partition("(")[2])
    return entries


#: Forwarded to the child, unless the terminal sent it: the child is in the same group and gets it too.
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
#: Polling interval for processes that are left after an interrupt.
_POLL_S = 0.1


class CommandWatcher(Protocol):
    """Owner of the terminal while the command runs; it is notified and must not block."""

    def start(self) -> None:
        """Prepare: the command is about to start."""

    def look(self) -> None:
        """Handle the end of a child of this process, which may not be the command."""

    def signalled(self, number: int) -> None:
        """Handle a signal that was forwarded to the command."""

    def job_over(self, code: int) -> None:
        """Handle the end of the command; return when the terminal is free again."""

    def close(self) -> None:
        """Free the terminal at once."""


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: IO[bytes] | None = None,
    beside: CommandWatcher | None = None,
    grace_s: float = GRACE_S,
    say: Callable[[str], None] = lambda note: None,
) -> int:
    """Run a command to its end and return its exit code: 128 + n for signal n, 130 after an interrupt.

    Args:
        command: The command line.
        environment: Its environment variables.
        output: A file for its output; its stdin is then empty.
        beside: Owner of the terminal in the meantime.
        grace_s: From an interrupt to SIGTERM, and from there to SIGKILL, for all processes that still run.
        say: Called with one line when the terminal is free again, if processes had to be terminated.

    Raises:
        BadInput: the command does not exist or cannot be run.
    """
    if beside is None:
        code, note = _run_watched(command, environment, output, None, grace_s)
    else:
        beside.start()
        try:
            code, note = _run_watched(command, environment, output, beside, grace_s)
            beside.job_over(code)
        finally:
            beside.close()
    if note:
        say(note)
    return code


def _run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes] | None,
    beside: CommandWatcher | None,
    grace_s: float,
) -> tuple[int, str]:
    """Return the exit code, and a summary of terminated processes."""
    raise_lost_interrupt()
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = _start_child(command, environment, before, output)
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
    except subprocess.TimeoutExpired:
        # Not even SIGKILL ends a process that waits for a dead device or file server.
        return _INTERRUPTED
    if code >= 0:
        return code
    return _INTERRUPTED if tree.has_ended(child.pid) else _SIGNAL_BASE - code


def _is_for_us_alone(received: signal.struct_siginfo) -> bool:
    """Return False for signals of the terminal (positive code) or this process: the whole group got them."""
    return received.si_code <= 0 and received.si_pid != os.getpid()


def _start_child(
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
