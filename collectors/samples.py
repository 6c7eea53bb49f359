"""Memory counters at step boundaries (table ``samples``)."""

import os
import time
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")


class SampleLog:
    """Columns of the ``samples`` table: the allocator's counters, and the process in memory."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, str, int | None, int | None, int | None]] = []

    def add(self, step: int) -> None:
        """Sample now, at the end of a step."""
        now_ns = time.time_ns()
        self._rows.append((now_ns, step, "cpu", None, None, _resident_bytes()))
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            device = torch.cuda.current_device()
            allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
            self._rows.append((now_ns, step, f"cuda:{device}", allocated, reserved, None))

    def columns(self) -> dict[str, list[object]]:
        """The table as columns."""
        names = ("time_ns", "step", "device", "allocated_bytes", "reserved_bytes", "process_bytes")
        return {name: [row[index] for row in self._rows] for index, name in enumerate(names)}


def _resident_bytes() -> int | None:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
