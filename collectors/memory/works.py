"""Notes when the work object of each collective dies: until then it holds what the collective allocated.

gloo's reduce-scatter clones its input inside the operator and keeps the clone in its work.  The last
reference often falls on a thread that the profiler does not see, and then the free is missing from the
allocator's events.
"""

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from zprof.collectors.memory.log import MemoryLog

_METHODS = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "reduce_scatter_single",
    "all_gather_single_coalesced",
    "reduce_scatter_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)


SETTLE_TIMEOUT_S = 5.0
_POLL_S = 0.0005
#: A work says that it is complete just before its thread notes the end.
_GRACE_S = 0.002


class Work(NamedTuple):
    """A collective's launch on the host, and the death of its work object."""

    launch_begin_ns: int
    launch_end_ns: int
    dead_ns: int


class WorkPatch:
    """Wraps the methods of ``ProcessGroup`` that return work objects while installed."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.works: list[Work] = []
        self._pending: dict[int, weakref.ref[Any]] = {}
        self._originals: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        """Put the wrappers in place, where torch was built with distributed."""
        if not dist.is_available():
            return
        group = torch._C._distributed_c10d.ProcessGroup
        for name in _METHODS:
            original = group.__dict__.get(name)
            if original is not None:
                self._originals[name] = original
                setattr(group, name, self._wrap(original))

    def settle(self) -> None:
        """Wait until the collectives of the window are complete, before the profiler ends.

        gloo notes the end of a collective on its own thread into the event that the launch began.  Once the
        profiler has stopped, that event is freed memory: torch 2.13 then writes into it and crashes.
        """
        if not self._pending:
            return
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while any(not _is_complete(reference()) for reference in list(self._pending.values())):
            if time.monotonic() > deadline:
                raise TimeoutError("collectives were still under way when the memory window ended")
            time.sleep(_POLL_S)
        time.sleep(_GRACE_S)
        self._pending.clear()

    def remove(self) -> None:
        """Put the original methods back."""
        for name, original in self._originals.items():
            setattr(torch._C._distributed_c10d.ProcessGroup, name, original)
        self._originals.clear()

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def launch(*args: Any, **kwargs: Any) -> Any:
            begin_ns = time.time_ns()
            work = original(*args, **kwargs)
            if self._log.active and work is not None:
                try:
                    self._follow(work, begin_ns)
                except Exception as error:  # a fault of ours must never reach the training loop
                    self._log.fail("collective", error)
            return work

        return launch

    def _follow(self, work: Any, begin_ns: int) -> None:
        end_ns, number = time.time_ns(), self._log.next_work()

        def dead(_: Any) -> None:
            self._pending.pop(number, None)
            self.works.append(Work(begin_ns, end_ns, time.time_ns()))

        self._pending[number] = weakref.ref(work, dead)


def _is_complete(work: Any) -> bool:
    return work is None or work.is_completed()
