"""Run any command as a child: keep its streams, forward signals, return its exit code.

A child that does not exit after an interrupt (SIGINT from the terminal, or forwarded) is terminated with all
its descendants: by SIGTERM after a grace period, and by SIGKILL after a second one. A second interrupt sends
SIGKILL at once.

Background jobs of a script ignore SIGINT. The child inherits this, and an interrupt then ends neither
process: the command runs as it would without zprof. SIGTERM is forwarded as always.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from msgspec import Struct

from zprof.base.errors import BadInput
from zprof.process.child import Child
from zprof.process.identity import PARENT, START, STATE, THREADS, read_name_and_fields
from zprof.process.interrupts import raise_lost_interrupt

#: Time from the interrupt to SIGTERM, and from SIGTERM to SIGKILL.
GRACE_S = 3.0
#: Time from SIGTERM to SIGKILL for a stuck command.
_END_GRACE_S = 10.0
#: Launchers may forward a signal that the terminal sent to the entire group; within this time it is not a
#: second interrupt.
_SAME_INTERRUPT_S = 0.25
_MAX_LISTED = 8
_PROC = Path("/proc")
#: Signals forwarded to the child, unless sent by the terminal, which reaches the child in the same group
#: anyway.
_FORWARDED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_SIGNAL_BASE = 128
_INTERRUPTED = _SIGNAL_BASE + signal.SIGINT
_ENDED = 1
#: Polling interval for processes that remain after an interrupt.
_POLL_S = 0.1
#: Polling interval of an observer.
_OBSERVER_POLL_S = 1.0


class ProcessId(Struct, frozen=True):
    """A process; process numbers are reused, but the number and the start time are unique."""

    number: int
    start: int


class _ProcessEntry(Struct, frozen=True):
    process: ProcessId
    parent: int
    name: str


class TreeTerminator:
    """Terminates the process tree of one command after its first interrupt.

    Descendants are found and remembered while their parents are running, because a process that outlives its
    parent becomes a child of init. A process that left the tree before the interrupt is a daemon and is not
    terminated.

    Args:
        root: Process number of the command, a child of this process.
        grace_s: Time between two signals.
    """

    def __init__(self, root: int, grace_s: float) -> None:
        self._root, self._grace_s = root, grace_s
        self._known: set[ProcessId] = set()
        self._interrupted_s: float | None = None
        #: True if the command was terminated because it was stuck.
        self.is_ended = False
        self._deadline_s = 0.0
        self._signals = [signal.SIGTERM, signal.SIGKILL]
        self._sent: dict[ProcessId, tuple[str, signal.Signals]] = {}

    @property
    def is_interrupted(self) -> bool:
        """True after an interrupt."""
        return self._interrupted_s is not None

    def interrupt(self) -> None:
        """Start the termination; a second interrupt kills the remaining processes at once."""
        now = time.monotonic()
        if self._interrupted_s is None:
            self._interrupted_s, self._deadline_s = now, now + self._grace_s
        elif now > self._interrupted_s + _SAME_INTERRUPT_S:
            self._signals, self._deadline_s = [signal.SIGKILL], now

    def end(self) -> None:
        """Start the termination of a stuck command, with SIGTERM now."""
        self.is_ended, self._grace_s = True, _END_GRACE_S
        self._interrupted_s = self._deadline_s = time.monotonic()

    def advance(self) -> bool:
        """Send the signal that is due; return False if no process is left or the rest cannot be killed."""
        running = self._find_running()
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

    def summarize(self) -> str:
        """List the signals that were sent, on one line; empty if the interrupt was enough."""
        if not self._sent:
            return ""
        entries = [
            f"{name} {process.number} ({number.name})" for process, (name, number) in self._sent.items()
        ]
        rest = len(entries) - _MAX_LISTED
        reason = "ended, because no rank moved" if self.is_ended else "terminated after the interrupt"
        return f"{reason}: " + ", ".join([*entries[:_MAX_LISTED], *([f"{rest} more"] if rest > 0 else [])])

    def _find_running(self) -> list[_ProcessEntry]:
        """Return the processes of the tree that are still running."""
        entries = _read_processes()
        children: dict[int, list[_ProcessEntry]] = {}
        for entry in entries.values():
            children.setdefault(entry.parent, []).append(entry)
        pending = [self._root, *(process.number for process in self._list_alive(entries))]
        if self._root in entries:
            self._known.add(entries[self._root].process)
        while pending:
            for child in children.get(pending.pop(), ()):
                if child.process not in self._known:
                    self._known.add(child.process)
                    pending.append(child.process.number)
        return [entries[process.number] for process in self._list_alive(entries)]

    def _list_alive(self, entries: Mapping[int, _ProcessEntry]) -> Iterable[ProcessId]:
        return [
            process
            for process in self._known
            if process.number in entries and entries[process.number].process == process
        ]


class CommandObserver:
    """Owner of the terminal while the command runs; this default does nothing.

    Its methods must not block, except ``finish_job``.
    """

    def start(self) -> None:
        """Prepare for the start of the command."""

    def poll(self) -> None:
        """Handle the end of a child of this process, which may not be the command; called once a second."""

    def handle_signal(self, number: int) -> None:
        """Handle a signal that was forwarded to the command."""

    def finish_job(self, code: int) -> None:
        """Handle the end of the command, and return when the terminal is available again."""

    def close(self) -> None:
        """Release the terminal at once."""


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    output: IO[bytes] | None = None,
    observer: CommandObserver | None = None,
    grace_s: float = GRACE_S,
    print_note: Callable[[str], None] = lambda note: None,
    is_stuck: Callable[[], bool] = lambda: False,
) -> int:
    """Run a command and return its exit code: 128 + n for signal n, 130 after an interrupt, 1 if stuck.

    Args:
        command: The command line.
        environment: Its environment variables.
        output: A file for its output; its stdin is then empty.
        observer: Owner of the terminal while the command runs.
        grace_s: Time from an interrupt to SIGTERM, and from SIGTERM to SIGKILL, for all remaining processes.
        print_note: Called with one line if processes had to be terminated, once the terminal is available.
        is_stuck: Called once a second, if there is an observer; True ends the command and its processes.

    Raises:
        BadInput: The command does not exist or cannot be run.
    """
    if observer is None:
        code, note = _run_watched(command, environment, output, None, grace_s, is_stuck)
    else:
        observer.start()
        try:
            code, note = _run_watched(command, environment, output, observer, grace_s, is_stuck)
            observer.finish_job(code)
        finally:
            observer.close()
    if note:
        print_note(note)
    return code


def _read_processes() -> dict[int, _ProcessEntry]:
    """Return all running processes on this machine by process number."""
    entries = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            name, fields = read_name_and_fields(int(folder.name))
        except OSError:  # it has exited in the meantime
            continue
        # The main thread may exit before the others.
        if fields[STATE] not in "ZX" or int(fields[THREADS]) > 1:
            process = ProcessId(int(folder.name), int(fields[START]))
            entries[process.number] = _ProcessEntry(process, int(fields[PARENT]), name)
    return entries


def _run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes] | None,
    observer: CommandObserver | None,
    grace_s: float,
    is_stuck: Callable[[], bool],
) -> tuple[int, str]:
    """Return the exit code, and a summary of terminated processes."""
    raise_lost_interrupt()
    signals = {*_FORWARDED_SIGNALS, signal.SIGCHLD}
    ignores_interrupts = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        child = _start_child(command, environment, before, output)
        tree = TreeTerminator(child.number, grace_s)
        while child.poll() is None or tree.is_interrupted:
            if observer is not None:
                observer.poll()
            if not tree.is_interrupted and is_stuck():
                tree.end()
            if tree.is_interrupted and not tree.advance():
                break
            received = _wait_for_signal(signals, tree, observer)
            if received is None or received.si_signo == signal.SIGCHLD:
                continue
            # While blocked, even an ignored SIGINT is delivered. A SIGINT from the observer is a user's
            # request.
            if received.si_signo == signal.SIGINT and (
                not ignores_interrupts or received.si_pid == os.getpid()
            ):
                tree.interrupt()
            # Signals from the terminal (positive code) or this process reached the whole group.
            if received.si_code <= 0 and received.si_pid != os.getpid():
                child.send_signal(received.si_signo)
                if observer is not None:
                    observer.handle_signal(received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _get_exit_code(child, tree), tree.summarize()


def _wait_for_signal(
    signals: set[signal.Signals], tree: TreeTerminator, observer: CommandObserver | None
) -> signal.struct_siginfo | None:
    """Return the next signal, or None when the processes or the observer are due for a poll."""
    if tree.is_interrupted:
        return signal.sigtimedwait(signals, _POLL_S)
    return signal.sigwaitinfo(signals) if observer is None else signal.sigtimedwait(signals, _OBSERVER_POLL_S)


def _get_exit_code(child: Child, tree: TreeTerminator) -> int:
    # Not even SIGKILL ends a process that is waiting for a dead device or file server.
    code = child.wait(_POLL_S if tree.is_interrupted else None)
    if code is not None:
        child.end()
    if tree.is_ended:
        return _ENDED
    if tree.is_interrupted or code is None:
        # Whether launchers turn the interrupt into an exception depends on the timing of their threads.
        return _INTERRUPTED
    return code if code >= 0 else _SIGNAL_BASE - code


def _start_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    mask: set[int | signal.Signals],
    output: IO[bytes] | None,
) -> Child:
    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        return Child(
            command,
            environment=environment,
            stdin=subprocess.DEVNULL if output else None,
            stdout=output,
            stderr=output,
            before=unblock,
        )
    except OSError as error:
        raise BadInput(
            f"{command[0]}: cannot be run ({os.strerror(error.errno or 0)})",
            hint="a script needs its interpreter: zprof record -o RUN -- python train.py",
        ) from None
