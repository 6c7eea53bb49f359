"""Simulate ranks with a device: hosts launch ahead, streams run in order, events join them."""

from collections import deque
from functools import singledispatchmethod

import numpy as np

from zprof.model.time import LateReason
from zprof.simulator.engine.machine import State
from zprof.simulator.engine.network import Contention
from zprof.simulator.engine.schedule import Instant, Line, Times, after, later
from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import (
    Begin,
    Collective,
    Copy,
    End,
    HostWork,
    Instruction,
    Kernel,
    Lane,
    Mesh,
    Reallocate,
    Sync,
)

#: Cost of a copy before its first byte.
_COPY_START_NS = 2_000


class DeviceMachine:
    """Execute instructions one by one, on all ranks at once."""

    def __init__(self, plan: Plan, mesh: Mesh) -> None:
        self.state = State(plan, mesh)
        self._host = plan.host
        self._compute = plan.compute
        self._contention = Contention(plan.compute.slowdown)
        self._queue: deque[Instant] = deque(maxlen=max(1, plan.host.run_ahead))

    @singledispatchmethod
    def carry_out(self, instruction: Instruction) -> None:
        """Execute one instruction."""
        raise TypeError(f"a device cannot {type(instruction).__name__}")

    @carry_out.register
    def _(self, kernel: Kernel) -> None:
        state = self.state
        if len(self._queue) == self._queue.maxlen:
            state.host = later(state.host, self._queue[0])
        begun, ready = self._launch(self._host.launch_ns)
        lane = state.lanes[kernel.lane]
        free = after(lane, LateReason.COMPUTE, np.where(lane[0] > 0, self._compute.gap_ns, 0))
        begin = state.latest(later(ready, free), kernel.after)
        work = state.work_ns(kernel)
        duration = self._contention.end_of(begin[0], work) - begin[0]
        end = after(begin, LateReason.COMPUTE, duration)
        state.lanes[kernel.lane] = state.done[kernel.key] = end
        self._queue.append(end)
        self._note(kernel, begun, begin, end)

    @carry_out.register
    def _(self, copy: Copy) -> None:
        state = self.state
        begun, ready = self._launch(self._host.launch_ns)
        begin = state.latest(later(ready, state.lanes[copy.lane]), copy.after)
        cost = _COPY_START_NS + round(copy.bytes * 1e9 / copy.rate_bytes_per_s)
        end = after(begin, LateReason.MEMCPY, cost)
        state.lanes[copy.lane] = state.done[copy.key] = end
        self._note(copy, begun, begin, end)

    @carry_out.register
    def _(self, collective: Collective) -> None:
        state = self.state
        groups = state.mesh.groups(collective.axis)
        lane = state.lane_of(collective, groups)
        begun, ready = self._launch(self._host.collective_launch_ns)
        begin = state.latest(later(ready, state.lanes[lane]), collective.after)
        if self._compute.blocks_collectives:
            begin = later(begin, state.lanes[Lane.COMPUTE])
        sync_point = state.sync_points.meet(collective, groups, begin, state.step_begin)
        state.lanes[lane] = state.done[collective.key] = sync_point.end
        self._contention.add(begin[0], sync_point.end[0])
        state.lines.append(
            Line(
                instruction=collective,
                step=state.step,
                host_begin=begun,
                host_end=state.host[0].copy(),
                launch=ready[0] - self._host.latency_ns,
                begin=begin[0],
                end=sync_point.end[0],
                groups=groups,
                sequence=state.sequence(groups),
                arrival=sync_point.arrival,
                late=sync_point.late,
                lane=lane,
            )
        )

    @carry_out.register
    def _(self, sync: Sync) -> None:
        begun = self.state.host[0].copy()
        reading = after(self.state.host, LateReason.SYNC, self._host.sync_ns)
        self.state.host = after(self._finished(reading, sync.after), LateReason.SYNC, self._host.resume_ns)
        self.state.note(sync, begun)

    @carry_out.register
    def _(self, retry: Reallocate) -> None:
        state = self.state
        begun = state.host[0].copy()
        # the free waits for the device; without the retry the host would have continued
        drained = self._finished(state.host, ())[0] - begun
        freed = after(state.host, LateReason.ALLOCATOR, drained + retry.free_ns + retry.malloc_ns)
        taken = state.on(retry.ranks, 1).astype(bool)
        state.host = np.where(taken, freed, state.host)
        state.note(retry, begun, did=retry.ranks)

    @carry_out.register
    def _(self, work: HostWork) -> None:
        self.state.host_work(work)

    @carry_out.register(Begin)
    @carry_out.register(End)
    def _(self, mark: Begin | End) -> None:
        self.state.mark(mark)

    def finish(self) -> None:
        """Wait until every device is idle, which ends the recording."""
        self.state.host = self._finished(self.state.host, ())

    def _launch(self, cost_ns: int) -> tuple[Times, Instant]:
        """Call the runtime on the host; return when the call began, and the earliest start on the device."""
        begun = self.state.host[0].copy()
        called = after(self.state.host, LateReason.HOST, cost_ns // 2)
        self.state.host = after(self.state.host, LateReason.HOST, cost_ns)
        return begun, after(called, LateReason.HOST, self._host.latency_ns)

    def _finished(self, instant: Instant, keys: tuple[str, ...]) -> Instant:
        if keys:
            return self.state.latest(instant, keys)
        for lane in self.state.lanes.values():
            instant = later(instant, lane)
        return instant

    def _note(self, work: Kernel | Copy, begun: Times, begin: Instant, end: Instant) -> None:
        self.state.lines.append(
            Line(
                instruction=work,
                step=self.state.step,
                host_begin=begun,
                host_end=self.state.host[0].copy(),
                launch=begun + self._host.launch_ns // 2,
                begin=begin[0],
                end=end[0],
                lane=work.lane,
            )
        )
