"""When the backward of a unit is over: when the gradient of an input of it is there.

Autograd runs what is ready in the reverse order of the forward.  Whatever a unit did came after its input was
made, so it has run before the node that made the input gets its turn.  Inputs without such a node (tokens,
leaves) say nothing, and a unit that was called twice is over when both calls are.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zprof.reference_engine.schedule.backward_pass import BackwardPass
from zprof.reference_engine.units.module_unit import ModuleUnit


class InputWatch:
    """Calls back, once a unit and backward pass, when its backward is over."""

    def __init__(
        self, units: Sequence[ModuleUnit], backward: BackwardPass, on_over: Callable[[ModuleUnit], None]
    ) -> None:
        """Hook the modules."""
        self._backward = backward
        self._on_over = on_over
        self._open_calls: Counter[str] = Counter()
        backward.on_end.append(self._open_calls.clear)
        for unit in units:
            unit.module.register_forward_pre_hook(self._before_forward(unit), with_kwargs=True)

    def _before_forward(self, unit: ModuleUnit) -> Callable[..., None]:
        def watch(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if self._backward.running or not torch.is_grad_enabled():
                return
            self._open_calls[unit.name] += 1
            call = _Call(self, unit)
            for leaf in tree_leaves((arguments, named)):
                if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                    leaf.register_hook(call.over)  # type: ignore[no-untyped-call]

        return watch

    def call_over(self, unit: ModuleUnit) -> None:
        """One call of the unit has had its backward."""
        self._backward.enter()
        self._open_calls[unit.name] -= 1
        if self._open_calls[unit.name] == 0:
            self._on_over(unit)


class _Call:
    """One call of a unit: its first input that has a gradient ends it."""

    def __init__(self, watch: InputWatch, unit: ModuleUnit) -> None:
        self._watch: InputWatch | None = watch
        self._unit = unit

    def over(self, gradient: torch.Tensor) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.call_over(self._unit)
