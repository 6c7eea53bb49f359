"""Share state between device and CPU machines: clocks of hosts and lanes, and the growing schedule."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from zprof.model.time import LateReason
from zprof.simulator.engine.network import CollectiveExecutor
from zprof.simulator.engine.schedule import Instant, Line, Times, after, later, time_zero
from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import Collective, Groups, HostWork, Instruction, Kernel, Lane, Mesh


class State:
    """State of all ranks.  ``done``: when the instruction of a key was, or will be, finished."""

    def __init__(self, plan: Plan, mesh: Mesh) -> None:
        self.plan = plan
        self.mesh = mesh
        self.random = np.random.Generator(np.random.PCG64(plan.seed))
        self.sync_points = CollectiveExecutor(plan, self.random)
        self.host = time_zero(plan.ranks)
        self.lanes: dict[str, Instant] = defaultdict(lambda: time_zero(plan.ranks))
        self.done: dict[str, Instant] = {}
        self.lines: list[Line] = []
        self.step = 0
        self.step_begin = self.host
        self._sequences: dict[str, int] = defaultdict(int)
        speed = np.ones(plan.ranks)
        for rank, value in plan.speed.items():
            speed[rank] = value
        self._cost = 1.0 / speed

    def latest(self, start: Instant, keys: Iterable[str]) -> Instant:
        """Return the latest of ``start`` and the ends of all that ``keys`` name."""
        for key in keys:
            if key in self.done:
                start = later(start, self.done[key])
        return start

    def work_ns(self, kernel: Kernel) -> Times:
        """Return the time of a kernel at full speed, on each rank."""
        noise = 1.0 + self.plan.compute.noise_ratio * self.random.standard_normal(self.plan.ranks)
        return np.maximum(1, np.rint(kernel.work_ns * self._cost * np.maximum(0.1, noise))).astype(np.int64)

    def lane_of(self, collective: Collective, groups: Groups) -> str:
        """Return the stream of a collective: one per group or, if planned, one per group and kind."""
        if self.plan.network.per_kind_streams and collective.lane is not Lane.WORLD:
            return f"{groups.name}.{collective.lane}"
        return groups.name

    def begin_step(self, step: int) -> None:
        """Assign what follows to this step."""
        self.step, self.step_begin = step, self.host

    def sequence(self, groups: Groups) -> int:
        """Return the next sequence number of a group."""
        number = self._sequences[groups.name]
        self._sequences[groups.name] += 1
        return number

    def host_work(self, work: HostWork) -> None:
        """Keep the host busy, on all ranks or on some."""
        begin = self.host[0].copy()
        self.host = after(self.host, work.reason, self.on(work.ranks, work.ns))
        self.note(work, begin, did=work.ranks)

    def mark(self, instruction: Instruction) -> None:
        """Begin or end an annotation, which costs 400 ns."""
        begin = self.host[0].copy()
        self.host = after(self.host, LateReason.HOST, 400)
        self.note(instruction, begin)

    def on(self, ranks: frozenset[int] | None, ns: int) -> Times:
        """Return ``ns`` on some ranks, 0 on the others."""
        if ranks is None:
            return np.full(self.plan.ranks, ns, dtype=np.int64)
        return np.array([ns if rank in ranks else 0 for rank in range(self.plan.ranks)], dtype=np.int64)

    def note(self, instruction: Instruction, begin: Times, did: frozenset[int] | None = None) -> None:
        """Record what the host alone did, until now."""
        self.lines.append(
            Line(
                instruction=instruction,
                step=self.step,
                host_begin=begin,
                host_end=self.host[0].copy(),
                launch=begin,
                begin=begin,
                end=self.host[0].copy(),
                did=did,
            )
        )
