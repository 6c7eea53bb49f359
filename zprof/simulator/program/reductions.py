"""The reductions of gradients in a step, and what comes of them: copies out, new parameters."""

from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import Copy, Direction, Kernel, Listing, Shape, Sync
from zprof.simulator.program.kernels import pad_kernel
from zprof.simulator.program.messages import Buckets, gather_parameters, reduce_gradients
from zprof.simulator.program.phases import Phase


class Reductions:
    """Reduces each unit (stage 3) or each full bucket (stages 0 to 2).  ``keys``: all so far."""

    def __init__(self, plan: Plan, out: Listing) -> None:
        self._plan = plan
        self._out = out
        self._buckets = Buckets(plan)
        self.keys: list[str] = []

    def reduce(self, phase: Phase) -> None:
        """After the backward of a unit."""
        plan = self._plan
        if not phase.reduces:
            return
        if plan.padding_ratio:
            self._out.add(pad_kernel(plan, phase))
        last = f"pad.{phase.key}" if plan.padding_ratio else phase.key
        if plan.stage == 3:
            key = f"reduce.{phase.key}"
            made = reduce_gradients(plan, key, plan.padded_unit_elements, last, phase.unit)
            self._out.annotated(f"FSDP::post_backward_reduce ({plan.unit_name(phase.unit)})", *made)
            self.keys += [collective.key for collective in made]
            return
        self._reduce_buckets(self._buckets.fill(plan.padded_unit_elements), last, phase.unit)
        if phase.unit == 0:
            self._reduce_buckets(self._buckets.rest(), last, phase.unit)

    def spill(self) -> None:
        """Copy the gradients out to the CPU, and let the host wait for them."""
        plan = self._plan
        owned = plan.padded_unit_elements // plan.shard_size * plan.precision.reduce.size_bytes
        for unit in reversed(range(plan.units)):
            copy = Copy(
                key=f"spill.{unit}",
                direction=Direction.TO_HOST,
                bytes=owned,
                rate_bytes_per_s=plan.offload.pcie_bytes_per_s,
                after=tuple(self.keys),
                unit=unit,
            )
            self._out.add(copy)
        self._out.add(Sync(after=tuple(f"spill.{unit}" for unit in range(plan.units))))

    def gather_parameters(self) -> None:
        """New parameters to all (stages 1 and 2): of each unit for its next forward, or all at once."""
        if self._plan.hide_optimizer_gather:
            elements = self._plan.padded_unit_elements
            self._out.add(
                *(
                    gather_parameters(self._plan, f"parameters.{unit}", elements)
                    for unit in range(self._plan.units)
                )
            )
            return
        plan, buckets = self._plan, Buckets(self._plan)
        sizes = buckets.fill(plan.padded_unit_elements * plan.units) + buckets.rest()
        for index, elements in enumerate(sizes):
            key = "parameters" if index == len(sizes) - 1 else f"parameters.bucket.{index}"
            self._out.add(gather_parameters(plan, key, elements))
        refresh = Kernel(key="refresh", shape=Shape.ELEMENTWISE, work_ns=20_000, after=("parameters",))
        self._out.add(refresh)

    def _reduce_buckets(self, full: list[int], last: str, unit: int) -> None:
        for elements in full:
            key = f"reduce.bucket.{len(self.keys)}"
            made = reduce_gradients(self._plan, key, elements, last, unit)
            self._out.add(*made)
            self.keys += [collective.key for collective in made]
