"""Collect the recorder's own tables while the program runs: ``mark`` (steps, windows, pings) and
``samples`` (memory counters at step boundaries).
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, field

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_STATM = Path("/proc/self/statm")
_SAMPLE_COLUMNS = (
    "time_ns", "step", "device", "allocated_bytes", "reserved_bytes", "process_bytes", "active_bytes",
    "requested_bytes", "split_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "retries", "ooms",
)  # fmt: skip
#: Key of each counter in ``torch.cuda.memory_stats()``.
_COUNTERS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "active_bytes": "active_bytes.all.current",
    "requested_bytes": "requested_bytes.all.current",
    "split_bytes": "inactive_split_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
}


class MarkLog(Struct):
    """Columns of the ``mark`` table, appended to while the program runs.

    ``loop_thread``: the thread that added the first mark of a step. Processor time is recorded only on this
    thread, so the difference between two marks never mixes threads.
    """

    time_ns: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    thread_cpu_ns: list[int | None] = field(default_factory=list)
    thread_queued_ns: list[int | None] = field(default_factory=list)
    loop_thread: int | None = None
    _lock: Any = field(default_factory=threading.Lock)

    def add(self, kind: str, number: int, name: str = "", at_ns: int | None = None) -> int:
        """Add a mark, by default at the current time, and return its time."""
        return self._add(kind, number, name, at_ns, (None, None))

    def _add(
        self, kind: str, number: int, name: str, at_ns: int | None, cpu: tuple[int | None, int | None]
    ) -> int:
        with self._lock:  # a watch adds marks from a thread of its own
            at_ns = time.time_ns() if at_ns is None else at_ns
            self.time_ns.append(at_ns)
            self.kind.append(kind)
            self.number.append(number)
            self.name.append(name)
            self.thread_cpu_ns.append(cpu[0])
            self.thread_queued_ns.append(cpu[1])
        return at_ns

    def add_step_mark(self, kind: str, number: int) -> int:
        """Add the start or the end of a step with the times of its thread; return its time."""
        thread = threading.get_ident()
        self.loop_thread = self.loop_thread or thread
        at_ns = time.time_ns()
        cpu = _read_thread_times() if thread == self.loop_thread else (None, None)
        return self._add(kind, number, "", at_ns, cpu)

    def extend(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append the marks of a collector."""
        with self._lock:
            self.time_ns.extend(columns["time_ns"])
            self.kind.extend(columns["kind"])
            self.number.extend(columns["number"])
            self.name.extend(columns["name"])
            self.thread_cpu_ns.extend([None] * len(columns["name"]))
            self.thread_queued_ns.extend([None] * len(columns["name"]))

    def columns(self) -> dict[str, Sequence[Any]]:
        """Return the columns of the table."""
        with self._lock:
            return {
                "time_ns": [*self.time_ns],
                "kind": [*self.kind],
                "number": [*self.number],
                "name": [*self.name],
                "thread_cpu_ns": [*self.thread_cpu_ns],
                "thread_queued_ns": [*self.thread_queued_ns],
            }


def _read_thread_times() -> tuple[int, int | None]:
    """Return the processor time of this thread, and how long it has waited for a processor, if known."""
    try:
        used, queued = _SCHEDSTAT.read_text().split()[:2]
        return int(used), int(queued)
    except (OSError, ValueError):
        return time.thread_time_ns(), None


class SampleLog:
    """Columns of the ``samples`` table: the allocator's counters and the resident memory of the process."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, step: int) -> Mapping[str, Any]:
        """Sample the counters after ``step`` (-1 before the first) and return those for the step log."""
        now = {"time_ns": time.time_ns(), "step": step}
        try:
            resident = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            resident = None
        self._rows.append(now | {"device": "cpu", "process_bytes": resident})
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return {"process_bytes": resident}
        name = f"cuda:{torch.cuda.current_device()}"
        stats = torch.cuda.memory_stats(torch.cuda.current_device())
        counters = {column: stats.get(key) for column, key in _COUNTERS.items()}
        self._rows.append(now | {"device": name} | counters)
        logged = {column: counters[column] for column in ("allocated_bytes", "peak_allocated_bytes")}
        return {"process_bytes": resident, "device": name} | logged

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of the table."""
        return {column: [row.get(column) for row in self._rows] for column in _SAMPLE_COLUMNS}
