"""Simulate ranks without a device, over gloo: the main thread computes and waits, a worker runs
collectives.
"""

from functools import singledispatchmethod

import numpy as np

from zprof.model.time import LateReason
from zprof.simulator.engine.machine import State
from zprof.simulator.engine.network import Contention
from zprof.simulator.engine.schedule import Line, after, later
from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import (
    Begin,
    Collective,
    Copy,
    End,
    HostWork,
    Instruction,
    Kernel,
    Mesh,
    Reallocate,
    Sync,
    Wait,
)

#: From the end of a collective until the main thread resumes, and from a launch until a worker takes it.
_WAKE_NS = 30_000
_PICK_UP_NS = 60_000
#: Cost of a read that has nothing to wait for.
_TOUCH_NS = 2_000


class CpuMachine:
    """Execute instructions one by one, on all ranks at once."""

    def __init__(self, plan: Plan, mesh: Mesh) -> None:
        self.state = State(plan, mesh)
        self._contention = Contention(plan.compute.slowdown)
        self._unwaited: set[str] = set()

    @singledispatchmethod
    def carry_out(self, instruction: Instruction) -> None:
        """Execute one instruction."""
        raise TypeError(f"a CPU rank cannot {type(instruction).__name__}")

    @carry_out.register
    def _(self, kernel: Kernel) -> None:
        state = self.state
        self._wait_for(kernel.after)
        state.host = after(state.host, LateReason.HOST, state.plan.host.launch_ns)
        begin = state.host[0].copy()
        duration = self._contention.end_of(begin, state.work_ns(kernel)) - begin
        state.host = after(state.host, LateReason.COMPUTE, duration)
        state.done[kernel.key] = state.host
        state.note(kernel, begin)

    @carry_out.register
    def _(self, collective: Collective) -> None:
        state = self.state
        self._wait_for(collective.after)
        groups = state.mesh.groups(collective.axis)
        begun = state.host[0].copy()
        called = after(state.host, LateReason.HOST, _PICK_UP_NS)
        state.host = after(state.host, LateReason.HOST, state.plan.host.collective_launch_ns)
        begin = later(called, state.lanes[groups.name])
        sync_point = state.sync_points.meet(collective, groups, begin, state.step_begin)
        state.lanes[groups.name] = state.done[collective.key] = sync_point.end
        # a worker that waits for the last rank sleeps: it takes no processor from the main thread
        self._contention.add(sync_point.arrival, sync_point.end[0])
        self._unwaited.add(collective.key)
        state.lines.append(
            Line(
                instruction=collective,
                step=state.step,
                host_begin=begun,
                host_end=state.host[0].copy(),
                launch=begun,
                begin=begin[0],
                end=sync_point.end[0],
                groups=groups,
                sequence=state.sequence(groups),
                arrival=sync_point.arrival,
                late=sync_point.late,
                lane=groups.name,
            )
        )

    @carry_out.register
    def _(self, sync: Sync) -> None:
        self._wait_for(sync.after or tuple(self._unwaited))

    @carry_out.register
    def _(self, copy: Copy) -> None:
        """Copy a unit's shard; host memory is the only memory, so the other side is slower host memory."""
        state = self.state
        if copy.unit is None:
            return
        self._wait_for(copy.after)
        begin = state.host[0].copy()
        cost = round(copy.bytes * 1e9 / copy.rate_bytes_per_s)
        state.host = after(state.host, LateReason.MEMCPY, cost)
        state.done[copy.key] = state.host
        state.note(copy, begin)

    @carry_out.register
    def _(self, retry: Reallocate) -> None:
        """Do nothing: without a device allocator there are no retries."""

    @carry_out.register
    def _(self, work: HostWork) -> None:
        self.state.host_work(work)

    @carry_out.register(Begin)
    @carry_out.register(End)
    def _(self, mark: Begin | End) -> None:
        self.state.mark(mark)

    def finish(self) -> None:
        """Wait for collectives that nobody waited for; nothing else outlives the main thread."""
        for lane in self.state.lanes.values():
            self.state.host = later(self.state.host, lane)

    def _wait_for(self, keys: tuple[str, ...]) -> None:
        """Block on each collective once, as ``Work.wait`` does."""
        state = self.state
        for key in keys:
            if key in self._unwaited:
                self._unwaited.discard(key)
                begin = state.host[0].copy()
                touched = after(state.host, LateReason.HOST, _TOUCH_NS)
                woken = after(state.done[key], LateReason.HOST, _WAKE_NS)
                late = state.done[key][0] > state.host[0]
                state.host = later(touched, np.where(late, woken, touched))
                state.note(Wait(key=key), begin)
