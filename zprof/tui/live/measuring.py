"""Measures the windows that are over, in a process of its own that runs when nothing else wants to.

It is the report of a run that is not finished, ``zprof report RUN -f json``: the same leaves, the same rules.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from zprof.model.printable import printable
from zprof.run.live import LiveState
from zprof.tui.live.seen import Measured

_MOST_BYTES = 256 << 20
_MOST_SAID = 300
_END_S = 5.0
#: Starts a measurement whose output goes to these files.
Start = Callable[[Sequence[str], IO[bytes], IO[bytes]], "subprocess.Popen[bytes]"]


def start_when_idle(command: Sequence[str], output: IO[bytes], said: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start it so that it gives way to every other process: the job is measured at this very moment."""
    process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=said)
    with suppress(OSError, AttributeError):  # it may be over already, and not every system knows of idleness
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    return process


class Measuring:
    """Told of each look; starts anew when the ranks have written something that it has not seen."""

    def __init__(self, run: Path, start: Start = start_when_idle) -> None:
        self._command = (sys.executable, "-m", "zprof", "report", str(run), "-f", "json")
        self._start = start
        self._running: _Running | None = None
        self._before, self._taken = 0, 0
        self.now = Measured()

    def look(self, state: LiveState) -> Measured:
        """What is known now."""
        if self._running is not None and self._running.process.poll() is not None:
            self._take(self._running)
        settled, self._before = state.tables == self._before, state.tables
        if self._running is None and settled and state.tables != self._taken and _has_windows(state):
            self._begin(state.tables)
        return self.now

    def close(self) -> None:
        """Give up what runs."""
        if self._running is not None:
            self._running.process.kill()
            self._running.process.wait(_END_S)
            self._running.closed()
            self._running = None

    def _begin(self, tables: int) -> None:
        self._taken = tables
        output, said = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115, closed when it is over
        try:
            self._running = _Running(self._start(self._command, output, said), output, said)
        except OSError as error:
            self.now = Measured(tree=self.now.tree, problem=str(error.strerror))
            return
        self.now = Measured(tree=self.now.tree, busy=True)

    def _take(self, running: "_Running") -> None:
        tree = _tree(running.output) if running.process.returncode == 0 else None
        problem = _last_line(running.said) if tree is None else ""
        self.now = Measured(tree=self.now.tree if tree is None else tree, problem=problem)
        running.closed()
        self._running = None


class _Running(NamedTuple):
    """A measurement, and the files that it writes to."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    said: IO[bytes]

    def closed(self) -> None:
        self.output.close()
        self.said.close()


def _has_windows(state: LiveState) -> bool:
    return any(rank.manifest.memory_steps or rank.manifest.time_steps for rank in state.ranks)


def _tree(output: IO[bytes]) -> dict[str, object] | None:
    output.seek(0)
    content = output.read(_MOST_BYTES + 1)
    try:
        tree = json.loads(content) if len(content) <= _MOST_BYTES else None
    except ValueError:
        return None
    return tree if isinstance(tree, dict) else None


def _last_line(said: IO[bytes]) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - 4096))
    lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    return printable(lines[-1] if lines else "it could not be measured")[:_MOST_SAID]
