"""One step of every rank: load, forward, backward, optimizer, and what sharding adds to them."""

from zprof.model.time import LateReason
from zprof.simulator.knobs import HostDelay, Limiter
from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import (
    Begin,
    Copy,
    Direction,
    End,
    HostWork,
    Instruction,
    Kernel,
    Lane,
    Listing,
    Reallocate,
    Shape,
    Sync,
)
from zprof.simulator.program.kernels import optimizer_kernel, pad_kernel, phase_kernels, split_kernel
from zprof.simulator.program.messages import (
    Buckets,
    gather_parameters,
    gather_unit,
    reduce_gradients,
    scalar,
    tensor_reduce,
)
from zprof.simulator.program.phases import Pass, Phase, phases_of

#: The first number that a step is recorded under: those before it warmed up.
FIRST_STEP = 3
_OPTIMIZER = "Optimizer.step#AdamW.step"
_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_PCIE = 20e9


def step_instructions(plan: Plan, step: int) -> list[Instruction]:
    """What the hosts do in step number ``step`` (counted from 0)."""
    return _Step(plan, step).instructions()


class _Step:
    def __init__(self, plan: Plan, step: int) -> None:
        self._plan = plan
        self._step = step
        self._out = Listing()
        self._phases = phases_of(plan)
        self._gathering = [phase for phase in self._phases if phase.gathers]
        self._launched = 0
        self._buckets = Buckets(plan)
        self._reductions: list[str] = []
        self._retries = _spread(plan.allocator.retries_per_step, len(self._phases))

    def instructions(self) -> list[Instruction]:
        name = f"ProfilerStep#{FIRST_STEP + self._step}"
        self._out.add(Begin(name=name))
        self._load()
        for index, phase in enumerate(self._phases):
            self._phase(index, phase)
        self._finish_reductions()
        self._optimize()
        self._report_loss()
        self._out.add(End(name=name))
        return self._out.lines

    def _load(self) -> None:
        plan = self._plan
        loads = [HostWork(ns=plan.data_ns, reason=LateReason.DATA, name="")]
        loads += [self._stall(delay) for delay in plan.delays if delay.data]
        self._out.annotated(_LOADER, *loads)
        if plan.batch_bytes:
            self._out.add(_copy("batch", Direction.TO_DEVICE, plan.batch_bytes, _PCIE, Lane.COMPUTE, ()))

    def _phase(self, index: int, phase: Phase) -> None:
        plan, out = self._plan, self._out
        sharded = plan.stage == 3
        verb = "pre_backward" if phase.kind is not Pass.FORWARD else "pre_forward"
        unit = f"(layers.{phase.unit})"
        if sharded:
            out.add(Begin(name=f"FSDP::{verb} {unit}"))
        self._retry(index)
        self._delays(phase)
        full = plan.compute.blocks_collectives
        self._gather_until(phase, 0 if full else plan.prefetch)
        after = self._ready(phase)
        if sharded:
            out.add(End(name=f"FSDP::{verb} {unit}"))
        kernels = phase_kernels(plan, phase, after)
        # where kernels fill the device, what is gathered ahead starts behind those that are queued
        middle = len(kernels) // 2 if full else len(kernels)
        out.add(*kernels[:middle])
        self._gather_until(phase, plan.prefetch)
        out.add(*kernels[middle:])
        if plan.tensor > 1:
            out.add(tensor_reduce(plan, phase))
        if phase.kind is Pass.FORWARD:
            for _ in range(plan.host.syncs_per_unit):
                self._read((phase.key,))
        if phase.kind is Pass.BACKWARD:
            self._reduce(phase)

    def _ready(self, phase: Phase) -> tuple[str, ...]:
        """What the first kernel of a phase waits for, beside its stream."""
        after = (
            [f"tensor.{previous.key}" for previous in self._before(phase)] if self._plan.tensor > 1 else []
        )
        if self._plan.stage in (1, 2) and phase.micro_batch == 0 and phase.unit == 0:
            after += ["parameters"] if phase.kind is Pass.FORWARD else []
        if not phase.gathers or self._plan.shard_size == 1:
            return tuple(after)
        if self._plan.compute.copy_ns:
            kernel = split_kernel(self._plan, phase)
            self._out.annotated(f"FSDP::all_gather_copy_out (layers.{phase.unit})", kernel)
            return tuple(after)
        return (*after, phase.gather_key)

    def _before(self, phase: Phase) -> list[Phase]:
        index = self._phases.index(phase)
        return self._phases[index - 1 : index] if index else []

    def _gather_until(self, phase: Phase, ahead: int) -> None:
        """Launch the gather of this phase and of so many ahead, where they are not yet."""
        if not phase.gathers or self._plan.shard_size == 1:
            return
        own = self._gathering.index(phase)
        until = min(own + ahead + 1, len(self._gathering))
        while self._launched < until:
            self._gather(self._launched, ahead=self._launched > own)
            self._launched += 1

    def _gather(self, position: int, ahead: bool) -> None:
        plan, target = self._plan, self._gathering[position]
        after = ["optimizer"] if position == 0 else []
        freed = position - 1 - plan.prefetch
        if freed >= 0 and plan.gathering.limiter is Limiter.EVENT:
            after.append(self._gathering[freed].key)
        if freed >= 0 and plan.gathering.limiter is Limiter.HOST:
            limit = Sync(after=(self._gathering[freed].key,))
            self._out.annotated("FullyShardedDataParallel.rate_limiter", limit)
        if plan.offload.enabled:
            self._fetch(target)
            after.append(f"fetch.{target.key}")
        gather = gather_unit(plan, target, tuple(after))
        unit = f"(layers.{target.unit})"
        if ahead:
            way = "forward" if target.kind is Pass.FORWARD else "backward"
            self._out.add(Begin(name=f"FSDP::{way}_prefetch for layers.{target.unit}"))
        self._out.annotated(f"FSDP::all_gather {unit}", gather)
        if ahead:
            self._out.add(End(name=f"FSDP::{way}_prefetch for layers.{target.unit}"))

    def _fetch(self, phase: Phase) -> None:
        owned = self._plan.padded_unit_elements // self._plan.shard_size * 2
        rate = self._plan.offload.pcie_bytes_per_s
        key = f"fetch.{phase.key}"
        self._out.add(_copy(key, Direction.TO_DEVICE, owned, rate, Lane.COPY, (), phase.unit))

    def _reduce(self, phase: Phase) -> None:
        plan = self._plan
        if not phase.reduces:
            return
        if plan.padding_ratio:
            self._out.add(pad_kernel(plan, phase))
        last = f"pad.{phase.key}" if plan.padding_ratio else phase.key
        if plan.stage == 3:
            made = reduce_gradients(plan, f"reduce.{phase.key}", plan.padded_unit_elements, last, phase.unit)
            self._out.annotated(f"FSDP::post_backward_reduce (layers.{phase.unit})", *made)
            self._reductions += [collective.key for collective in made]
        else:
            self._bucket(self._buckets.fill(plan.padded_unit_elements), last, phase.unit)
            if phase.unit == 0:
                self._bucket(self._buckets.rest(), last, phase.unit)

    def _bucket(self, full: list[int], last: str, unit: int) -> None:
        for elements in full:
            key = f"reduce.bucket.{len(self._reductions)}"
            made = reduce_gradients(self._plan, key, elements, last, unit)
            self._out.add(*made)
            self._reductions += [collective.key for collective in made]

    def _finish_reductions(self) -> None:
        if self._plan.offload.enabled:
            self._offload()
        if self._plan.norm_all_reduce and self._plan.ranks > 1:
            norm = Kernel(
                key="norm.local", shape=Shape.ELEMENTWISE, work_ns=60_000, after=tuple(self._reductions)
            )
            self._out.add(norm, scalar("norm", ("norm.local",)))

    def _offload(self) -> None:
        plan = self._plan
        owned = plan.padded_unit_elements // plan.shard_size * plan.precision.reduce.size_bytes
        for unit in reversed(range(plan.units)):
            rate = plan.offload.pcie_bytes_per_s
            after = tuple(self._reductions)
            self._out.add(_copy(f"spill.{unit}", Direction.TO_HOST, owned, rate, Lane.COPY, after, unit))
        self._out.add(Sync(after=tuple(f"spill.{unit}" for unit in range(plan.units))))

    def _optimize(self) -> None:
        plan = self._plan
        after = (*self._reductions, *(["norm"] if plan.norm_all_reduce and plan.ranks > 1 else []))
        update: list[Instruction] = [optimizer_kernel(plan, after)]
        if plan.offload.enabled:
            update.insert(0, HostWork(ns=plan.offload.optimizer_ns, reason=LateReason.HOST, name=""))
        self._out.annotated(_OPTIMIZER, *update)
        if plan.stage in (1, 2) and plan.shard_size > 1:
            self._gather_parameters()

    def _gather_parameters(self) -> None:
        plan, buckets = self._plan, Buckets(self._plan)
        sizes = buckets.fill(plan.padded_unit_elements * plan.units) + buckets.rest()
        for index, elements in enumerate(sizes):
            key = "parameters" if index == len(sizes) - 1 else f"parameters.{index}"
            self._out.add(gather_parameters(plan, key, elements))
        if not plan.hide_optimizer_gather:
            self._out.add(
                Kernel(key="refresh", shape=Shape.ELEMENTWISE, work_ns=20_000, after=("parameters",))
            )

    def _report_loss(self) -> None:
        if self._plan.loss_all_reduce and self._plan.ranks > 1:
            self._out.add(scalar("loss", ("optimizer",)))
        if self._plan.host.sync_each_step:
            last = ("loss",) if self._plan.loss_all_reduce and self._plan.ranks > 1 else ("optimizer",)
            self._read(last)

    def _read(self, after: tuple[str, ...]) -> None:
        """The host reads a scalar, and blocks until it has it."""
        copy = _copy("read", Direction.TO_HOST, 4, _PCIE, Lane.COMPUTE, after)
        self._out.annotated("aten::item", copy, Sync(after=("read", *after), reads=True))

    def _delays(self, phase: Phase) -> None:
        if phase.kind is Pass.FORWARD and phase.micro_batch == 0:
            here = [delay for delay in self._plan.delays if delay.unit == phase.unit and not delay.data]
            self._out.add(*(self._stall(delay) for delay in here))

    def _stall(self, delay: HostDelay) -> HostWork:
        rank = (delay.rank + self._step) % self._plan.ranks if delay.rotating else delay.rank
        reason = LateReason.DATA if delay.data else LateReason.HOST
        name = "" if delay.data else "gc.py(12): collect"
        return HostWork(ns=delay.ns, reason=reason, name=name, ranks=frozenset({rank}))

    def _retry(self, index: int) -> None:
        allocator = self._plan.allocator
        chosen = None if allocator.ranks is None else frozenset(allocator.ranks)
        for _ in range(self._retries.count(index)):
            self._out.add(Reallocate(free_ns=allocator.free_ns, malloc_ns=allocator.malloc_ns, ranks=chosen))


def _spread(count: int, places: int) -> list[int]:
    """Where ``count`` things go when they are spread over ``places``."""
    return [(2 * index + 1) * places // (2 * count) for index in range(count)]


def _copy(
    key: str,
    direction: Direction,
    size_bytes: int,
    rate: float,
    lane: Lane,
    after: tuple[str, ...],
    unit: int | None = None,
) -> Copy:
    return Copy(
        key=key,
        direction=direction,
        bytes=size_bytes,
        rate_bytes_per_s=rate,
        lane=lane,
        after=after,
        unit=unit,
    )
