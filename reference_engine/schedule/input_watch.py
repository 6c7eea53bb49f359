"""When the backward of a unit is over: when the gradient of an input of it is there.

Autograd runs what is ready in the reverse order of the forward.  Whatever a unit did came after its input was
made, so it has run before the node that made the input gets its turn.  Inputs that no node made say nothing:
tokens have no gradient, and the gradient of a leaf (a parameter that is handed on) comes as soon as it can.
A unit that was called twice is over when both calls of that forward are; calls of another forward, whose
graph somebody keeps, do not count.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from zprof.reference_engine.schedule.backward_pass import BackwardPass, in_backward
from zprof.reference_engine.schedule.hooks import ModuleHook
from zprof.reference_engine.schedule.tensors import tensors_in
from zprof.reference_engine.units.module_unit import ModuleUnit


class InputWatch:
    """Calls back when the backward of a unit is over."""

    def __init__(
        self, units: Sequence[ModuleUnit], backward: BackwardPass, on_over: Callable[[ModuleUnit], None]
    ) -> None:
        """Hook the modules."""
        self._units = {unit.name: unit for unit in units}
        self._backward = backward
        self._on_over = on_over
        self._open: dict[str, WeakSet[_Call]] = {unit.name: WeakSet() for unit in units}
        self._silent: Counter[str] = Counter()
        self._root = units[0].name
        self._forward = 0
        backward.on_end.append(self._forget)
        for unit in units:
            hook = ModuleHook(self._before_forward, unit.name)
            unit.module.register_forward_pre_hook(hook, with_kwargs=True)

    def call_over(self, call: "_Call") -> None:
        """One call of a unit has had its backward."""
        self._backward.enter()
        if self._backward.accumulates:  # after autograd.grad() the backward of the same graph may still come
            self._open[call.unit].discard(call)
        self._tell(call.unit)
        others = any(other.forward == call.forward for other in self._open[call.unit] if other is not call)
        if not others and not self._silent[call.unit]:
            self._on_over(self._units[call.unit])

    def _before_forward(
        self, name: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if in_backward():
            self._backward.enter()
            return
        if not torch.is_grad_enabled():
            return
        self._forward += name == self._root
        call = _Call(self, name, self._forward)
        tensors = tensors_in((arguments, named))
        inputs = [tensor for tensor in tensors if tensor.requires_grad and not tensor.is_leaf]
        for tensor in inputs:
            tensor.grad_fn  # noqa: B018  reading renews it: torch 2.13 crashes in register_hook on an outdated view
            tensor.register_hook(call.over)  # type: ignore[no-untyped-call]
        if inputs:
            self._open[name].add(call)
        else:
            self._silent[name] += 1
        self._tell(name)

    def _forget(self) -> None:
        if not self._backward.accumulates:
            return
        self._silent.clear()
        for name in self._open:
            self._tell(name)

    def _tell(self, name: str) -> None:
        for flat in self._units[name].flat:
            flat.watched = bool(self._open[name]) and not self._silent[name]


class _Call:
    """One call of a unit in a forward: its first input with a gradient ends it.  The graph alone keeps it."""

    def __init__(self, watch: InputWatch, unit: str, forward: int) -> None:
        self._watch = watch
        self.unit = unit
        self.forward = forward

    def over(self, gradient: torch.Tensor) -> None:
        self._watch.call_over(self)
