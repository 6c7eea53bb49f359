"""List the passes of units in step order (per micro-batch: all forwards, all backwards) and their kernels."""

from dataclasses import dataclass
from enum import StrEnum

from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import Kernel, KernelKind


class Pass(StrEnum):
    """Kind of a unit's pass."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One pass of one unit.  ``gathers``: its parameters must be gathered first (stage 3)."""

    micro_batch: int
    unit: int
    kind: Pass
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


def list_phases(plan: Plan) -> list[Phase]:
    """Return all phases of a step."""
    return [
        phase for micro_batch in range(plan.micro_batches) for phase in _list_micro_batch(plan, micro_batch)
    ]


def _list_micro_batch(plan: Plan, number: int) -> list[Phase]:
    is_sharded, policy = plan.stage == 3, plan.gathering
    reduces = plan.reduce_each or number == plan.micro_batches - 1
    gathers_forward = is_sharded and (number == 0 or policy.reshard_after_forward)
    phases = [
        Phase(micro_batch=number, unit=unit, kind=Pass.FORWARD, gathers=gathers_forward, reduces=False)
        for unit in range(plan.units)
    ]
    for unit in reversed(range(plan.units)):
        is_kept = policy.keep_last_unit and unit == plan.units - 1
        gathers_again = is_sharded and policy.reshard_after_forward and not is_kept
        kinds = [Pass.RECOMPUTE, Pass.BACKWARD] if policy.recompute else [Pass.BACKWARD]
        for index, kind in enumerate(kinds):
            gathers = gathers_again and (index == 0 or policy.recompute_gathers)
            is_last_kind = kind is Pass.BACKWARD
            phases.append(
                Phase(
                    micro_batch=number,
                    unit=unit,
                    kind=kind,
                    gathers=gathers,
                    reduces=is_last_kind and reduces,
                )
            )
    return phases


#: Kinds of kernels in a block, with their weights in its time.
_KERNEL_MIX = (
    (KernelKind.NORM, 1),
    (KernelKind.GEMM, 6),
    (KernelKind.ATTENTION, 4),
    (KernelKind.ELEMENTWISE, 1),
    (KernelKind.GEMM, 8),
)


def make_phase_kernels(plan: Plan, phase: Phase, after: tuple[str, ...]) -> list[Kernel]:
    """Return the kernels of a pass; the first waits for ``after``, the last has the phase's key."""
    backward = phase.kind is Pass.BACKWARD
    compute = plan.compute
    count = max(1, compute.backward_kernels if backward else compute.forward_kernels)
    total = int((compute.backward_ns if backward else compute.forward_ns) * compute.factor)
    mix = [_KERNEL_MIX[index % len(_KERNEL_MIX)] for index in range(count)]
    weights = sum(weight for _, weight in mix)
    return [
        Kernel(
            key=phase.key if index == count - 1 else f"{phase.key}.{index}",
            kind=kind,
            work_ns=max(1, total * weight // weights),
            after=after if index == 0 else (),
            unit=phase.unit,
            backward=backward,
        )
        for index, (kind, weight) in enumerate(mix)
    ]


def make_split_kernel(plan: Plan, phase: Phase) -> Kernel:
    """Return the kernel that copies a gathered unit into place."""
    return Kernel(
        key=f"split.{phase.key}",
        kind=KernelKind.SPLIT,
        work_ns=plan.compute.copy_ns,
        after=(phase.gather_key,),
        unit=phase.unit,
    )


def make_pad_kernel(plan: Plan, phase: Phase) -> Kernel:
    """Return the kernel that pads gradients that do not divide evenly."""
    work = int(plan.compute.backward_ns * plan.padding_ratio / 2)
    return Kernel(key=f"pad.{phase.key}", kind=KernelKind.PAD, work_ns=max(1, work), unit=phase.unit)


def make_optimizer_kernel(plan: Plan, after: tuple[str, ...]) -> Kernel:
    """Return the fused update of the rank's own parameters."""
    work = int(plan.compute.optimizer_ns * plan.compute.factor)
    return Kernel(key="optimizer", kind=KernelKind.OPTIMIZER, work_ns=max(1, work), after=after)
