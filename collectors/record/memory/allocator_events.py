"""Read the allocator's own events from torch.profiler: every allocation and free.

On the CPU, a free on a thread unknown to the profiler (a thread of gloo or of an engine) writes no event; on
CUDA, the allocator reports frees from all threads.

Record the CUDA allocator's own history of a window: blocks, segments, and the stack of each request.

    torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=...)

It costs about 2 us per allocation for the Python frames; C++ frames would make the snapshot take minutes. If
the program records its own history, zprof does not change it. Bytes of tenants come from the profiler's
events; the history adds reserved memory, and the origin of blocks that no hook recorded.
"""

import bisect
import gc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from msgspec import Struct
from torch.profiler import profile

from zprof.collectors.read.snapshot.convert import SnapshotTables, convert_snapshot
from zprof.collectors.record.base import Columns, first_line
from zprof.collectors.record.memory.log import Birth
from zprof.collectors.record.memory.work_lifetimes import CollectiveWork
from zprof.collectors.record.profiler_session import (
    ProfilerSession,
    list_activities,
)
from zprof.collectors.record.torch_private import (
    ALLOCATION_EVENT,
    is_cuda_history_recorded,
    record_cuda_history,
    stop_cuda_history,
    take_cuda_snapshot,
)
from zprof.model.collectives import OPERATOR_PREFIXES
from zprof.model.gap_texts import find_text, make_gap
from zprof.model.gaps import Gap, GapKind

#: Entries of the ring buffer: an allocation takes three of them, a few kilobytes with its stack.
MAX_ENTRIES = 200_000
#: First stack number of the history; storage stacks have lower numbers.
FIRST_STACK = 1 << 40


class BlockLifetime(Struct):
    """One block from its allocation to its free. ``freed_ns`` is None if the free has no event."""

    address: int
    bytes: int
    device: str
    allocated_ns: int
    freed_ns: int | None
    operator: str | None
    thread: int


class AllocatorEvents:
    """Run the profiler over the window, and read its event tree in memory (no trace file)."""

    def __init__(self) -> None:
        self._profiler: Any = None
        self._session: ProfilerSession | None = None
        self._pairs = _FreePairs()
        self._is_complete = True
        self.event_count = 0

    def start(self) -> None:
        """Start recording.

        Raises:
            RuntimeError: the program is running its own profiler.
        """
        profiler = profile(activities=list_activities(), profile_memory=True, record_shapes=False)
        session = ProfilerSession(profiler)
        session.start()
        self._profiler, self._session = profiler, session

    def stop(self) -> None:
        """Stop recording. The events stay in memory until :meth:`read`."""
        if self._session is not None:
            self._session.stop()

    def restart(self) -> None:
        """Read the events so far, and drop them, while a new session records.

        Raises:
            RuntimeError: the program runs its own profiler; the events since then are lost.
        """
        if self._session is None:
            return
        # Nothing may be freed while no session runs: its free would be unknown.
        collects = gc.isenabled()
        gc.disable()
        try:
            self._session.stop()
            ended, self._profiler = self._profiler, None
            was_taken_over, self._session = self._session.was_taken_over, None
            self._is_complete = self._is_complete and not was_taken_over
            if not was_taken_over:
                self.start()
        except BaseException:
            self._is_complete = False
            raise
        finally:
            if collects:
                gc.enable()
        if not was_taken_over:
            self.event_count = self._pairs.read(ended)

    def abandon(self) -> None:
        """Stop and discard the recording, in a fork of the recording process."""
        if self._session is not None:
            self._session.abandon()
        self._profiler = None

    def read(self) -> None:
        """Read the events of the last session and drop them, after :meth:`stop`.

        Raises:
            RuntimeError: the program started its own profiler, and the events are lost.
        """
        profiler, self._profiler = self._profiler, None
        taken_over = self._session is not None and self._session.was_taken_over
        if taken_over or not self._is_complete:
            text = find_text("profiler_taken_over")
            raise RuntimeError(f"{text.reason}; {text.remedy}")
        if profiler is not None:
            self._pairs.read(profiler)

    def list_open(self) -> list[BlockLifetime]:
        """Return the blocks read so far whose free has no event yet, by time."""
        return self._pairs.blocks

    def take_closed(self) -> list[BlockLifetime]:
        """Return the blocks that no later event can change, and forget them."""
        return self._pairs.take_closed()


class _FreePairs:
    """Pair each free with the open allocation at its address, over all sessions of a window.

    If an address is allocated again without a free in between, the earlier block stays open.
    """

    def __init__(self) -> None:
        self.blocks: list[BlockLifetime] = []
        self._open_at: dict[tuple[str, int], BlockLifetime] = {}
        self._overwritten_ids: set[int] = set()

    def read(self, profiler: Any) -> int:
        """Add the blocks of a session that has ended; return the number of its events of any kind."""
        tree = profiler.profiler.kineto_results.experimental_event_tree()
        counter = itertools.count()
        events = sorted(_iter_memory_events(tree, counter), key=lambda event: int(event[0].start_time_ns))
        for event, operator in events:
            fields = event.extra_fields
            time_ns, size = int(event.start_time_ns), int(fields.alloc_size)
            key = (str(fields.device), fields.ptr)
            if size > 0:
                block = BlockLifetime(fields.ptr, size, key[0], time_ns, None, operator, int(event.start_tid))
                self.blocks.append(block)
                if key in self._open_at:
                    self._overwritten_ids.add(id(self._open_at[key]))
                self._open_at[key] = block
            elif key in self._open_at:
                self._open_at.pop(key).freed_ns = time_ns
        profiler.profiler = None  # its events, which the garbage collector would find late
        return next(counter)

    def take_closed(self) -> list[BlockLifetime]:
        """Return the blocks that are freed, or whose address had been allocated again at the last call.

        The free of a collective's block may still be found, from its work object (see below).
        """
        kept_ids = {id(block) for block in self._open_at.values()} | self._overwritten_ids
        closed = [block for block in self.blocks if block.freed_ns is not None or id(block) not in kept_ids]
        self.blocks = [block for block in self.blocks if block.freed_ns is None and id(block) in kept_ids]
        self._overwritten_ids = set()
        return closed


def close_collective_scratch(
    blocks: Sequence[BlockLifetime], works: Sequence[CollectiveWork], births: Sequence[Birth]
) -> None:
    """Close collectives' blocks whose free has no event, when the work object that held them is freed.

    Applies to blocks allocated within a collective's launch. Blocks whose storage was recorded during the
    work's lifetime are skipped (gloo's wait copies out of them): the free of that storage is exact, and later
    if another thread held the last reference.
    """
    scratch = [block for block in blocks if block.freed_ns is None and _is_collective(block.operator)]
    birth_times: dict[int, list[int]] = {}
    for birth in births:
        birth_times.setdefault(birth.address, []).append(birth.time_ns)
    for work in works:
        first = bisect.bisect_left(scratch, work.launch_start_ns, key=_get_allocated_ns)
        last = bisect.bisect_right(scratch, work.launch_end_ns, key=_get_allocated_ns)
        for block in scratch[first:last]:
            times = birth_times.get(block.address, ())
            if not any(block.allocated_ns <= time_ns <= work.freed_ns for time_ns in times):
                block.freed_ns = max(work.freed_ns, block.allocated_ns)


def _iter_memory_events(tree: Any, counter: Iterator[int]) -> Iterator[tuple[Any, str | None]]:
    """Yield allocation events with their operator: the enclosing collective, else the innermost operator.

    ``counter`` is advanced for each event of any kind.
    """
    pending: list[tuple[Any, str | None]] = [(root, None) for root in tree]
    while pending:
        event, operator = pending.pop()
        next(counter)
        if event.tag == ALLOCATION_EVENT:
            yield event, operator
            continue
        name = operator if _is_collective(operator) else event.name
        pending.extend((child, name) for child in event.children)


def _get_allocated_ns(block: BlockLifetime) -> int:
    return block.allocated_ns


def _is_collective(operator: str | None) -> bool:
    return operator is not None and operator.startswith(OPERATOR_PREFIXES)


class CudaMemory:
    """What a history needs of ``torch.cuda.memory``."""

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
    """Record the history between ``start`` and ``stop``; without a CUDA device in use there are no tables."""

    def __init__(self, memory: CudaMemory | None = None, *, max_entries: int = MAX_ENTRIES) -> None:
        self._memory = memory or CudaMemory()
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
            # Memory from before the window is normal, so it is not a gap.
            self._gaps += [gap for gap in self._tables.gaps if gap.kind is not GapKind.BEFORE_HISTORY]
        except Exception as error:
            self._gaps.append(make_gap("allocator_history_failed", error=first_line(error)))


def merge_history(tables: Mapping[str, Columns], history: Mapping[str, Columns]) -> dict[str, Columns]:
    """Return the tables of a window and of its history, with one table of stacks for both."""
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
