"""Makes blocking on a collective visible: each ``Work.wait`` becomes a range of the profiler.

Gloo leaves no event where a thread waits for a collective.  The wrapper stands on the class, so it sees
asynchronous and synchronous calls from Python; waits inside C++ (the reducer of DDP) stay unseen.
"""

from collections.abc import Callable
from typing import Any

import torch

#: An anonymous wait in the grammar of ``zprof.run.ranges``.
WAIT_RANGE = "zprof::wait"


class WaitRanges:
    """Wraps ``torch.distributed.Work.wait`` between ``install`` and ``remove``."""

    def __init__(self) -> None:
        self._original: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None
        self._active = False

    def install(self) -> None:
        """Begin to write ranges.

        Raises:
            RuntimeError: this torch has no ``Work.wait`` to wrap.
        """
        work = _work_class()
        if work is None:
            raise RuntimeError("this torch has no Work.wait to watch")
        self._original = work.wait
        self._wrapper = self._wrap(work.wait)
        self._active = True
        work.wait = self._wrapper

    def remove(self) -> None:
        """Put the original back; where somebody wrapped ours meanwhile, ours goes silent instead."""
        self._active = False
        work = _work_class()
        if work is not None and self._wrapper is not None and work.wait is self._wrapper:
            work.wait = self._original
        self._wrapper = None

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*arguments: Any, **options: Any) -> Any:
            if not self._active:
                return original(*arguments, **options)
            with torch.profiler.record_function(WAIT_RANGE):
                return original(*arguments, **options)

        return wait


def _work_class() -> Any:
    module = getattr(torch._C, "_distributed_c10d", None)
    return getattr(module, "Work", None)
