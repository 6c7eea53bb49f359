"""List the passes of units in step order (per micro-batch: all forwards, all backwards), with their
kernels.
"""

from dataclasses import dataclass
from enum import StrEnum

from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import Kernel, Shape


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
    sharded, rules = plan.stage == 3, plan.gathering
    reduces = plan.reduce_each or number == plan.micro_batches - 1
    fresh = sharded and (number == 0 or rules.reshard_after_forward)
    found = [
        Phase(micro_batch=number, unit=unit, kind=Pass.FORWARD, gathers=fresh, reduces=False)
        for unit in range(plan.units)
    ]
    for unit in reversed(range(plan.units)):
        kept = rules.keep_last_unit and unit == plan.units - 1
        again = sharded and rules.reshard_after_forward and not kept
        kinds = [Pass.RECOMPUTE, Pass.BACKWARD] if rules.recompute else [Pass.BACKWARD]
        for index, kind in enumerate(kinds):
            gathers = again and (index == 0 or rules.recompute_gathers)
            last = kind is Pass.BACKWARD
            found.append(
                Phase(micro_batch=number, unit=unit, kind=kind, gathers=gathers, reduces=last and reduces)
            )
    return found


#: Shapes of a block's kernels, with their weights in its time.
_MIX = (
    (Shape.NORM, 1),
    (Shape.GEMM, 6),
    (Shape.ATTENTION, 4),
    (Shape.ELEMENTWISE, 1),
    (Shape.GEMM, 8),
)


def phase_kernels(plan: Plan, phase: Phase, after: tuple[str, ...]) -> list[Kernel]:
    """Return the kernels of a pass; the first waits for ``after``, the last has the phase's key."""
    backward = phase.kind is Pass.BACKWARD
    compute = plan.compute
    count = max(1, compute.backward_kernels if backward else compute.forward_kernels)
    total = int((compute.backward_ns if backward else compute.forward_ns) * compute.factor)
    mix = [_MIX[index % len(_MIX)] for index in range(count)]
    weights = sum(weight for _, weight in mix)
    return [
        Kernel(
            key=phase.key if index == count - 1 else f"{phase.key}.{index}",
            shape=shape,
            work_ns=max(1, total * weight // weights),
            after=after if index == 0 else (),
            unit=phase.unit,
            backward=backward,
        )
        for index, (shape, weight) in enumerate(mix)
    ]


def split_kernel(plan: Plan, phase: Phase) -> Kernel:
    """Return the kernel that copies a gathered unit into place."""
    return Kernel(
        key=f"split.{phase.key}",
        shape=Shape.SPLIT,
        work_ns=plan.compute.copy_ns,
        after=(phase.gather_key,),
        unit=phase.unit,
    )


def pad_kernel(plan: Plan, phase: Phase) -> Kernel:
    """Return the kernel that pads gradients that do not divide evenly."""
    work = int(plan.compute.backward_ns * plan.padding_ratio / 2)
    return Kernel(key=f"pad.{phase.key}", shape=Shape.PAD, work_ns=max(1, work), unit=phase.unit)


def optimizer_kernel(plan: Plan, after: tuple[str, ...]) -> Kernel:
    """Return the fused update of what the rank owns."""
    work = int(plan.compute.optimizer_ns * plan.compute.factor)
    return Kernel(key="optimizer", shape=Shape.OPTIMIZER, work_ns=max(1, work), after=after)
