"""Ends a command, and all processes below it, that an interrupt has not ended in time.

SIGINT came from the terminal, or was passed on; SIGTERM follows after a grace period, SIGKILL after another.
A second interrupt is SIGKILL at once.
"""

import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: From the interrupt to SIGTERM, and from there to SIGKILL.
GRACE_S = 3.0
#: Some launchers pass on the signal that the terminal has sent to all: that is no second interrupt.
_SAME_INTERRUPT_S = 0.25
_MAX_NAMED = 8
_PROC = Path("/proc")
# Of proc_pid_stat(5), counted after the name in brackets: start in ticks since boot.
_STATE, _PARENT, _THREADS, _START = 0, 1, 17, 19


@dataclass(frozen=True, slots=True)
class Process:
    """A number is given out again, a number and a start are not."""

    number: int
    start: int


@dataclass(frozen=True, slots=True)
class _Entry:
    process: Process
    parent: int
    name: str


class TreeEnd:
    """Follows one command from the first interrupt on.

    Processes below the command are found while their parents live, and kept: one that outlives its parent
    is a child of init from then on.  What had left the tree before the interrupt is a daemon, and not ended.

    Args:
        root: Process number of the command, a child of this process.
        grace_s: Between two signals.
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
        """Whether there was an interrupt."""
        return self._interrupted_s is not None

    def interrupt(self) -> None:
        """Begin, or end the rest at once."""
        now = time.monotonic()
        if self._interrupted_s is None:
            self._interrupted_s, self._deadline_s = now, now + self._grace_s
        elif now > self._interrupted_s + _SAME_INTERRUPT_S:
            self._signals, self._deadline_s = [signal.SIGKILL], now

    def advance(self) -> bool:
        """Send what is due; False when nothing is left, or what is left cannot be ended."""
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
        """Whether this process was sent a signal that ends it."""
        return any(process.number == number for process in self._sent)

    def summary(self) -> str:
        """Which processes got which signal, on one line; empty where the interrupt was enough."""
        if not self._sent:
            return ""
        named = [f"{name} {process.number} ({number.name})" for process, (name, number) in self._sent.items()]
        rest = len(named) - _MAX_NAMED
        return "ended after the interrupt: " + ", ".join(
            [*named[:_MAX_NAMED], *([f"{rest} more"] if rest > 0 else [])]
        )

    def _find(self) -> list[_Entry]:
        """The processes of the tree that still run."""
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
    """All processes of this machine that have not ended, by number."""
    entries = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            before, _, after = (folder / "stat").read_text(errors="replace").rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        fields = after.split()
        if (
            fields[_STATE] not in "ZX" or int(fields[_THREADS]) > 1
        ):  # a first thread may end before the others
            process = Process(int(folder.name), int(fields[_START]))
            entries[process.number] = _Entry(process, int(fields[_PARENT]), before.partition("(")[2])
    return entries
