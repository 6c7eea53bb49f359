"""When gradients are reduced: each unit at its last gradient, in an order that is fixed for all ranks.

The order is the reverse of the forward.  A unit with unused parameters is complete when its backward is over:
when the gradient of its input is there, or at the end.  It goes with zeros.  So all ranks launch the same
collectives in the same order, also where a parameter was used on one rank and not on another.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from zprof.reference_engine.comm import Handle
from zprof.reference_engine.gradients.unit_gradients import UnitGradients
from zprof.reference_engine.schedule.backward_pass import BackwardPass
from zprof.reference_engine.units.flat_unit import FlatUnit
from zprof.reference_engine.units.module_unit import ModuleUnit


class GradientReducer:
    """Counts gradients and launches reductions beside the backward."""

    def __init__(
        self,
        gradients: Mapping[FlatUnit, UnitGradients],
        *,
        overlap: bool,
        backward: BackwardPass,
        on_end: Callable[[], None],
    ) -> None:
        """Hook the parameters.

        ``gradients`` stands in forward order.  ``on_end`` is called when all reductions of a pass are there.
        """
        self.reduced = False
        self._gradients = gradients
        self._order: Sequence[FlatUnit] = tuple(reversed(list(gradients)))
        self._overlap = overlap
        self._backward = backward
        self._on_end = on_end
        self._missing: dict[FlatUnit, set[int]] = {}
        self._complete: set[FlatUnit] = set()
        self._launched = 0
        self._handles: list[Handle] = []
        backward.on_begin.append(self._begin)
        backward.on_end.append(self._end)
        for unit in gradients:
            for index, parameter in enumerate(unit.parameters):
                hook = self._hook(unit, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def zero(self) -> None:
        """Set all gradients to zero, in place; the next backward may come."""
        for gradients in self._gradients.values():
            gradients.zero()
        self.reduced = False

    def _hook(self, unit: FlatUnit, index: int) -> Callable[[nn.Parameter], None]:
        def gradient_ready(parameter: nn.Parameter) -> None:
            self._backward.enter()
            if unit in self._complete:
                raise RuntimeError(f"a gradient of unit {unit.name} came after the unit was reduced")
            self._gradients[unit].take(index)
            self._missing[unit].discard(index)
            if not self._missing[unit]:
                self._complete_unit(unit)

        return gradient_ready

    def unit_over(self, module_unit: ModuleUnit) -> None:
        """The backward of a unit is over: parameters without a gradient were not used."""
        for unit in module_unit.flat:
            if unit.trainable and unit not in self._complete:
                self._complete_unit(unit)
        module_unit.release()

    def _complete_unit(self, unit: FlatUnit) -> None:
        self._complete.add(unit)
        unit.release()
        self._launch_complete()

    def _begin(self) -> None:
        if self.reduced:
            raise RuntimeError("gradients are already reduced: call zero_grad() before the next backward()")
        self._missing = {unit: set(range(len(unit.parameters))) for unit in self._order}
        self._complete = set()
        self._launched = 0
        self._handles = []

    def _launch_complete(self) -> None:
        while self._launched < len(self._order) and self._order[self._launched] in self._complete:
            self._launch_next()

    def _launch_next(self) -> None:
        unit = self._order[self._launched]
        self._launched += 1
        handle = self._gradients[unit].reduce(self._missing[unit])
        if self._overlap:
            self._handles.append(handle)
        else:
            handle.wait()

    def _end(self) -> None:
        while self._launched < len(self._order):
            self._launch_next()
        for handle in self._handles:
            handle.wait()
        self._handles = []
        self._on_end()
        self.reduced = True
