"""List the passes of units in step order (per micro-batch: all forwards, all backwards) and their kernels."""

from enum import StrEnum

from msgspec import Struct

from zprof.simulator.plan import SimulationPlan
from zprof.simulator.program.instructions import KernelLaunch, KernelWork

#: Kinds of kernels in a block, with their weights in its time.
_KERNEL_MIX = (
    (KernelWork.NORM, 1),
    (KernelWork.GEMM, 6),
    (KernelWork.ATTENTION, 4),
    (KernelWork.ELEMENTWISE, 1),
    (KernelWork.GEMM, 8),
)


class PassKind(StrEnum):
    """Kind of a unit's pass."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


class UnitPass(Struct, frozen=True, kw_only=True):
    """One pass of one unit.  ``gathers``: its parameters must be gathered first (stage 3)."""

    micro_batch: int
    unit: int
    kind: PassKind
    gathers: bool
    reduces: bool

    @property
    def key(self) -> str:
        """Key of its last kernel."""
        return f"{self.kind}.{self.micro_batch}.{self.unit}"

    @property
    def gather_key(self) -> str:
        """Key of its gather."""
        return f"gather.{self.key}"


def list_phases(plan: SimulationPlan) -> list[UnitPass]:
    """Return all phases of a step."""
    return [
        phase for micro_batch in range(plan.micro_batches) for phase in _list_micro_batch(plan, micro_batch)
    ]


def _list_micro_batch(plan: SimulationPlan, number: int) -> list[UnitPass]:
    is_sharded, policy = plan.stage == 3, plan.gathering
    reduces = plan.reduce_each or number == plan.micro_batches - 1
    gathers_forward = is_sharded and (number == 0 or policy.reshard_after_forward)
    phases = [
        UnitPass(micro_batch=number, unit=unit, kind=PassKind.FORWARD, gathers=gathers_forward, reduces=False)
        for unit in range(plan.units)
    ]
    for unit in reversed(range(plan.units)):
        is_kept = policy.keep_last_unit and unit == plan.units - 1
        gathers_again = is_sharded and policy.reshard_after_forward and not is_kept
        kinds = [PassKind.RECOMPUTE, PassKind.BACKWARD] if policy.recompute else [PassKind.BACKWARD]
        for index, kind in enumerate(kinds):
            gathers = gathers_again and (index == 0 or policy.recompute_gathers)
            is_last_kind = kind is PassKind.BACKWARD
            phases.append(
                UnitPass(
                    micro_batch=number,
                    unit=unit,
                    kind=kind,
                    gathers=gathers,
                    reduces=is_last_kind and reduces,
                )
            )
    return phases


def make_phase_kernels(plan: SimulationPlan, phase: UnitPass, after: tuple[str, ...]) -> list[KernelLaunch]:
    """Return the kernels of a pass; the first waits for ``after``, the last has the phase's key."""
    backward = phase.kind is PassKind.BACKWARD
    compute = plan.compute
    count = max(1, compute.backward_kernels if backward else compute.forward_kernels)
    total = int((compute.backward_ns if backward else compute.forward_ns) * compute.factor)
    mix = [_KERNEL_MIX[index % len(_KERNEL_MIX)] for index in range(count)]
    weights = sum(weight for _, weight in mix)
    return [
        KernelLaunch(
            key=phase.key if index == count - 1 else f"{phase.key}.{index}",
            kind=kind,
            work_ns=max(1, total * weight // weights),
            after=after if index == 0 else (),
            unit=phase.unit,
            backward=backward,
        )
        for index, (kind, weight) in enumerate(mix)
    ]


def make_split_kernel(plan: SimulationPlan, phase: UnitPass) -> KernelLaunch:
    """Return the kernel that copies a gathered unit into place."""
    return KernelLaunch(
        key=f"split.{phase.key}",
        kind=KernelWork.SPLIT,
        work_ns=plan.compute.copy_ns,
        after=(phase.gather_key,),
        unit=phase.unit,
    )


def make_pad_kernel(plan: SimulationPlan, phase: UnitPass) -> KernelLaunch:
    """Return the kernel that pads gradients that do not divide evenly."""
    work = int(plan.compute.backward_ns * plan.padding_ratio / 2)
    return KernelLaunch(key=f"pad.{phase.key}", kind=KernelWork.PAD, work_ns=max(1, work), unit=phase.unit)


def make_optimizer_kernel(plan: SimulationPlan, after: tuple[str, ...]) -> KernelLaunch:
    """Return the fused update of the rank's own parameters."""
    work = int(plan.compute.optimizer_ns * plan.compute.factor)
    return KernelLaunch(key="optimizer", kind=KernelWork.OPTIMIZER, work_ns=max(1, work), after=after)
