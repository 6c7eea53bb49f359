"""Gather each unit's parameters before its forward and backward, prefetch the next, release them after.

Stage 3 moves per step: all-gather psi (forward) + all-gather psi (backward) + reduce-scatter psi (arXiv
1910.02054, section 7.2).

The first pass records the order.  A unit that is needed out of the recorded order ends the prefetch for the
rest of that pass; the order seen in that pass is used in the next.  The order depends only on the calls, so
that all ranks gather in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from zprof.reference_engine.comm import native
from zprof.reference_engine.config import Keep
from zprof.reference_engine.flat_unit import ModuleUnit
from zprof.reference_engine.hooks import BackwardPass, ModuleHook, collect_nodes, is_in_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchDecision:
    """Prefetch decision for a unit: gather ``ahead`` too; ``missed`` is the unit expected instead."""

    ahead: tuple[str, ...] = ()
    missed: str | None = None


class PrefetchOrder:
    """The order in which one direction (forward or backward) needs its units."""

    def __init__(self, depth: int) -> None:
        """Look ``depth`` units ahead; 0 disables prefetch."""
        self._depth = depth
        self._recorded: list[str] = []
        self._seen: list[str] = []
        self._follows_order = False

    @property
    def latest(self) -> str | None:
        """The latest unit requested in this pass."""
        return self._seen[-1] if self._seen else None

    def begin(self) -> None:
        """Start a pass."""
        if self._seen:
            self._recorded, self._seen = self._seen, []
        self._follows_order = bool(self._recorded) and self._depth > 0

    def demand(self, unit: str) -> PrefetchDecision:
        """Record that ``unit`` is needed now, and return what to prefetch."""
        position = len(self._seen)
        self._seen.append(unit)
        if not self._follows_order:
            return PrefetchDecision()
        expected = self._recorded[position] if position < len(self._recorded) else "end"
        if expected != unit:
            self._follows_order = False
            return PrefetchDecision(missed=expected)
        return PrefetchDecision(ahead=tuple(self._recorded[position + 1 : position + 1 + self._depth]))


class PostStepGatherWaiter:
    """In stages 1 and 2, make a unit's forward wait for the gather that the last step started."""

    def __init__(self, units: Sequence[ModuleUnit]) -> None:
        """Register hooks on the modules."""
        self._units = {unit.name: unit for unit in units}
        for unit in units:
            unit.module.register_forward_pre_hook(ModuleHook(self._before_forward, unit.name), prepend=True)

    def _before_forward(self, name: str, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._units[name].wait()


class ParameterGatherer:
    """In stage 3, gather each unit when it is needed, and prefetch the next ones."""

    def __init__(
        self,
        units: Sequence[ModuleUnit],
        *,
        forward_prefetch: int,
        backward_prefetch: int,
        keep: Keep,
        backward: BackwardPass,
    ) -> None:
        """Register hooks on the modules; the root comes first in ``units``."""
        self._units = {unit.name: unit for unit in units}
        self._root = units[0].name
        self._keep = Keep(keep)
        self._forward_order = PrefetchOrder(forward_prefetch)
        self._backward_order = PrefetchOrder(backward_prefetch)
        self._backward = backward
        self._calls: dict[str, list[set[Node]]] = {unit.name: [] for unit in units}
        self._kept: set[str] = set()
        self._started: set[str] = set()
        backward.on_start.append(self._begin_backward)
        backward.on_end.append(self.release_all)
        for unit in units:
            self._hook(unit)

    def release_all(self) -> None:
        """Release every unit."""
        self._kept.clear()
        for unit in self._units.values():
            unit.release()

    def _hook(self, unit: ModuleUnit) -> None:
        # First before and last after, so that the user's own hooks see the parameters.
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
        if is_in_backward():
            self._backward.enter()
            self._need_in_backward(unit)
            return
        if name == self._root:
            self._begin_forward()
        if self._keep is Keep.LAST:
            self._release_kept(but=name)
        self._need(unit, self._forward_order)
        self._calls[name].append(collect_nodes((arguments, named)))

    def _begin_forward(self) -> None:
        for calls in self._calls.values():
            calls.clear()  # left by a forward that an exception ended
        self.release_all()
        self._forward_order.begin()

    def _after_forward(self, name: str, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if is_in_backward():
            return  # released in the backward, once its gradients are ready
        unit = self._units[name]
        inputs = self._calls[name].pop()
        if torch.is_grad_enabled():
            # Hooks of nodes, not of tensors: tensor hooks run first, and in them finished units are reduced
            # and released before this one is gathered.
            nodes = collect_nodes(output) - inputs
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
            # its output tensors cannot be found, so nothing will signal the start of its backward
            return True
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
        self._started.clear()
        self._backward_order.begin()

    def _before_backward(self, name: str, gradients: Sequence[torch.Tensor]) -> None:
        self._backward.enter()
        self._need_in_backward(self._units[name])

    def _need_in_backward(self, unit: ModuleUnit) -> None:
        if unit.name in self._started:  # started by another output, another call, or its recomputation
            unit.gather()
            unit.wait()
        else:
            self._started.add(unit.name)
            self._need(unit, self._backward_order)

    def _need(self, unit: ModuleUnit, order: PrefetchOrder) -> None:
        if not unit.flat:
            return
        demand = order.demand(unit.name)
        if demand.missed is not None:
            with native.prefetch_miss_range(unit.name, demand.missed):
                pass
        unit.gather()
        for name in demand.ahead:
            self._units[name].gather()
        unit.wait()
