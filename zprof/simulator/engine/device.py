"""Simulate ranks with a device: hosts run ahead, streams execute in order, and events synchronize them."""

from collections import deque
from functools import singledispatchmethod

import numpy as np

from zprof.model.time import LateReason
from zprof.simulator.engine.execution_state import ExecutionState
from zprof.simulator.engine.network import Contention
from zprof.simulator.engine.schedule import ExecutedInstruction, Instant, Times, advance, get_later
from zprof.simulator.plan import SimulationPlan
from zprof.simulator.program.instructions import (
    CollectiveLaunch,
    CopyLaunch,
    DeviceStream,
    EndAnnotation,
    HostWork,
    Instruction,
    KernelLaunch,
    Mesh,
    Reallocate,
    StartAnnotation,
    Sync,
)

#: Fixed latency of a copy.
_COPY_START_NS = 2_000


class DeviceMachine:
    """Execute each instruction on all ranks."""

    def __init__(self, plan: SimulationPlan, mesh: Mesh) -> None:
        self.state = ExecutionState(plan, mesh)
        self._host = plan.host
        self._compute = plan.compute
        self._contention = Contention(plan.compute.slowdown)
        self._queue: deque[Instant] = deque(maxlen=max(1, plan.host.run_ahead))

    @singledispatchmethod
    def execute(self, instruction: Instruction) -> None:
        """Execute one instruction."""
        raise TypeError(f"a device does not support {type(instruction).__name__}")

    @execute.register
    def _(self, kernel: KernelLaunch) -> None:
        state = self.state
        if len(self._queue) == self._queue.maxlen:
            state.host = get_later(state.host, self._queue[0])
        call_start, earliest_start = self._launch(self._host.launch_ns)
        lane = state.lanes[kernel.lane]
        stream_free = advance(lane, LateReason.COMPUTE, np.where(lane[0] > 0, self._compute.gap_ns, 0))
        begin = state.latest(get_later(earliest_start, stream_free), kernel.after)
        work = state.work_ns(kernel)
        duration = self._contention.get_end(begin[0], work) - begin[0]
        end = advance(begin, LateReason.COMPUTE, duration)
        state.lanes[kernel.lane] = state.finish_times[kernel.key] = end
        self._queue.append(end)
        self._record(kernel, call_start, begin, end)

    @execute.register
    def _(self, copy: CopyLaunch) -> None:
        state = self.state
        call_start, earliest_start = self._launch(self._host.launch_ns)
        begin = state.latest(get_later(earliest_start, state.lanes[copy.lane]), copy.after)
        cost = _COPY_START_NS + round(copy.bytes * 1e9 / copy.rate_bytes_per_s)
        end = advance(begin, LateReason.MEMCPY, cost)
        state.lanes[copy.lane] = state.finish_times[copy.key] = end
        self._record(copy, call_start, begin, end)

    @execute.register
    def _(self, collective: CollectiveLaunch) -> None:
        state = self.state
        groups = state.mesh.groups(collective.axis)
        lane = state.select_lane(collective, groups)
        call_start, earliest_start = self._launch(self._host.collective_launch_ns)
        begin = state.latest(get_later(earliest_start, state.lanes[lane]), collective.after)
        if self._compute.blocks_collectives:
            begin = get_later(begin, state.lanes[DeviceStream.COMPUTE])
        sync_point = state.sync_points.synchronize(collective, groups, begin, state.step_start)
        state.lanes[lane] = state.finish_times[collective.key] = sync_point.end
        self._contention.add(begin[0], sync_point.end[0])
        state.lines.append(
            ExecutedInstruction(
                instruction=collective,
                step=state.step,
                host_begin=call_start,
                host_end=state.host[0].copy(),
                launch=earliest_start[0] - self._host.latency_ns,
                begin=begin[0],
                end=sync_point.end[0],
                groups=groups,
                sequence=state.next_sequence(groups),
                arrival=sync_point.arrival,
                late=sync_point.late,
                lane=lane,
            )
        )

    @execute.register
    def _(self, sync: Sync) -> None:
        call_start = self.state.host[0].copy()
        sync_called = advance(self.state.host, LateReason.SYNC, self._host.sync_ns)
        self.state.host = advance(
            self._wait_for(sync_called, sync.after), LateReason.SYNC, self._host.resume_ns
        )
        self.state.record(sync, call_start)

    @execute.register
    def _(self, reallocate: Reallocate) -> None:
        state = self.state
        call_start = state.host[0].copy()
        # the free waits for the device; without the retry the host would have continued
        drain_ns = self._wait_for(state.host, ())[0] - call_start
        freed = advance(
            state.host, LateReason.ALLOCATOR, drain_ns + reallocate.free_ns + reallocate.malloc_ns
        )
        is_retrying = state.mask_ranks(reallocate.ranks, 1).astype(bool)
        state.host = np.where(is_retrying, freed, state.host)
        state.record(reallocate, call_start, ranks=reallocate.ranks)

    @execute.register
    def _(self, work: HostWork) -> None:
        self.state.run_host_work(work)

    @execute.register(StartAnnotation)
    @execute.register(EndAnnotation)
    def _(self, annotation: StartAnnotation | EndAnnotation) -> None:
        self.state.record_annotation(annotation)

    def finish(self) -> None:
        """Wait until every device is idle; this ends the recording."""
        self.state.host = self._wait_for(self.state.host, ())

    def _launch(self, cost_ns: int) -> tuple[Times, Instant]:
        """Call the runtime on the host; return the start of the call, and the earliest start on the
        device.
        """
        call_start = self.state.host[0].copy()
        call_end = advance(self.state.host, LateReason.HOST, cost_ns // 2)
        self.state.host = advance(self.state.host, LateReason.HOST, cost_ns)
        return call_start, advance(call_end, LateReason.HOST, self._host.latency_ns)

    def _wait_for(self, instant: Instant, keys: tuple[str, ...]) -> Instant:
        if keys:
            return self.state.latest(instant, keys)
        for lane in self.state.lanes.values():
            instant = get_later(instant, lane)
        return instant

    def _record(
        self, work: KernelLaunch | CopyLaunch, call_start: Times, begin: Instant, end: Instant
    ) -> None:
        self.state.lines.append(
            ExecutedInstruction(
                instruction=work,
                step=self.state.step,
                host_begin=call_start,
                host_end=self.state.host[0].copy(),
                launch=call_start + self._host.launch_ns // 2,
                begin=begin[0],
                end=end[0],
                lane=work.lane,
            )
        )
