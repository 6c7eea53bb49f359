"""Record when each collective's work object is freed; until then it keeps the collective's allocations alive.

gloo's reduce-scatter clones its input inside the operator and keeps the clone in its work. The last reference
is often dropped on a thread that the profiler does not see, so the free is missing from the allocator's
events.
"""

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from zprof.collectors.record.memory.hooks import Hooks
from zprof.collectors.record.memory.log import MemoryLog
from zprof.collectors.record.profiler_session import CollectivePatch, wait_for_works


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
        self._lifetimes: list[CollectiveWork] = []
        self._pending: dict[int, weakref.ref[Any]] = {}
        self._patch = CollectivePatch(self._wrap)

    def install(self) -> None:
        """Install the wrappers, if torch was built with distributed."""
        self._patch.install()

    def wait_pending(self) -> None:
        """Wait until the collectives of the window are complete, before the profiler stops.

        Raises:
            RuntimeError: one is not complete in time, or has failed.
        """
        references = list(self._pending.values())
        self._pending.clear()
        wait_for_works(references)

    def take_lifetimes(self) -> list[CollectiveWork]:
        """Return the works that have been freed, and forget them."""
        count = len(self._lifetimes)  # other threads may add more
        taken = self._lifetimes[:count]
        del self._lifetimes[:count]
        return taken

    def remove(self) -> None:
        """Restore the original methods."""
        self._patch.remove()

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
            self._lifetimes.append(CollectiveWork(start_ns, end_ns, time.time_ns()))

        self._pending[number] = weakref.ref(work, on_freed)
