"""Build one step of every rank: load, forward, backward, optimizer, and the collectives that
sharding adds.
"""

from zprof.model.time import LateReason
from zprof.simulator.plan import HostDelay, SimulationPlan, Vendor
from zprof.simulator.program.collectives import (
    GatherLauncher,
    Reductions,
    make_activation_reduction,
    make_scalar_reduction,
)
from zprof.simulator.program.instructions import (
    CopyDirection,
    CopyLaunch,
    DeviceStream,
    EndAnnotation,
    HostWork,
    Instruction,
    InstructionList,
    KernelLaunch,
    KernelWork,
    Reallocate,
    StartAnnotation,
    Sync,
)
from zprof.simulator.program.phases import (
    PassKind,
    UnitPass,
    list_phases,
    make_optimizer_kernel,
    make_phase_kernels,
)

#: Number of the first recorded step; earlier steps are warm-up.
FIRST_STEP = 3
_OPTIMIZER_NAME = "Optimizer.step#AdamW.step"
_LOADER_NAME = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_PCIE_BYTES_PER_S = 20e9


def make_step_instructions(plan: SimulationPlan, step: int) -> list[Instruction]:
    """Return the host instructions of step ``step`` (0-based)."""
    return _StepInstructions(plan, step).instructions()


class _StepInstructions:
    def __init__(self, plan: SimulationPlan, step: int) -> None:
        self._plan = plan
        self._step = step
        self._out = InstructionList()
        self._phases = list_phases(plan)
        self._gathers = GatherLauncher(plan, self._phases, self._out)
        self._reductions = Reductions(plan, self._out)
        # ``count`` positions spread evenly over ``size`` positions.
        size = len(self._phases)
        self._retries = [
            (2 * index + 1) * size // (2 * plan.allocator.retries_per_step)
            for index in range(plan.allocator.retries_per_step)
        ]

    def instructions(self) -> list[Instruction]:
        name = f"ProfilerStep#{FIRST_STEP + self._step}"
        self._start_profilers()
        self._out.add(StartAnnotation(name=name))
        self._load()
        for index, phase in enumerate(self._phases):
            self._add_phase(index, phase)
            self._check_loss(phase)
        if self._plan.offload.enabled:
            self._reductions.offload_gradients()
        self._optimize(self._reduce_grad_norm())
        self._report_loss()
        self._out.add(EndAnnotation(name=name))
        return self._out.lines

    def _check_loss(self, phase: UnitPass) -> None:
        """Read the loss before the backward, as training loops do to stop on NaN."""
        if (
            self._plan.host.reads_loss
            and phase.kind is PassKind.FORWARD
            and phase.unit == self._plan.units - 1
        ):
            self._read_scalar((phase.key,))

    def _start_profilers(self) -> None:
        """Start the profilers before the first step; this takes longer on some ranks."""
        windows = self._plan.windows.items() if self._step == 0 else ()
        self._out.add(
            *(
                HostWork(ns=window.opening_ns, reason=LateReason.HOST, name="", ranks=frozenset({rank}))
                for rank, window in windows
                if window.opening_ns
            )
        )

    def _load(self) -> None:
        plan = self._plan
        loads = [HostWork(ns=plan.data_ns, reason=LateReason.DATA, name="")]
        loads += [self._make_host_delay(delay) for delay in plan.delays if delay.data]
        self._out.add_annotated(_LOADER_NAME, *loads)
        if plan.batch_bytes:
            self._out.add(_make_copy("batch", CopyDirection.TO_DEVICE, plan.batch_bytes, ()))

    def _add_phase(self, index: int, phase: UnitPass) -> None:
        plan, out = self._plan, self._out
        verb = "pre_forward" if phase.kind is PassKind.FORWARD else "pre_backward"
        annotations = [f"FSDP::{verb} ({plan.unit_name(phase.unit)})"] if plan.stage == 3 else []
        out.add(*(StartAnnotation(name=name) for name in annotations))
        self._add_delays(index, phase)
        fills_device = plan.compute.blocks_collectives and plan.vendor is not Vendor.GLOO
        self._gathers.launch(phase, 0 if fills_device else plan.prefetch)
        self._wait_for_all()
        after = (*self._list_dependencies(index), *self._gathers.prepare(phase))
        out.add(*(EndAnnotation(name=name) for name in annotations))
        kernels = make_phase_kernels(plan, phase, after)
        # if kernels fill the device, prefetched gathers start after the queued kernels
        middle = len(kernels) // 2 if fills_device else len(kernels)
        out.add(*kernels[:middle])
        self._gathers.launch(phase, plan.prefetch)
        out.add(*kernels[middle:])
        if plan.tensor > 1:
            out.add(make_activation_reduction(plan, phase))
        self._end_phase(phase)

    def _wait_for_all(self) -> None:
        """Wait for all work in flight, which is what a sync means without a device: scalars are on
        the host.
        """
        if self._plan.host.syncs_per_unit and self._plan.vendor is Vendor.GLOO:
            self._out.add_annotated("aten::item")
            self._out.add(Sync(reads=True))

    def _end_phase(self, phase: UnitPass) -> None:
        if phase.kind is PassKind.FORWARD and self._plan.vendor is not Vendor.GLOO:
            for _ in range(self._plan.host.syncs_per_unit):
                self._read_scalar((phase.key,))
        if phase.kind is PassKind.BACKWARD:
            self._reductions.reduce(phase)

    def _list_dependencies(self, index: int) -> list[str]:
        """Return the dependencies of a phase other than its stream and its gather."""
        phase, after = self._phases[index], []
        if self._plan.tensor > 1 and index:
            after.append(f"tensor.{self._phases[index - 1].key}")
        if self._plan.stage in (1, 2) and phase.micro_batch == 0 and phase.kind is PassKind.FORWARD:
            after += [f"parameters.{phase.unit}"] if self._plan.hide_optimizer_gather else ["parameters"]
        if phase.micro_batch and phase.unit == 0 and phase.kind is PassKind.FORWARD:
            # DDP and FSDP end each backward by waiting for its reductions
            after += self._reductions.keys
        return after

    def _reduce_grad_norm(self) -> tuple[str, ...]:
        """Reduce the gradient norm over all ranks; return the dependencies of the optimizer."""
        reduced = tuple(self._reductions.keys)
        if not self._plan.norm_all_reduce or self._plan.ranks == 1:
            return reduced
        local = KernelLaunch(key="norm.local", kind=KernelWork.ELEMENTWISE, work_ns=60_000, after=reduced)
        self._out.add(local, make_scalar_reduction("norm", ("norm.local",)))
        return (*reduced, "norm")

    def _optimize(self, after: tuple[str, ...]) -> None:
        plan = self._plan
        update: list[Instruction] = [make_optimizer_kernel(plan, after)]
        if (
            plan.offload.enabled and plan.vendor is not Vendor.GLOO
        ):  # on gloo, the optimizer runs on the host anyway
            update.insert(0, HostWork(ns=plan.offload.optimizer_ns, reason=LateReason.HOST, name=""))
        self._out.add_annotated(_OPTIMIZER_NAME, *update)

    def _report_loss(self) -> None:
        """Reduce the loss before gathering new parameters, so that reading it does not wait for the
        gather.
        """
        plan = self._plan
        is_reduced = plan.loss_all_reduce and plan.ranks > 1
        if is_reduced:
            self._out.add(make_scalar_reduction("loss", ("optimizer",)))
        if plan.stage in (1, 2) and plan.shard_size > 1:
            self._reductions.gather_parameters()
        if plan.host.sync_each_step:
            self._read_scalar(("loss",) if is_reduced else ("optimizer",))

    def _read_scalar(self, after: tuple[str, ...]) -> None:
        """Read a scalar back, which blocks the host."""
        copy = _make_copy("read", CopyDirection.TO_HOST, 4, after)
        self._out.add_annotated("aten::item", copy, Sync(after=("read", *after), reads=True))

    def _add_delays(self, index: int, phase: UnitPass) -> None:
        """Add allocator retries and host stalls before a phase."""
        allocator = self._plan.allocator
        ranks = None if allocator.ranks is None else frozenset(allocator.ranks)
        retry = Reallocate(free_ns=allocator.free_ns, malloc_ns=allocator.malloc_ns, ranks=ranks)
        self._out.add(*[retry] * self._retries.count(index))
        if phase.kind is PassKind.FORWARD and phase.micro_batch == 0:
            unit_delays = [
                delay for delay in self._plan.delays if delay.unit == phase.unit and not delay.data
            ]
            self._out.add(*(self._make_host_delay(delay) for delay in unit_delays))

    def _make_host_delay(self, delay: HostDelay) -> HostWork:
        rank = (delay.rank + self._step) % self._plan.ranks if delay.rotating else delay.rank
        reason = LateReason.DATA if delay.data else LateReason.HOST
        name = "" if delay.data else "gc.py(12): collect"
        return HostWork(ns=delay.ns, reason=reason, name=name, ranks=frozenset({rank}))


def _make_copy(key: str, direction: CopyDirection, size_bytes: int, after: tuple[str, ...]) -> CopyLaunch:
    """Return a small copy on the compute stream."""
    return CopyLaunch(
        key=key,
        direction=direction,
        bytes=size_bytes,
        rate_bytes_per_s=_PCIE_BYTES_PER_S,
        lane=DeviceStream.COMPUTE,
        after=after,
    )
