"""Gather each unit's parameters before its forward and backward, prefetch the next units, release afterwards.

Stage 3 moves per step: all-gather psi (forward) + all-gather psi (backward) + reduce-scatter psi (arXiv
1910.02054, section 7.2).

The first pass records the order.  A unit that is needed out of the recorded order stops prefetching for the
rest of that pass, and the next pass uses the order of that pass.  The order depends only on the calls, so
that all ranks gather in the same order.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from zprof.reference_engine.comm import native
from zprof.reference_engine.config import Keep
from zprof.reference_engine.flat_unit import ModuleUnit
from zprof.reference_engine.hooks import BackwardPass, EngineHook, UntracedHook, collect_nodes, is_in_backward


class PrefetchOrder:
    """Records the order in which a direction (forward or backward) needs units, to predict the next ones."""

    def __init__(self, depth: int) -> None:
        """Look ``depth`` units ahead; 0 disables prefetch."""
        self._depth = depth
        self._recorded: list[str] = []
        self._seen: list[str] = []
        self._follows_order = False

    @property
    def latest(self) -> str | None:
        """The last unit requested in this pass."""
        return self._seen[-1] if self._seen else None

    def start_pass(self) -> None:
        """Start a pass."""
        if self._seen:
            self._recorded, self._seen = self._seen, []
        self._follows_order = bool(self._recorded) and self._depth > 0

    def request(self, unit: str) -> tuple[list[str], str | None]:
        """Record that ``unit`` is needed now.

        Return the units to prefetch, and the unit that was expected instead, if any.
        """
        position = len(self._seen)
        self._seen.append(unit)
        if not self._follows_order:
            return [], None
        expected = self._recorded[position] if position < len(self._recorded) else "end"
        if expected != unit:
            self._follows_order = False
            return [], expected
        return self._recorded[position + 1 : position + 1 + self._depth], None


class PostStepGatherWaiter:
    """In stages 1 and 2, makes a unit's forward wait for the all-gather that the last step launched."""

    def __init__(self, units: Sequence[ModuleUnit]) -> None:
        """Register hooks on the modules."""
        self._units = {unit.name: unit for unit in units}
        for unit in units:
            unit.module.register_forward_pre_hook(UntracedHook(self._before_forward, unit.name), prepend=True)

    def _before_forward(self, name: str, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._units[name].wait()


class ParameterGatherer:
    """In stage 3, gathers each unit when it is needed, prefetches the next ones, and releases them."""

    def __init__(
        self,
        units: Sequence[ModuleUnit],
        *,
        forward_prefetch: int,
        backward_prefetch: int,
        keep: Keep,
        backward: BackwardPass,
    ) -> None:
        """Register hooks on the modules; the root is first in ``units``."""
        self._units = {unit.name: unit for unit in units}
        self._root = units[0].name
        self._keep = Keep(keep)
        self._forward_order = PrefetchOrder(forward_prefetch)
        self._backward_order = PrefetchOrder(backward_prefetch)
        self._backward = backward
        self._call_inputs: dict[str, list[set[Node]]] = {unit.name: [] for unit in units}
        self._kept: set[str] = set()
        self._units_in_backward: set[str] = set()
        backward.on_start.append(EngineHook(self._start_backward))
        backward.on_end.append(EngineHook(self.release_all))
        for unit in units:
            # The first pre-hook and the last forward hook, so that the user's own hooks see gathered
            # parameters.
            pre_hook = UntracedHook(self._before_forward, unit.name)
            unit.module.register_forward_pre_hook(pre_hook, prepend=True, with_kwargs=True)
            unit.module.register_forward_hook(UntracedHook(self._after_forward, unit.name))

    def release_all(self) -> None:
        """Release every unit."""
        self._kept.clear()
        for unit in self._units.values():
            unit.release()

    def _before_forward(
        self, name: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        unit = self._units[name]
        if is_in_backward():
            self._backward.enter()
            self._gather_for_backward(unit)
            return
        if name == self._root:
            for inputs_of_calls in self._call_inputs.values():
                inputs_of_calls.clear()  # left over from a forward that raised an exception
            self.release_all()
            self._forward_order.start_pass()
        if self._keep is Keep.LAST:
            for kept in self._kept - {name}:
                self._units[kept].release()
            self._kept &= {name}
        self._gather_now(unit, self._forward_order)
        self._call_inputs[name].append(collect_nodes((arguments, named)))

    def _after_forward(self, name: str, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if is_in_backward():
            return  # a recomputation: the unit is released when its gradients are ready
        unit = self._units[name]
        inputs = self._call_inputs[name].pop()
        if torch.is_grad_enabled():
            # Node hooks run after tensor hooks, in which finished units are reduced and released, so that
            # this unit is gathered after them.
            nodes = collect_nodes(output) - inputs
            for node in nodes:
                node.register_prehook(partial(self._before_backward, name))
            if self._stays_gathered(unit, nodes, inputs):
                self._kept.add(name)
        if name not in self._kept and not self._call_inputs[name]:
            unit.release()
        if name == self._root:
            for other, other_unit in self._units.items():
                if other not in self._kept:
                    other_unit.release()

    def _stays_gathered(self, unit: ModuleUnit, nodes: set[Node], inputs: set[Node]) -> bool:
        if not nodes and (inputs or any(flat.trainable for flat in unit.flat)):
            # no output tensor was found, so nothing will signal the start of the unit's backward
            return True
        last = self._keep is Keep.LAST and self._forward_order.latest == unit.name
        return last or self._keep is Keep.ALL

    def _start_backward(self) -> None:
        self._units_in_backward.clear()
        self._backward_order.start_pass()

    def _before_backward(self, name: str, gradients: Sequence[torch.Tensor]) -> None:
        self._backward.enter()
        self._gather_for_backward(self._units[name])

    def _gather_for_backward(self, unit: ModuleUnit) -> None:
        if unit.name in self._units_in_backward:  # by another output, another call, or the recomputation
            unit.gather()
            unit.wait()
        else:
            self._units_in_backward.add(unit.name)
            self._gather_now(unit, self._backward_order)

    def _gather_now(self, unit: ModuleUnit, order: PrefetchOrder) -> None:
        if not unit.flat:
            return
        ahead, missed = order.request(unit.name)
        if missed is not None:
            with native.prefetch_miss_range(unit.name, missed):
                pass
        unit.gather()
        for name in ahead:
            self._units[name].gather()
        unit.wait()
