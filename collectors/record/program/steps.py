"""Detect the end of the program's steps from its optimizers' steps.

torch's own hooks on optimizer steps run within the profiler range of the step, while torch iterates over its
table of hooks: no profiler should stop there, and no hook may be added or removed. Therefore torch's wrapper
around ``step`` of an optimizer class is wrapped again, and the end is reported after it returns. Optimizers
that step within the backward pass are reported once, at the end of that pass. The optimizer that ends a step
is learned from the order of their steps (``StepCycle``). Nothing else is used, so ranks that run the same
program find the same boundaries. Optimizers are told apart as objects, because Python reuses the ``id()`` of
a deleted one.
"""

import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final

import torch
from torch.utils.weak import WeakIdKeyDictionary

from zprof.collectors.record.program.discovery import list_optimized
from zprof.collectors.record.torch_private import (
    SCALED_STEP,
    current_graph_task_id,
    get_run_backward,
    set_run_backward,
)


class _BackwardOptimizers:
    """All optimizers that step within the backward pass."""


BACKWARD: Final = _BackwardOptimizers()
Before = Callable[[torch.optim.Optimizer], None]
After = Callable[[object, bool], None]
#: After this many cycles without the optimizer that ends them, that optimizer is assumed to step no longer.
MAX_UNFINISHED_CYCLES = 2


class OptimizerSteps:
    """Patch torch between ``install`` and ``remove``. The callbacks must not raise.

    Args:
        before: Called with the outermost optimizer before it steps.
        after: Called with that optimizer, or ``BACKWARD``, after it stepped, outside any operator, and with
            True if a gradient scaler skipped the step because gradients had overflowed.
        after_backward: Called after each outermost backward pass in which no optimizer stepped, with whether
            it accumulated gradients (``torch.autograd.grad`` does not).
    """

    def __init__(self, before: Before, after: After, after_backward: Callable[[bool], None]) -> None:
        self._before, self._after, self._after_backward = before, after, after_backward
        self._local = threading.local()
        self._stepped_in_backward = False
        self._is_active = False
        self._originals: dict[Any, Callable[..., Any]] = {}
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Patch all optimizers of the program, and the backward pass.

        Raises:
            AttributeError: this torch wraps its optimizers differently.
        """
        optimizer = torch.optim.Optimizer
        wrap_step, run_backward = optimizer.profile_hook_step, get_run_backward()
        self._is_active = True
        wrapped_backward = self._wrap_backward(run_backward)
        setattr(optimizer, "profile_hook_step", staticmethod(self._wrap_profile_hook(wrap_step)))  # noqa: B010
        set_run_backward(wrapped_backward)

        def undo() -> None:
            setattr(optimizer, "profile_hook_step", staticmethod(wrap_step))  # noqa: B010
            if get_run_backward() is wrapped_backward:
                set_run_backward(run_backward)

        self._undo.append(undo)
        self._patch_scaler()
        for kind in _iter_subclasses(torch.optim.Optimizer):
            step = kind.__dict__.get("step")
            # An optimizer of this class was created before.
            if step is not None and getattr(step, "hooked", False):
                setattr(kind, "step", self._wrap_step(step))  # noqa: B010

    def remove(self) -> None:
        """Restore torch; wrappers that were wrapped in the meantime stay in place, inactive."""
        self._is_active = False
        while self._undo:
            self._undo.pop()()
        for kind in _iter_subclasses(torch.optim.Optimizer):
            original = self._originals.get(kind.__dict__.get("step"))
            if original is not None:
                setattr(original, "hooked", True)  # noqa: B010, torch would wrap it again
                setattr(kind, "step", original)  # noqa: B010
        self._originals.clear()

    def _patch_scaler(self) -> None:
        """Wrap torch's gradient scaler: when it skips a step, it does not call the optimizer."""
        scaler: Any = torch.amp.GradScaler
        original = scaler.__dict__.get(SCALED_STEP)
        if original is None:
            return

        @functools.wraps(original)
        def step_if_finite(own: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            count = getattr(self._local, "count", 0)
            result = original(own, optimizer, *args, **kwargs)
            if self._is_active and getattr(self._local, "count", 0) == count:
                self._before(optimizer)
                self._after(optimizer, True)
            return result

        def undo() -> None:
            if scaler.__dict__.get(SCALED_STEP) is step_if_finite:
                setattr(scaler, SCALED_STEP, original)

        setattr(scaler, SCALED_STEP, step_if_finite)
        self._undo.append(undo)

    def _wrap_profile_hook(self, wrap: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrap)
        def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
            return self._wrap_step(wrap(function))

        return profile_hook_step

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_active or torch.compiler.is_compiling():
                return original(optimizer, *args, **kwargs)
            return self._run_step(original, optimizer, args, kwargs)

        self._originals[step] = original
        return step

    def _run_step(self, original: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        self._local.count = getattr(self._local, "count", 0) + 1
        try:
            if not depth:
                self._before(optimizer)
            result = original(optimizer, *args, **kwargs)
        finally:
            self._local.depth = depth
        if not depth:
            if current_graph_task_id() != -1:
                self._stepped_in_backward = True
            else:
                self._after(optimizer, False)
        return result

    def _wrap_backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            result = run(*args, **kwargs)
            if self._is_active and current_graph_task_id() == -1:
                if self._stepped_in_backward:
                    self._stepped_in_backward = False
                    self._after(BACKWARD, False)
                else:
                    self._after_backward(bool(kwargs.get("accumulate_grad", False)))
            return result

        return run_backward


def _iter_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        yield child
        yield from _iter_subclasses(child)


class _Member:
    """An optimizer of the cycle, and the tensors that it updates."""

    def __init__(self, optimizer: object) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._tensors = [weakref.ref(tensor) for tensor in list_optimized(optimizer)]

    def is_deleted(self) -> bool:
        return self._optimizer() is None

    def shares_tensors(self, other: "_Member") -> bool:
        return not self._list_ids().isdisjoint(other._list_ids())

    def _list_ids(self) -> set[int]:
        return {id(tensor) for reference in self._tensors if (tensor := reference()) is not None}


class StepCycle:
    """Learn which optimizer's step ends a step of the program.

    ``step_count`` counts the steps that ended. ``uncertain_steps`` have ended too late: the optimizer that
    used to end them no longer steps, and nothing but that was a sign of it. ``replaced_steps`` are the first
    ones of an optimizer that took the place of another.
    """

    def __init__(self) -> None:
        self._order: list[_Member] = []
        self._members: MutableMapping[object, _Member] = WeakIdKeyDictionary()
        self._calls = self._all_calls = 0
        self._last_length = self._max_length = 1
        self._is_frozen = False
        self.step_count = 0
        self.uncertain_steps: list[int] = []
        self.replaced_steps: list[int] = []

    def record_step(self, optimizer: object) -> bool:
        """Record the end of an optimizer's step; return True if it ends a step of the program."""
        self._calls += 1
        self._all_calls += 1
        member = self._members.get(optimizer)
        if member is None:
            member = self._members[optimizer] = _Member(optimizer)
            self._add_member(member)
        elif member is not self._order[-1] and self._calls > MAX_UNFINISHED_CYCLES * self._max_length:
            self._order = [each for each in self._order[:-1] if each is not member] + [member]
            self.uncertain_steps.append(self.step_count)
        if member is not self._order[-1]:
            return False
        self._last_length, self._calls = self._calls, 0
        self._max_length = max(self._max_length, self._last_length)
        self.step_count += 1
        return True

    @property
    def has_repeated(self) -> bool:
        """True once the cycle has occurred twice."""
        return self.step_count > 1

    def freeze_order(self) -> None:
        """Freeze the cycle: an optimizer that appears later ends steps only in the place of another."""
        self._is_frozen = True
        self._max_length = self._last_length  # the first one may have many steps of another optimizer
        self.uncertain_steps.clear()

    def _add_member(self, member: _Member) -> None:
        if self._is_frozen:
            # Put a new optimizer in the place of one that updated the same tensors, or that is deleted.
            former = [each for each in self._order if each.shares_tensors(member)]
            if not former:
                gc.collect()  # ranks would differ in whether the collector has already come by
                former = [each for each in self._order if each.is_deleted()][:1]
            if former:
                last = former[-1]
                self._order = [
                    member if each is last else each
                    for each in self._order
                    if each is last or each not in former
                ]
                self.replaced_steps.append(self.step_count)
            return
        self._max_length = self._all_calls
        self._order.append(member)
        self.step_count = 0
