"""When parameters are fetched and given back: before and after each unit's forward and backward.

Stage 3, elements moved per step: all-gather psi (forward) + all-gather psi (backward) + reduce-scatter psi
(arXiv 1910.02054, section 7.2).  Every unit is released after its forward, the last one and the root too,
so that the volume is exactly 3 psi, if nothing is kept:

    none   3 psi
    last   3 psi - psi_last: a unit stays after its forward until the next one is needed, so that at the end
           the last one is there.  Nothing has to be known of the order: it holds in the first pass too.
           The root, whose forward encloses the others', is not the last, unless it is the only one.
    all    2 psi: every unit stays until its backward is over

A unit's backward begins when the gradient of one of its outputs is there.  When it is over, the reducer gives
the unit back.  A forward in which nothing is recorded for a backward gives every unit back.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from zprof.reference_engine import ranges
from zprof.reference_engine.config import Keep
from zprof.reference_engine.schedule.backward_pass import BackwardPass, in_backward
from zprof.reference_engine.schedule.hooks import ModuleHook
from zprof.reference_engine.schedule.prefetch import PrefetchOrder
from zprof.reference_engine.schedule.tensors import nodes_of
from zprof.reference_engine.units.module_unit import ModuleUnit


class ParameterWaiter:
    """Stages 1 and 2: a unit's forward waits for the gather that the last step started."""

    def __init__(self, units: Sequence[ModuleUnit]) -> None:
        """Hook the modules."""
        self._units = {unit.name: unit for unit in units}
        for unit in units:
            unit.module.register_forward_pre_hook(ModuleHook(self._before_forward, unit.name), prepend=True)

    def _before_forward(self, name: str, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._units[name].wait()


class ParameterGatherer:
    """Stage 3: gathers each unit when it is needed, and the next ones ahead of that."""

    def __init__(
        self,
        units: Sequence[ModuleUnit],
        *,
        forward_prefetch: int,
        backward_prefetch: int,
        keep: Keep,
        backward: BackwardPass,
    ) -> None:
        """Hook the modules; the root comes first in ``units``."""
        self._units = {unit.name: unit for unit in units}
        self._root = units[0].name
        self._keep = Keep(keep)
        self._forward_order = PrefetchOrder(forward_prefetch)
        self._backward_order = PrefetchOrder(backward_prefetch)
        self._backward = backward
        self._calls: dict[str, list[set[Node]]] = {unit.name: [] for unit in units}
        self._kept: set[str] = set()
        self._begun: set[str] = set()
        backward.on_begin.append(self._begin_backward)
        backward.on_end.append(self.release_all)
        for unit in units:
            self._hook(unit)

    def release_all(self) -> None:
        """Give every unit back."""
        self._kept.clear()
        for unit in self._units.values():
            unit.release()

    def _hook(self, unit: ModuleUnit) -> None:
        # First before and last after: the user's own hooks see the parameters.
        before, after = (
            ModuleHook(self._before_forward, unit.name),
            ModuleHook(self._after_forward, unit.name),
        )
        unit.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        unit.module.register_forward_hook(after)

    def _before_forward(
        self, name: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        unit = self._units[name]
        if in_backward():
            self._backward.enter()
            self._need_in_backward(unit)
            return
        if name == self._root:
            self._begin_forward()
        if self._keep is Keep.LAST:
            self._release_kept(but=name)
        self._need(unit, self._forward_order)
        self._calls[name].append(nodes_of((arguments, named)))

    def _begin_forward(self) -> None:
        for calls in self._calls.values():
            calls.clear()  # of a forward that an exception ended
        self.release_all()
        self._forward_order.begin()

    def _after_forward(self, name: str, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if in_backward():
            return  # the backward gives it back, when its gradients are there
        unit = self._units[name]
        inputs = self._calls[name].pop()
        if torch.is_grad_enabled():
            # Hooks of nodes, not of tensors: those of the tensors come first, and by them the units that are
            # over are reduced and given back before this one is gathered.
            nodes = nodes_of(output) - inputs
            for node in nodes:
                node.register_prehook(partial(self._before_backward, name))
            if self._keeps(unit, nodes, inputs):
                self._kept.add(name)
        if name not in self._kept and not self._calls[name]:
            unit.release()
        if name == self._root:
            self._release_rest()

    def _keeps(self, unit: ModuleUnit, nodes: set[Node], inputs: set[Node]) -> bool:
        if not nodes and (inputs or any(flat.trainable for flat in unit.flat)):
            return True  # its tensors are where nobody finds them: nothing will say when its backward begins
        last = self._keep is Keep.LAST and self._forward_order.latest == unit.name
        return last or self._keep is Keep.ALL

    def _release_kept(self, *, but: str) -> None:
        for name in self._kept - {but}:
            self._units[name].release()
        self._kept &= {but}

    def _release_rest(self) -> None:
        for name, unit in self._units.items():
            if name not in self._kept:
                unit.release()

    def _begin_backward(self) -> None:
        self._begun.clear()
        self._backward_order.begin()

    def _before_backward(self, name: str, gradients: Sequence[torch.Tensor]) -> None:
        self._backward.enter()
        self._need_in_backward(self._units[name])

    def _need_in_backward(self, unit: ModuleUnit) -> None:
        if unit.name in self._begun:  # by another output, another call, or its recomputation
            unit.gather()
            unit.wait()
        else:
            self._begun.add(unit.name)
            self._need(unit, self._backward_order)

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
