"""Detect when a step of the program is over, from its optimizers' steps.

torch's own hooks on optimizer steps run within the profiler range of the step, while torch iterates over its
table of hooks: no profiler should stop there, and no hook may be added or removed. So the wrapper that torch
puts around ``step`` of an optimizer class is wrapped once more, and the end is reported after it returned.
Optimizers that step within the backward pass are reported once, at the end of that pass. Which optimizer ends
a step is learned from the order in which they step (``StepCycle``).
"""

import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from zprof.collectors.torch_private import current_graph_task_id, get_run_backward, set_run_backward

#: Key of all optimizers that step within the backward pass.
BACKWARD = "backward"
Before = Callable[[torch.optim.Optimizer], None]
After = Callable[[Hashable], None]


class OptimizerSteps:
    """Patches torch between ``install`` and ``remove``. The callbacks must not raise.

    Args:
        before: Called with the outermost optimizer before it steps.
        after: Called with a key of that optimizer after it stepped, outside any operator.
        after_backward: Called after each outermost backward pass in which no optimizer stepped.
    """

    def __init__(self, before: Before, after: After, after_backward: Callable[[], None]) -> None:
        self._before, self._after, self._after_backward = before, after, after_backward
        self._local = threading.local()
        self._stepped_in_backward = False
        self._watching = False
        self._originals: dict[Any, Callable[..., Any]] = {}
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Patch all optimizers of the program, and the backward pass.

        Raises:
            AttributeError: this torch wraps its optimizers in another way.
        """
        optimizer = torch.optim.Optimizer
        wrap_step, run_backward = optimizer.profile_hook_step, get_run_backward()
        self._watching = True
        watched_backward = self._watched_backward(run_backward)
        setattr(optimizer, "profile_hook_step", staticmethod(self._wrapping(wrap_step)))  # noqa: B010
        set_run_backward(watched_backward)

        def undo() -> None:
            setattr(optimizer, "profile_hook_step", staticmethod(wrap_step))  # noqa: B010
            if get_run_backward() is watched_backward:
                set_run_backward(run_backward)

        self._undo.append(undo)
        for kind in _iter_subclasses(torch.optim.Optimizer):
            step = kind.__dict__.get("step")
            if step is not None and getattr(
                step, "hooked", False
            ):  # an optimizer of this class was made before
                setattr(kind, "step", self._watched_step(step))  # noqa: B010

    def remove(self) -> None:
        """Restore torch; wrappers that have been wrapped since stay and become inactive."""
        self._watching = False
        while self._undo:
            self._undo.pop()()
        for kind in _iter_subclasses(torch.optim.Optimizer):
            original = self._originals.get(kind.__dict__.get("step"))
            if original is not None:
                setattr(original, "hooked", True)  # noqa: B010, torch would wrap it a second time
                setattr(kind, "step", original)  # noqa: B010
        self._originals.clear()

    def _wrapping(self, wrap: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrap)
        def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
            return self._watched_step(wrap(function))

        return profile_hook_step

    def _watched_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._watching or torch.compiler.is_compiling():
                return original(optimizer, *args, **kwargs)
            return self._step(original, optimizer, args, kwargs)

        self._originals[step] = original
        return step

    def _step(self, original: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        try:
            if not depth:
                self._before(optimizer)
            result = original(optimizer, *args, **kwargs)
        finally:
            self._local.depth = depth
        if not depth:
            self._stepped(optimizer)
        return result

    def _stepped(self, optimizer: Any) -> None:
        if current_graph_task_id() != -1:
            self._stepped_in_backward = True
        else:
            self._after(id(optimizer))

    def _watched_backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            result = run(*args, **kwargs)
            if self._watching and current_graph_task_id() == -1:
                if self._stepped_in_backward:
                    self._stepped_in_backward = False
                    self._after(BACKWARD)
                else:
                    self._after_backward()
            return result

        return run_backward


def _iter_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        yield child
        yield from _iter_subclasses(child)


#: Steps of other optimizers after which a closing optimizer that no longer steps is replaced.
GIVE_UP_AFTER = 16


class StepCycle:
    """Learns which optimizer's step closes a step of the program. ``closings`` counts the closed steps."""

    def __init__(self) -> None:
        self._order: list[Hashable] = []
        self._others = 0
        self._settled = False
        self.closings = 0

    def ended(self, optimizer: Hashable) -> bool:
        """Record the end of an optimizer's step; return whether it closes a step of the program."""
        if optimizer not in self._order and not self._settled:
            self._order.append(optimizer)
            self.closings = 0
        elif optimizer != self._order[-1]:
            self._others += 1
            if self._others <= GIVE_UP_AFTER:
                return False
            self._give_up(optimizer)
        self.closings += 1
        self._others = 0
        return True

    @property
    def repeated(self) -> bool:
        """True once the cycle was seen twice."""
        return self.closings > 1

    def wait_pending(self) -> None:
        """Fix the cycle: an optimizer that appears later no longer changes what a step is."""
        self._settled = True

    def _give_up(self, optimizer: Hashable) -> None:
        """Close steps by this optimizer: the former one has stopped (it fitted something at the start)."""
        self._order.pop()
        if optimizer in self._order:
            self._order.remove(optimizer)
        self._order.append(optimizer)
