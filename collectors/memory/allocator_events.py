"""Read the allocator's own events from torch.profiler: every allocation and free.

On the CPU, a free on a thread unknown to the profiler (a thread of gloo or of an engine) writes no event; on
CUDA, the allocator reports frees from all threads.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.profiler import profile

from zprof.collectors.memory.log import Birth
from zprof.collectors.memory.work_lifetimes import CollectiveWork
from zprof.collectors.profiler_session import (
    TAKEN_OVER_MESSAGE,
    TAKEN_OVER_REMEDY,
    ProfilerSession,
    list_activities,
)
from zprof.collectors.torch_private import ALLOCATION_EVENT
from zprof.model.collectives import OPERATOR_PREFIXES


@dataclass(slots=True)
class Allocation:
    """One block from its allocation to its free. ``freed_ns`` is None if the free has no event."""

    address: int
    bytes: int
    device: str
    allocated_ns: int
    freed_ns: int | None
    operator: str | None
    thread: int


class AllocatorEvents:
    """Run the profiler over the window, then read its event tree in memory (no trace file)."""

    def __init__(self) -> None:
        self._profiler: Any = profile(activities=list_activities(), profile_memory=True, record_shapes=False)
        self._session = ProfilerSession(self._profiler)
        self._recorded = False

    def start(self) -> None:
        """Start recording.

        Raises:
            RuntimeError: the program is running its own profiler.
        """
        self._session.start()
        self._recorded = True

    def stop(self) -> None:
        """Stop recording. The events stay in memory until :meth:`read`."""
        self._session.stop()

    def abandon(self) -> None:
        """Stop and discard the recording, in a fork of the recording process."""
        self._session.abandon()
        self._profiler = None

    def read(self) -> list[Allocation]:
        """Return all blocks allocated in the window, by time, and drop the events.

        Raises:
            RuntimeError: the program started its own profiler, and the events are lost.
        """
        profiler, self._profiler = self._profiler, None
        if profiler is None or not self._recorded:
            return []
        if self._session.was_taken_over:
            raise RuntimeError(f"{TAKEN_OVER_MESSAGE}; {TAKEN_OVER_REMEDY}")
        tree = profiler.profiler.kineto_results.experimental_event_tree()
        events = sorted(_iter_memory_events(tree), key=lambda event: int(event[0].start_time_ns))
        return _pair_frees(events)


def _iter_memory_events(tree: Any) -> Iterator[tuple[Any, str | None]]:
    """Yield allocation events with their operator: the enclosing collective, else the innermost operator."""
    pending: list[tuple[Any, str | None]] = [(root, None) for root in tree]
    while pending:
        event, operator = pending.pop()
        if event.tag == ALLOCATION_EVENT:
            yield event, operator
            continue
        name = operator if _is_collective(operator) else event.name
        pending.extend((child, name) for child in event.children)


def _pair_frees(events: list[tuple[Any, str | None]]) -> list[Allocation]:
    """Pair each free with the open allocation at its address.

    If an address is allocated again without a free in between, the earlier block stays open.
    """
    blocks: list[Allocation] = []
    open_at: dict[tuple[str, int], Allocation] = {}
    for event, operator in events:
        fields = event.extra_fields
        time_ns, size, key = (
            int(event.start_time_ns),
            int(fields.alloc_size),
            (str(fields.device), fields.ptr),
        )
        if size > 0:
            block = Allocation(fields.ptr, size, key[0], time_ns, None, operator, int(event.start_tid))
            blocks.append(block)
            open_at[key] = block
        elif key in open_at:
            open_at.pop(key).freed_ns = time_ns
    return blocks


def close_collective_scratch(
    blocks: Sequence[Allocation], works: Sequence[CollectiveWork], births: Sequence[Birth]
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


def _get_allocated_ns(block: Allocation) -> int:
    return block.allocated_ns


def _is_collective(operator: str | None) -> bool:
    return operator is not None and operator.startswith(OPERATOR_PREFIXES)
