"""When a backward pass begins and ends.

It begins with the first hook that fires in it, and ends in the autograd engine's final callback, which runs
after the last gradient, on the thread that called ``backward()``.
"""

from collections.abc import Callable

import torch
from torch.autograd import Variable


class BackwardPass:
    """Tells listeners, in their order, of the begin and the end of each backward pass."""

    def __init__(self) -> None:
        self.running = False
        self.on_begin: list[Callable[[], None]] = []
        self.on_end: list[Callable[[], None]] = []

    def enter(self) -> None:
        """To be called from every hook in the backward; the first call of a pass begins it."""
        if self.running:
            return
        for listener in self.on_begin:
            listener()
        self.running = True
        Variable._execution_engine.queue_callback(self._end)

    def is_stale(self) -> bool:
        """A backward pass was left by an exception, so that its end was never told."""
        return self.running and torch._C._current_graph_task_id() == -1

    def abandon(self) -> None:
        """Forget a stale pass."""
        self.running = False

    def _end(self) -> None:
        self.running = False
        for listener in self.on_end:
            listener()
