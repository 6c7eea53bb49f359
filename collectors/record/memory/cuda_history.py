"""Record the CUDA allocator's own history of a window: blocks, segments, and the stack of each request.

    torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=...)

It costs about 2 us per allocation for the Python frames; C++ frames would make the snapshot take minutes. If
the program records its own history, zprof does not change it. Bytes of tenants come from the profiler's
events; the history adds reserved memory, and the origin of blocks that no hook recorded.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch

from zprof.collectors.read.snapshot.convert import SnapshotTables, convert_snapshot
from zprof.collectors.record.base import Columns, first_line
from zprof.collectors.record.torch_private import (
    is_cuda_history_recorded,
    record_cuda_history,
    stop_cuda_history,
    take_cuda_snapshot,
)
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap, GapKind

#: Entries of the ring buffer: an allocation takes three of them, a few kilobytes with its stack.
MAX_ENTRIES = 200_000
#: First stack number of the history; storage stacks have lower numbers.
FIRST_STACK = 1 << 40


class CudaMemory(Protocol):
    """The interface of ``torch.cuda.memory`` that a history needs."""

    def in_use(self) -> bool:
        """Return True if this process uses a CUDA device, without initializing one."""

    def is_recorded(self) -> bool:
        """Return True if the history is being recorded."""

    def record(self, max_entries: int) -> None:
        """Start recording."""

    def snapshot(self) -> Mapping[str, Any]:
        """Return everything recorded so far."""

    def end(self) -> None:
        """Stop recording."""


class TorchCudaMemory:
    """Implement the interface with torch."""

    def in_use(self) -> bool:
        """Return True if CUDA is initialized, without initializing it."""
        return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]

    def is_recorded(self) -> bool:
        """Return True if torch records its allocator's history."""
        return is_cuda_history_recorded()

    def record(self, max_entries: int) -> None:
        """Start recording, at most ``max_entries`` events."""
        record_cuda_history(max_entries)

    def snapshot(self) -> Mapping[str, Any]:
        """Return torch's snapshot with the history."""
        return take_cuda_snapshot()

    def end(self) -> None:
        """Stop recording."""
        stop_cuda_history()


class CudaHistory:
    """Record between ``start`` and ``stop``; there are no tables if no CUDA device is in use."""

    def __init__(self, memory: CudaMemory | None = None, *, max_entries: int = MAX_ENTRIES) -> None:
        self._memory = memory or TorchCudaMemory()
        self._max_entries = max_entries
        self._recording = False
        self._snapshot: Mapping[str, Any] | None = None
        self._tables: SnapshotTables | None = None
        self._gaps: list[Gap] = []

    def start(self) -> None:
        """Start recording, unless the program already records the history."""
        if not self._memory.in_use():
            return
        if self._memory.is_recorded():
            self._gaps.append(make_gap("allocator_history_in_use"))
            return
        self._recording = True  # before the next line, which may fail half way
        self._memory.record(self._max_entries)

    def stop(self) -> None:
        """Take a snapshot of the history and stop recording, even if the snapshot fails."""
        if not self._recording:
            return
        self._recording = False
        if not self._memory.is_recorded():
            self._gaps.append(make_gap("allocator_history_turned_off"))
            return
        try:
            self._snapshot = self._memory.snapshot()
        finally:
            self._memory.end()

    def tables(self) -> dict[str, Columns]:
        """Return the tables ``block``, ``segment`` and ``stack``, or none."""
        self._read()
        if self._tables is None:
            return {}
        tables = self._tables
        stack = {**tables.stack, "stack": _offset_stacks(tables.stack["stack"])}
        block = {**tables.block, "stack": _offset_stacks(tables.block["stack"])}
        return {"block": block, "segment": tables.segment, "stack": stack}

    def gaps(self) -> list[Gap]:
        """Return a gap for everything that is missing from the history."""
        self._read()
        return list(self._gaps)

    def _read(self) -> None:
        """Convert the snapshot, once."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return
        try:
            self._tables = convert_snapshot(snapshot)
            # Every window has memory from before the window: that is not a gap.
            self._gaps += [gap for gap in self._tables.gaps if gap.kind is not GapKind.BEFORE_HISTORY]
        except Exception as error:
            self._gaps.append(make_gap("allocator_history_failed", error=first_line(error)))


def merge_history(tables: Mapping[str, Columns], history: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the tables of a window and of its history, with the stacks of both in one table."""
    merged = {**tables, **history}
    if "stack" in tables and "stack" in history:
        history_columns = {name: pa.array(column).to_pylist() for name, column in history["stack"].items()}
        merged["stack"] = {
            name: [*column, *history_columns[name]] for name, column in tables["stack"].items()
        }
    return merged


def _offset_stacks(numbers: Any) -> Any:
    """Return the history's stack numbers, offset above the storages' numbers. Null stays null."""
    column = numbers if isinstance(numbers, pa.Array) else pa.array(numbers, pa.int64())
    offset = np.asarray(column.fill_null(0)) + FIRST_STACK
    return pa.array(offset, pa.int64(), mask=np.asarray(column.is_null()))
