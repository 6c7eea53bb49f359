"""Read the allocator's own events from torch.profiler: every allocation and free.

On the CPU, a free on a thread unknown to the profiler (a thread of gloo or of an engine) writes no event; on
CUDA, the allocator reports frees from all threads.
"""

import bisect
import gc
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from torch.profiler import profile

from zprof.collectors.record.memory.log import Birth
from zprof.collectors.record.memory.work_lifetimes import CollectiveWork
from zprof.collectors.record.profiler_session import (
    ProfilerSession,
    list_activities,
)
from zprof.collectors.record.torch_private import ALLOCATION_EVENT
from zprof.model.collectives import OPERATOR_PREFIXES
from zprof.model.gap_texts import GAP_TEXTS


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
            text = GAP_TEXTS["profiler_taken_over"]
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
