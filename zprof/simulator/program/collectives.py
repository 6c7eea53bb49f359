"""Build the collectives of a step: prefetched gathers of stage 3, gradient reductions, parameter gathers."""

from collections.abc import Sequence

from zprof.model.collectives import CollectiveKind
from zprof.simulator.plan import DType, Limiter, Plan
from zprof.simulator.program.instructions import (
    Axis,
    Begin,
    Collective,
    Copy,
    Direction,
    End,
    Instruction,
    InstructionList,
    Kernel,
    Lane,
    Shape,
    Sync,
)
from zprof.simulator.program.phases import Pass, Phase, pad_kernel, split_kernel


class Gathers:
    """Launch gathers in order, no further ahead than the plan allows."""

    def __init__(self, plan: Plan, phases: Sequence[Phase], out: InstructionList) -> None:
        self._plan = plan
        self._phases = [phase for phase in phases if phase.gathers]
        self._out = out
        self._launched = 0

    def needed(self, phase: Phase) -> bool:
        """Return whether a phase's parameters must be gathered."""
        return phase.gathers and self._plan.shard_size > 1

    def launch(self, phase: Phase, ahead: int) -> None:
        """Launch the gathers of this phase and the ``ahead`` next, unless already launched."""
        if not self.needed(phase):
            return
        own = self._phases.index(phase)
        until = min(own + ahead + 1, len(self._phases))
        while self._launched < until and not self._held(own, self._launched):
            self._launch(self._launched, ahead=self._launched > own)
            self._launched += 1

    def ready(self, phase: Phase) -> tuple[str, ...]:
        """Return what the first kernel of a phase waits for; a gathered unit is first copied into place."""
        if not self.needed(phase):
            return ()
        if not self._plan.compute.copy_ns:
            return (phase.gather_key,)
        kernel = split_kernel(self._plan, phase)
        self._out.annotated(f"FSDP::all_gather_copy_out ({self._plan.unit_name(phase.unit)})", kernel)
        return ()

    def _held(self, own: int, position: int) -> bool:
        """Return whether an unfinished pass holds the unit, which is gathered again only after its
        release.
        """
        unit = self._phases[position].unit
        return any(phase.unit == unit for phase in self._phases[own:position])

    def _launch(self, position: int, *, ahead: bool) -> None:
        target = self._phases[position]
        after = self._limit(position)
        if self._plan.offload.enabled:
            self._out.add(self._fetch(target))
            after.append(f"fetch.{target.key}")
        unit = self._plan.unit_name(target.unit)
        gather: list[Instruction] = [
            Begin(name=f"FSDP::all_gather ({unit})"),
            gather_unit(self._plan, target, tuple(after)),
            End(name=f"FSDP::all_gather ({unit})"),
        ]
        if ahead:
            way = "forward" if target.kind is Pass.FORWARD else "backward"
            self._out.annotated(f"FSDP::{way}_prefetch for {unit}", *gather)
        else:
            self._out.add(*gather)

    def _limit(self, position: int) -> list[str]:
        """Bound the memory: return what must have been used before this gather."""
        after = ["optimizer"] if position == 0 else []
        freed = position - 1 - self._plan.prefetch
        if freed < 0:
            return after
        used, limiter = self._phases[freed].key, self._plan.gathering.limiter
        if limiter is Limiter.EVENT:
            after.append(used)
        if limiter is Limiter.HOST:
            self._out.annotated("FullyShardedDataParallel.rate_limiter", Sync(after=(used,)))
        return after

    def _fetch(self, phase: Phase) -> Copy:
        owned = self._plan.padded_unit_elements // self._plan.shard_size
        return Copy(
            key=f"fetch.{phase.key}",
            direction=Direction.TO_DEVICE,
            bytes=owned * self._plan.precision.gather.size_bytes,
            rate_bytes_per_s=self._plan.offload.pcie_bytes_per_s,
            unit=phase.unit,
        )


class Reductions:
    """Reduce each unit (stage 3) or each full bucket (stages 0 to 2).  ``keys``: all reductions so far."""

    def __init__(self, plan: Plan, out: InstructionList) -> None:
        self._plan = plan
        self._out = out
        self._buckets = Buckets(plan)
        self.keys: list[str] = []

    def reduce(self, phase: Phase) -> None:
        """Reduce after the backward of a unit."""
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
        """Copy the gradients to the CPU, and let the host wait for them."""
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
        """Gather new parameters (stages 1 and 2): per unit for its next forward, or all at once."""
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


def gather_unit(plan: Plan, phase: Phase, after: tuple[str, ...]) -> Collective:
    """Return the gather of a unit's parameters, before one of its passes."""
    return Collective(
        key=phase.gather_key,
        kind=CollectiveKind.ALL_GATHER,
        axis=Axis.SHARD,
        lane=Lane.GATHER,
        elements=plan.padded_unit_elements,
        dtype=plan.precision.gather,
        after=after,
        unit=phase.unit,
    )


def reduce_gradients(plan: Plan, key: str, elements: int, after: str, unit: int | None) -> list[Collective]:
    """Return the reductions of gradients to their owners (stage 0: to all), then over the replicas."""
    whole = plan.stage == 0
    kind = CollectiveKind.ALL_REDUCE if whole else CollectiveKind.REDUCE_SCATTER
    made = []
    if plan.shard_size > 1:
        made.append(_make_reduction(plan, key, kind, Axis.SHARD, Lane.REDUCE, elements, after, unit))
    if plan.replicas > 1:
        owned = elements if whole else elements // plan.shard_size
        before = key if made else after
        kind = CollectiveKind.ALL_REDUCE
        made.append(
            _make_reduction(plan, f"{key}.all", kind, Axis.REPLICATE, Lane.REPLICATE, owned, before, unit)
        )
    return made


def _make_reduction(
    plan: Plan,
    key: str,
    kind: CollectiveKind,
    axis: Axis,
    lane: Lane,
    elements: int,
    after: str,
    unit: int | None,
) -> Collective:
    return Collective(
        key=key,
        kind=kind,
        axis=axis,
        lane=lane,
        elements=elements,
        dtype=plan.precision.reduce,
        after=(after,),
        unit=unit,
    )


def gather_parameters(plan: Plan, key: str, elements: int) -> Collective:
    """Return the gather of new parameters from their owners, after the optimizer (stages 1 and 2)."""
    return Collective(
        key=key,
        kind=CollectiveKind.ALL_GATHER,
        axis=Axis.SHARD,
        lane=Lane.GATHER,
        elements=elements,
        dtype=plan.precision.gather,
        after=("optimizer",),
    )


def reduce_scalar(key: str, after: tuple[str, ...]) -> Collective:
    """Return the all-reduce of one element over all ranks: the loss, or the gradient norm."""
    return Collective(
        key=key,
        kind=CollectiveKind.ALL_REDUCE,
        axis=Axis.WORLD,
        lane=Lane.WORLD,
        elements=1,
        dtype=DType.FLOAT32,
        after=after,
    )


def reduce_activations(plan: Plan, phase: Phase) -> Collective:
    """Return the all-reduce of activations over the tensor-parallel ranks, after a pass."""
    return Collective(
        key=f"tensor.{phase.key}",
        kind=CollectiveKind.ALL_REDUCE,
        axis=Axis.TENSOR,
        lane=Lane.TENSOR,
        elements=plan.tensor_elements,
        dtype=plan.precision.gather,
        after=(phase.key,),
        unit=phase.unit,
    )


class Buckets:
    """Accumulate gradients until there are enough for one reduction (stages 0 to 2)."""

    def __init__(self, plan: Plan) -> None:
        size = max(plan.bucket_bytes // plan.precision.reduce.size_bytes, plan.shard_size)
        self._size = size - size % plan.shard_size
        self._pending = 0

    def fill(self, elements: int) -> list[int]:
        """Add gradients; return the elements of each bucket that is now full."""
        self._pending += elements
        full, self._pending = divmod(self._pending, self._size)
        return [self._size] * full

    def rest(self) -> list[int]:
        """Return what is left at the end."""
        left, self._pending = self._pending, 0
        return [left] if left else []
