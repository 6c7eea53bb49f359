"""Build one step of every rank: load, forward, backward, optimizer, and what sharding adds to them."""

from zprof.model.time import LateReason
from zprof.simulator.plan import HostDelay, Plan, Vendor
from zprof.simulator.program.collectives import Gathers, Reductions, reduce_activations, reduce_scalar
from zprof.simulator.program.instructions import (
    Begin,
    Copy,
    Direction,
    End,
    HostWork,
    Instruction,
    InstructionList,
    Kernel,
    Lane,
    Reallocate,
    Shape,
    Sync,
)
from zprof.simulator.program.phases import Pass, Phase, list_phases, optimizer_kernel, phase_kernels

#: Number of the first recorded step: those before it are warm-up.
FIRST_STEP = 3
_OPTIMIZER = "Optimizer.step#AdamW.step"
_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_PCIE = 20e9


def step_instructions(plan: Plan, step: int) -> list[Instruction]:
    """Return the hosts' instructions in step number ``step`` (counted from 0)."""
    return _Step(plan, step).instructions()


class _Step:
    def __init__(self, plan: Plan, step: int) -> None:
        self._plan = plan
        self._step = step
        self._out = InstructionList()
        self._phases = list_phases(plan)
        self._gathers = Gathers(plan, self._phases, self._out)
        self._reductions = Reductions(plan, self._out)
        self._retries = _spread(plan.allocator.retries_per_step, len(self._phases))

    def instructions(self) -> list[Instruction]:
        name = f"ProfilerStep#{FIRST_STEP + self._step}"
        self._open()
        self._out.add(Begin(name=name))
        self._load()
        for index, phase in enumerate(self._phases):
            self._phase(index, phase)
            self._check_loss(phase)
        if self._plan.offload.enabled:
            self._reductions.spill()
        self._optimize(self._norm())
        self._report_loss()
        self._out.add(End(name=name))
        return self._out.lines

    def _check_loss(self, phase: Phase) -> None:
        """Read the loss before the backward, as many loops do to stop if it is not finite."""
        if self._plan.host.reads_loss and phase.kind is Pass.FORWARD and phase.unit == self._plan.units - 1:
            self._read((phase.key,))

    def _open(self) -> None:
        """Start the profilers before the first step, which takes longer on some ranks."""
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
        loads += [self._stall(delay) for delay in plan.delays if delay.data]
        self._out.annotated(_LOADER, *loads)
        if plan.batch_bytes:
            self._out.add(_copy("batch", Direction.TO_DEVICE, plan.batch_bytes, ()))

    def _phase(self, index: int, phase: Phase) -> None:
        plan, out = self._plan, self._out
        verb = "pre_forward" if phase.kind is Pass.FORWARD else "pre_backward"
        marked = [f"FSDP::{verb} ({plan.unit_name(phase.unit)})"] if plan.stage == 3 else []
        out.add(*(Begin(name=name) for name in marked))
        self._hold_up(index, phase)
        full = plan.compute.blocks_collectives and plan.vendor is not Vendor.GLOO
        self._gathers.launch(phase, 0 if full else plan.prefetch)
        self._wait_for_all()
        after = (*self._before(index), *self._gathers.ready(phase))
        out.add(*(End(name=name) for name in marked))
        kernels = phase_kernels(plan, phase, after)
        # if kernels fill the device, prefetched gathers start behind the queued ones
        middle = len(kernels) // 2 if full else len(kernels)
        out.add(*kernels[:middle])
        self._gathers.launch(phase, plan.prefetch)
        out.add(*kernels[middle:])
        if plan.tensor > 1:
            out.add(reduce_activations(plan, phase))
        self._end_phase(phase)

    def _wait_for_all(self) -> None:
        """Wait for all work in flight: that is a sync without a device, where scalars are available at
        once.
        """
        if self._plan.host.syncs_per_unit and self._plan.vendor is Vendor.GLOO:
            self._out.annotated("aten::item")
            self._out.add(Sync(reads=True))

    def _end_phase(self, phase: Phase) -> None:
        if phase.kind is Pass.FORWARD and self._plan.vendor is not Vendor.GLOO:
            for _ in range(self._plan.host.syncs_per_unit):
                self._read((phase.key,))
        if phase.kind is Pass.BACKWARD:
            self._reductions.reduce(phase)

    def _before(self, index: int) -> list[str]:
        """Return what a phase waits for apart from its stream and its gather."""
        phase, after = self._phases[index], []
        if self._plan.tensor > 1 and index:
            after.append(f"tensor.{self._phases[index - 1].key}")
        if self._plan.stage in (1, 2) and phase.micro_batch == 0 and phase.kind is Pass.FORWARD:
            after += [f"parameters.{phase.unit}"] if self._plan.hide_optimizer_gather else ["parameters"]
        if phase.micro_batch and phase.unit == 0 and phase.kind is Pass.FORWARD:
            # DDP and FSDP end each backward with a wait for the reductions that it launched
            after += self._reductions.keys
        return after

    def _norm(self) -> tuple[str, ...]:
        """Reduce the gradient norm over all ranks; return what the optimizer waits for."""
        reduced = tuple(self._reductions.keys)
        if not self._plan.norm_all_reduce or self._plan.ranks == 1:
            return reduced
        local = Kernel(key="norm.local", shape=Shape.ELEMENTWISE, work_ns=60_000, after=reduced)
        self._out.add(local, reduce_scalar("norm", ("norm.local",)))
        return (*reduced, "norm")

    def _optimize(self, after: tuple[str, ...]) -> None:
        plan = self._plan
        update: list[Instruction] = [optimizer_kernel(plan, after)]
        if plan.offload.enabled and plan.vendor is not Vendor.GLOO:  # on gloo it is the same operator
            update.insert(0, HostWork(ns=plan.offload.optimizer_ns, reason=LateReason.HOST, name=""))
        self._out.annotated(_OPTIMIZER, *update)

    def _report_loss(self) -> None:
        """Reduce the loss before gathering new parameters, so that reading it does not wait for those."""
        plan = self._plan
        shared = plan.loss_all_reduce and plan.ranks > 1
        if shared:
            self._out.add(reduce_scalar("loss", ("optimizer",)))
        if plan.stage in (1, 2) and plan.shard_size > 1:
            self._reductions.gather_parameters()
        if plan.host.sync_each_step:
            self._read(("loss",) if shared else ("optimizer",))

    def _read(self, after: tuple[str, ...]) -> None:
        """Read a scalar back, which blocks the host."""
        copy = _copy("read", Direction.TO_HOST, 4, after)
        self._out.annotated("aten::item", copy, Sync(after=("read", *after), reads=True))

    def _hold_up(self, index: int, phase: Phase) -> None:
        """Add allocator retries and host stalls before a phase."""
        allocator = self._plan.allocator
        chosen = None if allocator.ranks is None else frozenset(allocator.ranks)
        retry = Reallocate(free_ns=allocator.free_ns, malloc_ns=allocator.malloc_ns, ranks=chosen)
        self._out.add(*[retry] * self._retries.count(index))
        if phase.kind is Pass.FORWARD and phase.micro_batch == 0:
            here = [delay for delay in self._plan.delays if delay.unit == phase.unit and not delay.data]
            self._out.add(*(self._stall(delay) for delay in here))

    def _stall(self, delay: HostDelay) -> HostWork:
        rank = (delay.rank + self._step) % self._plan.ranks if delay.rotating else delay.rank
        reason = LateReason.DATA if delay.data else LateReason.HOST
        name = "" if delay.data else "gc.py(12): collect"
        return HostWork(ns=delay.ns, reason=reason, name=name, ranks=frozenset({rank}))


def _spread(count: int, places: int) -> list[int]:
    """Return ``count`` positions spread evenly over ``places``."""
    return [(2 * index + 1) * places // (2 * count) for index in range(count)]


def _copy(key: str, direction: Direction, size_bytes: int, after: tuple[str, ...]) -> Copy:
    """Return a small copy on the compute stream."""
    return Copy(
        key=key,
        direction=direction,
        bytes=size_bytes,
        rate_bytes_per_s=_PCIE,
        lane=Lane.COMPUTE,
        after=after,
    )
