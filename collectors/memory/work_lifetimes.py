"""Record when each collective's work object is freed; until then it keeps the collective's allocations alive.

gloo's reduce-scatter clones its input inside the operator and keeps the clone in its work. The last reference
is often dropped on a thread that the profiler does not see, so the free is missing from the allocator's
events.
"""

import functools
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from zprof.collectors.memory.hooks import Hooks
from zprof.collectors.memory.log import MemoryLog
from zprof.collectors.torch_private import COLLECTIVE_METHODS, process_group_class

PENDING_TIMEOUT_S = 5.0
_MIN_WAIT_S = 0.001


class CollectiveWork(NamedTuple):
    """Launch of a collective on the host, and the time at which its work object was freed."""

    launch_start_ns: int
    launch_end_ns: int
    freed_ns: int


class WorkPatch:
    """Wrap the methods of ``ProcessGroup`` that return work objects while installed.

    A work object captures the launching thread's state. If that included zprof's saved-tensor hooks, gloo's
    thread would need the GIL to finish while it holds the mutex that the main thread's ``is_completed()``
    waits for with the GIL held: a deadlock. Therefore the hooks are off during a launch.
    """

    def __init__(self, log: MemoryLog, hooks: Hooks) -> None:
        self._log = log
        self._hooks = hooks
        self.lifetimes: list[CollectiveWork] = []
        self._pending: dict[int, weakref.ref[Any]] = {}
        self._originals: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        """Install the wrappers, if torch was built with distributed."""
        group = process_group_class()
        if group is None:
            return
        for name in COLLECTIVE_METHODS:
            original = group.__dict__.get(name)
            if original is not None:
                self._originals[name] = original
                setattr(group, name, self._wrap(original))

    def wait_pending(self) -> None:
        """Wait until the collectives of the window are complete, before the profiler stops.

        gloo records the end of a collective on its own thread, into the event that the launch created. Once
        the profiler has stopped, that event is freed memory: torch 2.13 then writes into it and crashes. Uses
        ``wait()``, not ``is_completed()``: the latter holds the GIL while it waits for a mutex whose holder,
        gloo's thread, may need the GIL.
        """
        deadline = time.monotonic() + PENDING_TIMEOUT_S
        wait_error: RuntimeError | None = None
        for reference in list(self._pending.values()):
            work = reference()
            if work is not None:
                try:
                    work.wait(timedelta(seconds=max(deadline - time.monotonic(), _MIN_WAIT_S)))
                except RuntimeError as error:  # timeout, or the peer exited: the program gets the same error
                    wait_error = error
        self._pending.clear()
        if wait_error is not None:
            raise wait_error

    def remove(self) -> None:
        """Restore the original methods."""
        for name, original in self._originals.items():
            setattr(process_group_class(), name, original)
        self._originals.clear()

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def launch(*args: Any, **kwargs: Any) -> Any:
            start_ns = time.time_ns()
            with self._hooks.suspend_saved_tensor_hooks():
                work = original(*args, **kwargs)
            if self._log.active and work is not None:
                try:
                    self._track(work, start_ns)
                except Exception as error:  # an error in zprof must never reach the training loop
                    self._log.fail("collective", error)
            return work

        return launch

    def _track(self, work: Any, start_ns: int) -> None:
        end_ns, number = time.time_ns(), self._log.next_work()

        def on_freed(_: Any) -> None:
            self._pending.pop(number, None)
            self.lifetimes.append(CollectiveWork(start_ns, end_ns, time.time_ns()))

        self._pending[number] = weakref.ref(work, on_freed)
