"""Launch each unit's reduction as soon as its last gradient is ready, in the same order on all ranks.

Units are reduced in reverse forward order.  A unit with unused parameters is reduced when its backward ends,
with zeros for those parameters.  ``unit_gradients`` has what a reduction is.
"""

from collections.abc import Mapping, Sequence

from torch import nn

from zprof.reference_engine.comm.collective import Handle
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.flat_unit import FlatUnit, ModuleUnit
from zprof.reference_engine.gradients.unit_gradients import BucketPool, ReductionPass, UnitGradients
from zprof.reference_engine.hooks import BackwardPass, EngineHook, will_have_gradient


class GradientReducer:
    """Tracks which gradients are ready, and launches reductions during the backward."""

    def __init__(
        self,
        gradients: Mapping[FlatUnit, UnitGradients],
        pools: Sequence[BucketPool],
        config: ZeroConfig,
        backward: BackwardPass,
    ) -> None:
        """Register hooks on the parameters; ``gradients`` is in forward order, and shares ``pools``."""
        self._gradients = gradients
        self._order: Sequence[FlatUnit] = tuple(reversed(list(gradients)))
        self._pools = pools
        self._micro_batches = config.micro_batches
        self._reduce_each = config.reduces_each_micro_batch
        self._overlap = config.overlap_reduce
        self._backward = backward
        self._backwards_done = 0
        self._in_flight = False
        self._pass: ReductionPass | None = None
        self._complete_units: set[FlatUnit] = set()
        self._launched_count = 0
        self._handles: list[Handle] = []
        backward.on_start.append(EngineHook(self._start_pass))
        backward.on_end.append(EngineHook(self._end_pass))
        for number, unit in enumerate(self._order):
            for index, parameter in enumerate(unit.parameters):
                hook = EngineHook(self._gradient_ready, number, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def check_reduced(self) -> None:
        """Check that the gradients hold the mean over all backward passes of the step.

        Raises:
            RuntimeError: backward() was not called for every micro-batch.
        """
        missing = self._micro_batches - self._backwards_done
        if missing:
            raise RuntimeError(
                f"{missing} of the step's {self._micro_batches} backward() calls are missing: call "
                "backward() for every micro-batch before step()"
            )
        if self._in_flight:
            raise RuntimeError(
                "a backward() was interrupted: call zero_grad(), and backward() again, before step()"
            )

    def zero(self) -> None:
        """Zero all gradients and reset the step, also after one that failed midway."""
        self._wait_handles()
        for gradients in self._gradients.values():
            gradients.zero()
        self._backwards_done = 0
        self._in_flight = False

    def _gradient_ready(self, number: int, index: int, parameter: nn.Parameter) -> None:
        self._backward.enter()
        unit = self._order[number]
        gradients = self._gradients[unit]
        if unit in self._complete_units or index not in gradients.missing:
            raise RuntimeError(
                f"parameter {unit.layout.slots[index].name} received a second gradient in one backward(), as "
                "with reentrant checkpointing of several functions that use it; pass use_reentrant=False"
            )
        gradients.add(index, collect=self._pass is not None)
        # A unit with all gradients waits for the end of its backward if that may still need the values of
        # parameters whose gradients are ready. It waits for the end of the pass if gathers are interleaved
        # with reductions, whose order must not depend on which parameters this rank used.
        must_wait = unit.watched or unit.policy.shard_parameters
        if not gradients.missing and not must_wait:
            self._complete_unit(unit)

    def end_unit_backward(self, module_unit: ModuleUnit) -> None:
        """Release and reduce a unit at the end of its backward: parameters without a gradient are unused."""
        module_unit.release()
        if not self._backward.accumulates:
            return
        for unit in module_unit.flat:
            if unit.trainable and unit not in self._complete_units:
                missing = (unit.parameters[index] for index in self._gradients[unit].missing)
                if not any(will_have_gradient(parameter) for parameter in missing):
                    self._complete_unit(unit)

    def _complete_unit(self, unit: FlatUnit) -> None:
        self._complete_units.add(unit)
        unit.release()  # free the parameters before allocating a bucket
        if self._pass is not None:
            while (
                self._launched_count < len(self._order)
                and self._order[self._launched_count] in self._complete_units
            ):
                self._launch_next(self._pass)

    def _start_pass(self) -> None:
        if not self._backward.accumulates:
            return
        if self._in_flight:
            raise RuntimeError("the last backward() did not finish: call zero_grad() and repeat the step")
        if self._backwards_done == self._micro_batches:
            self._in_flight = True  # this backward may already have changed the gradients
            raise RuntimeError(
                f"gradients are already reduced: micro_batches is {self._micro_batches}, and all backward() "
                "calls are done; call step(), then zero_grad() before the next backward()"
            )
        self._in_flight = True
        last = self._backwards_done + 1 == self._micro_batches
        if self._reduce_each:
            self._pass = ReductionPass(first=self._backwards_done == 0, last=last)
        else:
            self._pass = ReductionPass() if last else None
        for gradients in self._gradients.values():
            gradients.start_pass()
        self._complete_units = set()
        self._launched_count = 0

    def _launch_next(self, reduction_pass: ReductionPass) -> None:
        unit = self._order[self._launched_count]
        self._launched_count += 1
        handle = self._gradients[unit].reduce(reduction_pass)
        if self._overlap:
            self._handles.append(handle)
        else:
            handle.wait()

    def _end_pass(self) -> None:
        if not self._backward.accumulates:
            return
        while self._pass is not None and self._launched_count < len(self._order):
            self._launch_next(self._pass)
        self._wait_handles()
        self._backwards_done += 1
        self._in_flight = False

    def _wait_handles(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.wait()
        for pool in self._pools:
            pool.drain()
