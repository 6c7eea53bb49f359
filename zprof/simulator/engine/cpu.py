"""Simulate ranks without a device, over gloo: compute on the main thread, collectives on a worker thread."""

from functools import singledispatchmethod

import numpy as np

from zprof.model.time import LateReason
from zprof.simulator.engine.execution_state import ExecutionState
from zprof.simulator.engine.network import Contention
from zprof.simulator.engine.schedule import ExecutedInstruction, advance, get_later
from zprof.simulator.plan import SimulationPlan
from zprof.simulator.program.instructions import (
    CollectiveLaunch,
    CopyLaunch,
    EndAnnotation,
    HostWork,
    Instruction,
    KernelLaunch,
    Mesh,
    Reallocate,
    StartAnnotation,
    Sync,
    Wait,
)

#: Latency from the end of a collective until the main thread resumes, and until a worker picks up a launch.
_WAKE_NS = 30_000
_PICK_UP_NS = 60_000
#: Cost of a wait that returns at once.
_NO_WAIT_NS = 2_000


class CpuMachine:
    """Execute each instruction on all ranks."""

    def __init__(self, plan: SimulationPlan, mesh: Mesh) -> None:
        self.state = ExecutionState(plan, mesh)
        self._contention = Contention(plan.compute.slowdown)
        self._pending: set[str] = set()

    @singledispatchmethod
    def execute(self, instruction: Instruction) -> None:
        """Execute one instruction."""
        raise TypeError(f"a CPU rank does not support {type(instruction).__name__}")

    @execute.register
    def _(self, kernel: KernelLaunch) -> None:
        state = self.state
        self._wait_for(kernel.after)
        state.host = advance(state.host, LateReason.HOST, state.plan.host.launch_ns)
        begin = state.host[0].copy()
        duration = self._contention.get_end(begin, state.work_ns(kernel)) - begin
        state.host = advance(state.host, LateReason.COMPUTE, duration)
        state.finish_times[kernel.key] = state.host
        state.record(kernel, begin)

    @execute.register
    def _(self, collective: CollectiveLaunch) -> None:
        state = self.state
        self._wait_for(collective.after)
        groups = state.mesh.groups(collective.axis)
        host_start = state.host[0].copy()
        picked_up = advance(state.host, LateReason.HOST, _PICK_UP_NS)
        state.host = advance(state.host, LateReason.HOST, state.plan.host.collective_launch_ns)
        begin = get_later(picked_up, state.lanes[groups.name])
        sync_point = state.sync_points.synchronize(collective, groups, begin, state.step_start)
        state.lanes[groups.name] = state.finish_times[collective.key] = sync_point.end
        # a worker sleeps while it waits for the last rank, so it takes no CPU time from the main thread
        self._contention.add(sync_point.arrival, sync_point.end[0])
        self._pending.add(collective.key)
        state.lines.append(
            ExecutedInstruction(
                instruction=collective,
                step=state.step,
                host_begin=host_start,
                host_end=state.host[0].copy(),
                launch=host_start,
                begin=begin[0],
                end=sync_point.end[0],
                groups=groups,
                sequence=state.next_sequence(groups),
                arrival=sync_point.arrival,
                late=sync_point.late,
                lane=groups.name,
            )
        )

    @execute.register
    def _(self, sync: Sync) -> None:
        self._wait_for(sync.after or tuple(self._pending))

    @execute.register
    def _(self, copy: CopyLaunch) -> None:
        """Copy a unit's shard; without a device, offload targets slower host memory."""
        state = self.state
        if copy.unit is None:
            return
        self._wait_for(copy.after)
        begin = state.host[0].copy()
        cost = round(copy.bytes * 1e9 / copy.rate_bytes_per_s)
        state.host = advance(state.host, LateReason.MEMCPY, cost)
        state.finish_times[copy.key] = state.host
        state.record(copy, begin)

    @execute.register
    def _(self, reallocate: Reallocate) -> None:
        """Do nothing: without a device allocator there are no retries."""

    @execute.register
    def _(self, work: HostWork) -> None:
        self.state.run_host_work(work)

    @execute.register(StartAnnotation)
    @execute.register(EndAnnotation)
    def _(self, annotation: StartAnnotation | EndAnnotation) -> None:
        self.state.record_annotation(annotation)

    def finish(self) -> None:
        """Wait for collectives that the program never waited for."""
        for lane in self.state.lanes.values():
            self.state.host = get_later(self.state.host, lane)

    def _wait_for(self, keys: tuple[str, ...]) -> None:
        """Block on each collective once, as ``Work.wait`` does."""
        state = self.state
        for key in keys:
            if key in self._pending:
                self._pending.discard(key)
                begin = state.host[0].copy()
                returned_at_once = advance(state.host, LateReason.HOST, _NO_WAIT_NS)
                resumed = advance(state.finish_times[key], LateReason.HOST, _WAKE_NS)
                is_pending = state.finish_times[key][0] > state.host[0]
                state.host = get_later(returned_at_once, np.where(is_pending, resumed, returned_at_once))
                state.record(Wait(key=key), begin)
