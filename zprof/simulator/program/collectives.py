"""Build the collectives of a step: prefetched gathers of stage 3, gradient reductions, parameter gathers."""

from collections.abc import Sequence

from zprof.model.collectives import CollectiveKind
from zprof.simulator.plan import DType, Limiter, SimulationPlan
from zprof.simulator.program.instructions import (
    CollectiveLaunch,
    CopyDirection,
    CopyLaunch,
    DeviceStream,
    EndAnnotation,
    Instruction,
    InstructionList,
    KernelLaunch,
    KernelWork,
    MeshAxis,
    StartAnnotation,
    Sync,
)
from zprof.simulator.program.phases import PassKind, UnitPass, make_pad_kernel, make_split_kernel


class GatherLauncher:
    """Launch gathers in order, at most as far ahead as the plan allows."""

    def __init__(self, plan: SimulationPlan, phases: Sequence[UnitPass], out: InstructionList) -> None:
        self._plan = plan
        self._phases = [phase for phase in phases if phase.gathers]
        self._out = out
        self._launched = 0

    def is_needed(self, phase: UnitPass) -> bool:
        """Return True if a phase's parameters must be gathered."""
        return phase.gathers and self._plan.shard_size > 1

    def launch(self, phase: UnitPass, ahead: int) -> None:
        """Launch the gathers of this phase and the next ``ahead`` phases, unless already launched."""
        if not self.is_needed(phase):
            return
        own_index = self._phases.index(phase)
        stop = min(own_index + ahead + 1, len(self._phases))
        while self._launched < stop and not self._is_in_use(own_index, self._launched):
            self._launch(self._launched, ahead=self._launched > own_index)
            self._launched += 1

    def prepare(self, phase: UnitPass) -> tuple[str, ...]:
        """Add the copy of a gathered unit into place; return the dependencies of the phase's first kernel."""
        if not self.is_needed(phase):
            return ()
        if not self._plan.compute.copy_ns:
            return (phase.gather_key,)
        kernel = make_split_kernel(self._plan, phase)
        self._out.add_annotated(f"FSDP::all_gather_copy_out ({self._plan.unit_name(phase.unit)})", kernel)
        return ()

    def _is_in_use(self, own_index: int, position: int) -> bool:
        """Return True if an unfinished pass uses the unit, which is gathered again only after its release."""
        unit = self._phases[position].unit
        return any(phase.unit == unit for phase in self._phases[own_index:position])

    def _launch(self, position: int, *, ahead: bool) -> None:
        target = self._phases[position]
        after = self._list_memory_dependencies(position)
        if self._plan.offload.enabled:
            self._out.add(self._make_fetch(target))
            after.append(f"fetch.{target.key}")
        unit = self._plan.unit_name(target.unit)
        gather: list[Instruction] = [
            StartAnnotation(name=f"FSDP::all_gather ({unit})"),
            make_unit_gather(self._plan, target, tuple(after)),
            EndAnnotation(name=f"FSDP::all_gather ({unit})"),
        ]
        if ahead:
            direction = "forward" if target.kind is PassKind.FORWARD else "backward"
            self._out.add_annotated(f"FSDP::{direction}_prefetch for {unit}", *gather)
        else:
            self._out.add(*gather)

    def _list_memory_dependencies(self, position: int) -> list[str]:
        """Return the keys that this gather waits for to limit memory."""
        after = ["optimizer"] if position == 0 else []
        freed_index = position - 1 - self._plan.prefetch
        if freed_index < 0:
            return after
        freed_key, limiter = self._phases[freed_index].key, self._plan.gathering.limiter
        if limiter is Limiter.EVENT:
            after.append(freed_key)
        if limiter is Limiter.HOST:
            self._out.add_annotated("FullyShardedDataParallel.rate_limiter", Sync(after=(freed_key,)))
        return after

    def _make_fetch(self, phase: UnitPass) -> CopyLaunch:
        shard_elements = self._plan.padded_unit_elements // self._plan.shard_size
        return CopyLaunch(
            key=f"fetch.{phase.key}",
            direction=CopyDirection.TO_DEVICE,
            bytes=shard_elements * self._plan.precision.gather.size_bytes,
            rate_bytes_per_s=self._plan.offload.pcie_bytes_per_s,
            unit=phase.unit,
        )


class Reductions:
    """Reduce each unit (stage 3) or full bucket (stages 0 to 2).  ``keys``: all reductions so far."""

    def __init__(self, plan: SimulationPlan, out: InstructionList) -> None:
        self._plan = plan
        self._out = out
        self._buckets = Buckets(plan)
        self.keys: list[str] = []

    def reduce(self, phase: UnitPass) -> None:
        """Reduce after the backward of a unit."""
        plan = self._plan
        if not phase.reduces:
            return
        if plan.padding_ratio:
            self._out.add(make_pad_kernel(plan, phase))
        last_key = f"pad.{phase.key}" if plan.padding_ratio else phase.key
        if plan.stage == 3:
            key = f"reduce.{phase.key}"
            reductions = make_gradient_reductions(plan, key, plan.padded_unit_elements, last_key, phase.unit)
            self._out.add_annotated(f"FSDP::post_backward_reduce ({plan.unit_name(phase.unit)})", *reductions)
            self.keys += [collective.key for collective in reductions]
            return
        self._reduce_buckets(self._buckets.fill(plan.padded_unit_elements), last_key, phase.unit)
        if phase.unit == 0:
            self._reduce_buckets(self._buckets.flush(), last_key, phase.unit)

    def offload_gradients(self) -> None:
        """Copy the gradients to the CPU, and make the host wait for them."""
        plan = self._plan
        shard_elements = plan.padded_unit_elements // plan.shard_size * plan.precision.reduce.size_bytes
        for unit in reversed(range(plan.units)):
            copy = CopyLaunch(
                key=f"spill.{unit}",
                direction=CopyDirection.TO_HOST,
                bytes=shard_elements,
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
                    make_parameter_gather(self._plan, f"parameters.{unit}", elements)
                    for unit in range(self._plan.units)
                )
            )
            return
        plan, buckets = self._plan, Buckets(self._plan)
        sizes = buckets.fill(plan.padded_unit_elements * plan.units) + buckets.flush()
        for index, elements in enumerate(sizes):
            key = "parameters" if index == len(sizes) - 1 else f"parameters.bucket.{index}"
            self._out.add(make_parameter_gather(plan, key, elements))
        refresh = KernelLaunch(
            key="refresh", kind=KernelWork.ELEMENTWISE, work_ns=20_000, after=("parameters",)
        )
        self._out.add(refresh)

    def _reduce_buckets(self, bucket_sizes: list[int], last_key: str, unit: int) -> None:
        for elements in bucket_sizes:
            key = f"reduce.bucket.{len(self.keys)}"
            reductions = make_gradient_reductions(self._plan, key, elements, last_key, unit)
            self._out.add(*reductions)
            self.keys += [collective.key for collective in reductions]


def make_unit_gather(plan: SimulationPlan, phase: UnitPass, after: tuple[str, ...]) -> CollectiveLaunch:
    """Return the gather of a unit's parameters, before one of its passes."""
    return CollectiveLaunch(
        key=phase.gather_key,
        kind=CollectiveKind.ALL_GATHER,
        axis=MeshAxis.SHARD,
        lane=DeviceStream.GATHER,
        elements=plan.padded_unit_elements,
        dtype=plan.precision.gather,
        after=after,
        unit=phase.unit,
    )


def make_gradient_reductions(
    plan: SimulationPlan, key: str, elements: int, after: str, unit: int | None
) -> list[CollectiveLaunch]:
    """Return the reductions of gradients to their owners (stage 0: to all ranks), then over the replicas."""
    is_unsharded = plan.stage == 0
    kind = CollectiveKind.ALL_REDUCE if is_unsharded else CollectiveKind.REDUCE_SCATTER
    reductions = []
    if plan.shard_size > 1:
        reductions.append(
            _make_reduction(plan, key, kind, MeshAxis.SHARD, DeviceStream.REDUCE, elements, after, unit)
        )
    if plan.replicas > 1:
        shard_elements = elements if is_unsharded else elements // plan.shard_size
        previous_key = key if reductions else after
        kind = CollectiveKind.ALL_REDUCE
        reductions.append(
            _make_reduction(
                plan,
                f"{key}.all",
                kind,
                MeshAxis.REPLICATE,
                DeviceStream.REPLICATE,
                shard_elements,
                previous_key,
                unit,
            )
        )
    return reductions


def _make_reduction(
    plan: SimulationPlan,
    key: str,
    kind: CollectiveKind,
    axis: MeshAxis,
    lane: DeviceStream,
    elements: int,
    after: str,
    unit: int | None,
) -> CollectiveLaunch:
    return CollectiveLaunch(
        key=key,
        kind=kind,
        axis=axis,
        lane=lane,
        elements=elements,
        dtype=plan.precision.reduce,
        after=(after,),
        unit=unit,
    )


def make_parameter_gather(plan: SimulationPlan, key: str, elements: int) -> CollectiveLaunch:
    """Return the gather of new parameters from their owners, after the optimizer (stages 1 and 2)."""
    return CollectiveLaunch(
        key=key,
        kind=CollectiveKind.ALL_GATHER,
        axis=MeshAxis.SHARD,
        lane=DeviceStream.GATHER,
        elements=elements,
        dtype=plan.precision.gather,
        after=("optimizer",),
    )


def make_scalar_reduction(key: str, after: tuple[str, ...]) -> CollectiveLaunch:
    """Return the all-reduce of one element over all ranks: the loss, or the gradient norm."""
    return CollectiveLaunch(
        key=key,
        kind=CollectiveKind.ALL_REDUCE,
        axis=MeshAxis.WORLD,
        lane=DeviceStream.WORLD,
        elements=1,
        dtype=DType.FLOAT32,
        after=after,
    )


def make_activation_reduction(plan: SimulationPlan, phase: UnitPass) -> CollectiveLaunch:
    """Return the all-reduce of activations over the tensor-parallel ranks, after a pass."""
    return CollectiveLaunch(
        key=f"tensor.{phase.key}",
        kind=CollectiveKind.ALL_REDUCE,
        axis=MeshAxis.TENSOR,
        lane=DeviceStream.TENSOR,
        elements=plan.tensor_elements,
        dtype=plan.precision.gather,
        after=(phase.key,),
        unit=phase.unit,
    )


class Buckets:
    """Accumulate gradients until there are enough for one reduction (stages 0 to 2)."""

    def __init__(self, plan: SimulationPlan) -> None:
        size = max(plan.bucket_bytes // plan.precision.reduce.size_bytes, plan.shard_size)
        self._size = size - size % plan.shard_size
        self._pending = 0

    def fill(self, elements: int) -> list[int]:
        """Add gradients; return the sizes of the buckets that are now full, in elements."""
        self._pending += elements
        bucket_count, self._pending = divmod(self._pending, self._size)
        return [self._size] * bucket_count

    def flush(self) -> list[int]:
        """Return the size of the remaining bucket, if any."""
        remaining, self._pending = self._pending, 0
        return [remaining] if remaining else []
