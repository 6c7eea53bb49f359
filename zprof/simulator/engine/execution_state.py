"""Store the state shared by device and CPU machines: clocks of hosts and lanes, and the growing schedule."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from zprof.model.time import LateReason
from zprof.simulator.engine.network import CollectiveExecutor
from zprof.simulator.engine.schedule import ExecutedInstruction, Instant, Times, advance, get_later, time_zero
from zprof.simulator.plan import SimulationPlan
from zprof.simulator.program.instructions import (
    CollectiveLaunch,
    DeviceStream,
    Groups,
    HostWork,
    Instruction,
    KernelLaunch,
    Mesh,
)


class ExecutionState:
    """State of all ranks.  ``finish_times``: the time at which the instruction of a key finishes."""

    def __init__(self, plan: SimulationPlan, mesh: Mesh) -> None:
        self.plan = plan
        self.mesh = mesh
        self.random = np.random.Generator(np.random.PCG64(plan.seed))
        self.sync_points = CollectiveExecutor(plan, self.random)
        self.host = time_zero(plan.ranks)
        self.lanes: dict[str, Instant] = defaultdict(lambda: time_zero(plan.ranks))
        self.finish_times: dict[str, Instant] = {}
        self.lines: list[ExecutedInstruction] = []
        self.step = 0
        self.step_start = self.host
        self._sequences: dict[str, int] = defaultdict(int)
        speed = np.ones(plan.ranks)
        for rank, value in plan.speed.items():
            speed[rank] = value
        self._cost_factor = 1.0 / speed

    def latest(self, start: Instant, keys: Iterable[str]) -> Instant:
        """Return the latest of ``start`` and the ends of the instructions with these keys."""
        for key in keys:
            if key in self.finish_times:
                start = get_later(start, self.finish_times[key])
        return start

    def work_ns(self, kernel: KernelLaunch) -> Times:
        """Return the time of a kernel at full speed, on each rank."""
        noise = 1.0 + self.plan.compute.noise_ratio * self.random.standard_normal(self.plan.ranks)
        return np.maximum(1, np.rint(kernel.work_ns * self._cost_factor * np.maximum(0.1, noise))).astype(
            np.int64
        )

    def select_lane(self, collective: CollectiveLaunch, groups: Groups) -> str:
        """Return the stream of a collective: one per group or, if planned, one per group and kind."""
        if self.plan.network.per_kind_streams and collective.lane is not DeviceStream.WORLD:
            return f"{groups.name}.{collective.lane}"
        return groups.name

    def start_step(self, step: int) -> None:
        """Assign the following instructions to this step."""
        self.step, self.step_start = step, self.host

    def next_sequence(self, groups: Groups) -> int:
        """Return the next sequence number of a group."""
        number = self._sequences[groups.name]
        self._sequences[groups.name] += 1
        return number

    def run_host_work(self, work: HostWork) -> None:
        """Keep the host busy, on all ranks or some of them."""
        begin = self.host[0].copy()
        self.host = advance(self.host, work.reason, self.mask_ranks(work.ranks, work.ns))
        self.record(work, begin, ranks=work.ranks)

    def record_annotation(self, instruction: Instruction) -> None:
        """Start or end an annotation, which costs 400 ns."""
        begin = self.host[0].copy()
        self.host = advance(self.host, LateReason.HOST, 400)
        self.record(instruction, begin)

    def mask_ranks(self, ranks: frozenset[int] | None, ns: int) -> Times:
        """Return ``ns`` for these ranks, 0 for the others."""
        if ranks is None:
            return np.full(self.plan.ranks, ns, dtype=np.int64)
        return np.array([ns if rank in ranks else 0 for rank in range(self.plan.ranks)], dtype=np.int64)

    def record(self, instruction: Instruction, begin: Times, ranks: frozenset[int] | None = None) -> None:
        """Record an instruction of the host that ends now."""
        self.lines.append(
            ExecutedInstruction(
                instruction=instruction,
                step=self.step,
                host_begin=begin,
                host_end=self.host[0].copy(),
                launch=begin,
                begin=begin,
                end=self.host[0].copy(),
                ranks=ranks,
            )
        )
