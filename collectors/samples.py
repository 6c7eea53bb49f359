"""Memory counters at step boundaries (table ``samples``)."""

import os
import time
from pathlib import Path
from typing import Any

import torch

_STATM = Path("/proc/self/statm")


_COLUMNS = (
    "time_ns", "step", "device", "allocated_bytes", "reserved_bytes", "process_bytes", "active_bytes",
    "requested_bytes", "split_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "retries", "ooms",
)  # fmt: skip
#: Where torch's allocator keeps each counter.
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


class SampleLog:
    """Columns of the ``samples`` table: the allocator's counters, and the process in memory."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, step: int) -> None:
        """Sample now, at the end of a step; -1 before the first."""
        now = {"time_ns": time.time_ns(), "step": step}
        self._rows.append(now | {"device": "cpu", "process_bytes": _resident_bytes()})
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            device = torch.cuda.current_device()
            stats = torch.cuda.memory_stats(device)
            counters = {column: stats.get(name) for column, name in _COUNTERS.items()}
            self._rows.append(now | {"device": f"cuda:{device}"} | counters)

    def columns(self) -> dict[str, list[Any]]:
        """The table as columns."""
        return {column: [row.get(column) for row in self._rows] for column in _COLUMNS}


def _resident_bytes() -> int | None:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
