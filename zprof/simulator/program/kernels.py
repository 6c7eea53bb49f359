"""The kernels of a phase, of the optimizer, and around gathers."""

from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import Kernel, Shape
from zprof.simulator.program.phases import Pass, Phase

#: Shapes of a block's kernels, and how much of the time each takes.
_MIX = (
    (Shape.NORM, 1),
    (Shape.GEMM, 6),
    (Shape.ATTENTION, 4),
    (Shape.ELEMENTWISE, 1),
    (Shape.GEMM, 8),
)


def phase_kernels(plan: Plan, phase: Phase, after: tuple[str, ...]) -> list[Kernel]:
    """The kernels of a pass; the first waits for ``after``, the last has the phase's key."""
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
    """Copies a gathered unit into place, when the gather is done."""
    return Kernel(
        key=f"split.{phase.key}",
        shape=Shape.SPLIT,
        work_ns=plan.compute.copy_ns,
        after=(phase.gather_key,),
        unit=phase.unit,
    )


def pad_kernel(plan: Plan, phase: Phase) -> Kernel:
    """Pads gradients that do not divide evenly."""
    work = int(plan.compute.backward_ns * plan.padding_ratio / 2)
    return Kernel(key=f"pad.{phase.key}", shape=Shape.PAD, work_ns=max(1, work), unit=phase.unit)


def optimizer_kernel(plan: Plan, after: tuple[str, ...]) -> Kernel:
    """One fused update of what the rank owns."""
    work = int(plan.compute.optimizer_ns * plan.compute.factor)
    return Kernel(key="optimizer", shape=Shape.OPTIMIZER, work_ns=max(1, work), after=after)
