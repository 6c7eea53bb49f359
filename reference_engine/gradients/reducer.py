"""When gradients are reduced: each unit at its last gradient, in an order that is fixed for all ranks.

The order is the reverse of the forward.  A unit with unused parameters is complete when its backward is over:
when the gradient of its input is there, or at the end.  It goes with zeros.  So all ranks launch the same
collectives in the same order, also where a parameter was used on one rank and not on another.

A step is ``micro_batches`` backward passes.  All of them reduce, or the last alone.
``torch.autograd.grad()`` is none of them.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from zprof.reference_engine.comm import Handle
from zprof.reference_engine.gradients.protocol import Turn
from zprof.reference_engine.gradients.unit_gradients import UnitGradients
from zprof.reference_engine.schedule.backward_pass import BackwardPass, will_have_gradient
from zprof.reference_engine.schedule.hooks import EngineHook
from zprof.reference_engine.units.flat_unit import FlatUnit
from zprof.reference_engine.units.module_unit import ModuleUnit


class GradientReducer:
    """Counts backward passes and gradients, and launches reductions beside the backward."""

    def __init__(
        self,
        gradients: Mapping[FlatUnit, UnitGradients],
        *,
        micro_batches: int,
        reduce_each: bool,
        overlap: bool,
        backward: BackwardPass,
        settle: Callable[[], None],
    ) -> None:
        """Hook the parameters.

        ``gradients`` stands in forward order.  ``settle`` waits for what shared buffers still wait for.
        """
        self._gradients = gradients
        self._order: Sequence[FlatUnit] = tuple(reversed(list(gradients)))
        self._micro_batches = micro_batches
        self._reduce_each = reduce_each
        self._overlap = overlap
        self._backward = backward
        self._settle = settle
        self._done = 0
        self._under_way = False
        self._turn: Turn | None = None
        self._missing: dict[FlatUnit, set[int]] = {}
        self._complete: set[FlatUnit] = set()
        self._launched = 0
        self._handles: list[Handle] = []
        backward.on_begin.append(self._begin)
        backward.on_end.append(self._end)
        for number, unit in enumerate(self._order):
            for index, parameter in enumerate(unit.parameters):
                hook = EngineHook(self._gradient_ready, number, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @property
    def reduced(self) -> bool:
        """Whether all backward passes of the step are over, so that ``owned`` is the mean."""
        return self._done == self._micro_batches and not self._under_way

    @property
    def missing_backwards(self) -> int:
        """How many backward passes the step still needs."""
        return self._micro_batches - self._done

    def zero(self) -> None:
        """Set all gradients to zero, in place; a step begins anew, also after one that was broken off."""
        self._wait()
        for gradients in self._gradients.values():
            gradients.zero()
        self._done = 0
        self._under_way = False

    def _gradient_ready(self, number: int, index: int, parameter: nn.Parameter) -> None:
        self._backward.enter()
        unit = self._order[number]
        if unit in self._complete or index not in self._missing[unit]:
            raise RuntimeError(
                f"parameter {unit.layout.slots[index].name} has a second gradient in one backward(), as by "
                "reentrant checkpointing of several functions that use it; pass use_reentrant=False there"
            )
        self._gradients[unit].presence.add(index)
        if self._turn is not None:
            self._gradients[unit].take(index)
        self._missing[unit].discard(index)
        if not self._missing[unit] and not self._waits(unit):
            self._complete_unit(unit)

    def unit_over(self, module_unit: ModuleUnit) -> None:
        """The backward of a unit is over: parameters without a gradient were not used in it."""
        module_unit.release()
        if not self._backward.accumulates:
            return
        for unit in module_unit.flat:
            if unit.trainable and unit not in self._complete and not self._comes_later(unit):
                self._complete_unit(unit)

    def _complete_unit(self, unit: FlatUnit) -> None:
        self._complete.add(unit)
        unit.release()  # before a bucket is taken
        if self._turn is not None:
            self._launch_complete(self._turn)

    def _waits(self, unit: FlatUnit) -> bool:
        """Whether a unit that has all its gradients is complete only when its backward is over, or the pass.

        Its backward may need values without their gradients.  And where gathers run between reductions, the
        order of both must not depend on which parameters this rank has used.
        """
        return unit.watched or unit.policy.shard_parameters

    def _comes_later(self, unit: FlatUnit) -> bool:
        return any(will_have_gradient(unit.parameters[index]) for index in self._missing[unit])

    def _begin(self) -> None:
        if not self._backward.accumulates:
            return
        self._check_begin()
        self._under_way = True
        last = self._done + 1 == self._micro_batches
        if self._reduce_each:
            self._turn = Turn(first=self._done == 0, last=last)
        else:
            self._turn = Turn() if last else None
        self._missing = {unit: set(range(len(unit.parameters))) for unit in self._order}
        self._complete = set()
        self._launched = 0

    def _check_begin(self) -> None:
        if self._under_way:
            raise RuntimeError("the last backward() did not end: call zero_grad() and start the step again")
        if self._done == self._micro_batches:
            self._under_way = True  # it may have added to gradients already: they are no mean any more
            raise RuntimeError(
                f"gradients are already reduced: micro_batches is {self._micro_batches}, and all backward() "
                "calls came; call step(), and call zero_grad() before the next backward()"
            )

    def _launch_complete(self, turn: Turn) -> None:
        while self._launched < len(self._order) and self._order[self._launched] in self._complete:
            self._launch_next(turn)

    def _launch_next(self, turn: Turn) -> None:
        unit = self._order[self._launched]
        self._launched += 1
        handle = self._gradients[unit].reduce(self._missing[unit], turn)
        if self._overlap:
            self._handles.append(handle)
        else:
            handle.wait()

    def _end(self) -> None:
        if not self._backward.accumulates:
            return
        while self._turn is not None and self._launched < len(self._order):
            self._launch_next(self._turn)
        self._wait()
        self._done += 1
        self._under_way = False

    def _wait(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.wait()
        self._settle()
