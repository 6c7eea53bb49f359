"""Wait for the collectives of a window before its profiler session stops.

gloo records the end of a collective on its own thread, into the event that the launch created. Once the
profiler has stopped, that event is freed memory: torch 2.13 then writes into it and crashes.
"""

import functools
import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from zprof.collectors.record.torch_private import COLLECTIVE_METHODS, process_group_class

PENDING_TIMEOUT_S = 5.0
_MIN_WAIT_S = 0.001


class CollectivePatch:
    """Replace the methods of ``ProcessGroup`` that return work objects by ``wrap(method)`` of each."""

    def __init__(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._wrap = wrap
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

    def remove(self) -> None:
        """Restore the original methods."""
        for name, original in self._originals.items():
            setattr(process_group_class(), name, original)
        self._originals.clear()


class PendingWorks:
    """Keep weak references to the work objects that the program's collectives return, while installed."""

    def __init__(self) -> None:
        self._pending: dict[int, weakref.ref[Any]] = {}
        self._patch = CollectivePatch(self._wrap)
        self._next_work: Callable[[], int] = itertools.count().__next__

    def install(self) -> None:
        """Watch the program's collectives from now on."""
        self._patch.install()

    def remove(self) -> None:
        """Restore torch's methods."""
        self._patch.remove()
        self._pending.clear()

    def wait_pending(self) -> None:
        """Wait until the collectives are complete.

        Raises:
            RuntimeError: one is not complete in time, or has failed.
        """
        references, self._pending = list(self._pending.values()), {}
        wait_for_works(references)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def launch(*args: Any, **kwargs: Any) -> Any:
            work = original(*args, **kwargs)
            if work is not None:
                number, pending = self._next_work(), self._pending
                pending[number] = weakref.ref(work, lambda _: pending.pop(number, None))
            return work

        return launch


def wait_for_works(references: Sequence[weakref.ref[Any]]) -> None:
    """Wait until the work objects that still exist are complete.

    Uses ``wait()``, not ``is_completed()``: the latter holds the GIL while it waits for a mutex whose holder,
    gloo's thread, may need the GIL.

    Raises:
        RuntimeError: one is not complete in time, or has failed: the program gets the same error.
    """
    deadline = time.monotonic() + PENDING_TIMEOUT_S
    wait_error: RuntimeError | None = None
    for reference in references:
        work = reference()
        if work is not None:
            try:
                work.wait(timedelta(seconds=max(deadline - time.monotonic(), _MIN_WAIT_S)))
            except RuntimeError as error:
                wait_error = error
    if wait_error is not None:
        raise wait_error
