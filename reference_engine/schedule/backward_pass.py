"""When a backward pass begins and ends.

It begins with the first hook that fires in it, and ends in the autograd engine's final callback, which runs
after the last gradient, on the thread that called ``backward()``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
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

    def watch(self, root: nn.Module) -> None:
        """Forget, before the next forward of ``root``, a pass whose end was never told (an exception)."""
        root.register_forward_pre_hook(self._forget_stale, prepend=True)

    def _forget_stale(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        # A forward inside a running backward is a recomputation; outside of one nothing can be running.
        if torch._C._current_graph_task_id() == -1:
            self.running = False

    def _end(self) -> None:
        self.running = False
        for listener in self.on_end:
            listener()
