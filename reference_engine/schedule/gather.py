"""When parameters are fetched and given back: before and after each unit's forward and backward.

Stage 3, elements moved per step: all-gather psi (forward) + all-gather psi (backward) + reduce-scatter psi
(arXiv 1910.02054, section 7.2).  Every unit is released after its forward, the last one and the root too,
so that the volume is exactly 3 psi.  A unit's backward begins when the gradient of one of its outputs is
there.  When it is over, the reducer gives the unit back.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zprof.reference_engine import ranges
from zprof.reference_engine.schedule.backward_pass import BackwardPass
from zprof.reference_engine.schedule.prefetch import PrefetchOrder
from zprof.reference_engine.units.module_unit import ModuleUnit


def wait_before_forward(units: Sequence[ModuleUnit]) -> None:
    """Stages 1 and 2: a unit's forward waits for the gather that the last step started."""
    for unit in units:
        unit.module.register_forward_pre_hook(_waiter(unit), prepend=True)


def _waiter(unit: ModuleUnit) -> Callable[..., None]:
    def before_forward(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        unit.wait()

    return before_forward


class ParameterGatherer:
    """Stage 3: gathers each unit when it is needed, and the next ones ahead of that."""

    def __init__(
        self,
        units: Sequence[ModuleUnit],
        *,
        forward_prefetch: int,
        backward_prefetch: int,
        backward: BackwardPass,
    ) -> None:
        """Hook the modules; the root comes first in ``units``."""
        self._units = {unit.name: unit for unit in units}
        self._forward_order = PrefetchOrder(forward_prefetch)
        self._backward_order = PrefetchOrder(backward_prefetch)
        self._backward = backward
        backward.on_begin.append(self._backward_order.begin)
        backward.on_end.append(self._release_all)
        root = units[0]
        for unit in units:
            self._hook(unit, is_root=unit is root)

    def _hook(self, unit: ModuleUnit, *, is_root: bool) -> None:
        def before_forward(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if is_root:
                self._begin_forward()
            self._before_forward(unit)

        def after_forward(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            self._after_forward(unit, output)
            if is_root and not self._backward.running:
                self._release_all()

        # First before and last after: the user's own hooks see the parameters.
        unit.module.register_forward_pre_hook(before_forward, prepend=True)
        unit.module.register_forward_hook(after_forward)

    def _begin_forward(self) -> None:
        if not self._backward.running:
            self._release_all()
            self._forward_order.begin()

    def _before_forward(self, unit: ModuleUnit) -> None:
        if self._backward.running:  # recomputation by activation checkpointing: not part of the order
            unit.gather()
            unit.wait()
        else:
            self._need(unit, self._forward_order)

    def _after_forward(self, unit: ModuleUnit, output: Any) -> None:
        if self._backward.running:
            return  # the backward gives it back, when its gradients are there
        if torch.is_grad_enabled():
            for leaf in tree_leaves(output):
                if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                    # A hook of the node, not of the tensor: those of the tensor come first, and by them the
                    # units that are over are reduced and given back before this one is gathered.
                    leaf.grad_fn.register_prehook(self._before_backward(unit))
        unit.release()

    def _before_backward(self, unit: ModuleUnit) -> Callable[[Sequence[torch.Tensor]], None]:
        def gradient_of_output(gradients: Sequence[torch.Tensor]) -> None:
            self._backward.enter()
            self._need(unit, self._backward_order)

        return gradient_of_output

    def _need(self, unit: ModuleUnit, order: PrefetchOrder) -> None:
        if not unit.flat:
            return
        demand = order.demand(unit.name)
        if demand.missed is not None:
            with ranges.prefetch_miss(unit.name, demand.missed):
                pass
        unit.gather()
        for name in demand.ahead:
            self._units[name].gather()
        unit.wait()

    def _release_all(self) -> None:
        for unit in self._units.values():
            unit.release()
