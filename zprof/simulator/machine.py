"""Execute a job on simulated streams and links: a discrete-event simulation over all ranks.

The rules of CUDA and NCCL: a stream runs in order; a communicator runs one operation at a time on a rank, in
launch order; a collective starts on a rank when its stream reaches it, moves data once the last rank has
arrived, and ends on all ranks almost together. Times are integer nanoseconds of one true clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from zprof.simulator.host_program import StepProgram
from zprof.simulator.job import NORMALS, Job, mix
from zprof.simulator.operations import Op, find_group, list_members
from zprof.simulator.state import Collective, Event, Rank, Schedule, Stream, Task


class Machine:
    """The event loop."""

    def __init__(self, job: Job, record: bool) -> None:
        self.job = job
        self.record = record
        self.heap: list[tuple[int, int, Callable[[int], None]]] = []
        self.count = 0
        self.ranks = [Rank(i) for i in range(job.world)]
        self.operations: dict[tuple[int, int, int], Collective] = {}
        self.transfers: list[Collective] = []
        self.link_queue: list[Collective] = []
        self.slowdown = job.gpu.comm_slowdown
        self.program = [] if job.parallel else StepProgram(job).build()

    def at(self, time: int, action: Callable[[int], None]) -> None:
        """Schedule an action; actions at equal times run in scheduling order."""
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, action))

    def run(self) -> Schedule:
        """Run until nothing is left to do; the hosts' first actions must already be scheduled."""
        heap = self.heap
        while heap:
            time, _, action = heapq.heappop(heap)
            action(time)
        for rank in self.ranks:
            if len(rank.step_host) != self.job.steps:
                raise AssertionError("a simulated rank did not finish: collectives are out of order")
        return Schedule(self.job, self.ranks, list(self.operations.values()))

    def list_operations(self, rank: int) -> list[Op]:
        """Return the operations of a step, which are the same on all ranks."""
        return self.program

    # streams
    def push(self, stream: Stream, task: Task, now: int) -> None:
        """Append work to a stream."""
        stream.queue.append(task)
        if not stream.busy and len(stream.queue) == 1:
            self.wake(stream, max(now, task.avail))

    def wake(self, stream: Stream, time: int) -> None:
        """Check the stream again at a given time."""
        if stream.wakes != time:
            stream.wakes = time
            self.at(time, lambda now: self.pump(stream, now))

    def pump(self, stream: Stream, now: int) -> None:
        """Start the next work on a stream if possible."""
        if stream.wakes == now:
            stream.wakes = -1
        queue = stream.queue
        while queue and not stream.busy:
            task = queue[0]
            if task.avail > now:
                self.wake(stream, task.avail)
                return
            cat = task.cat
            if cat == "wait":
                event = task.event
                assert event is not None
                if not event.done:
                    event.waiters.append(lambda time: self.pump(stream, time))
                    return
                queue.popleft()
            elif cat == "record":
                queue.popleft()
                assert task.event is not None
                self.fire(task.event, now)
            elif cat == "collective":
                if not self.enter_collective(stream, task, now):
                    return
            else:
                queue.popleft()
                self.start_kernel(stream, task, now)

    def fire(self, event: Event, now: int) -> None:
        """Mark an event as reached."""
        event.done = True
        event.time = now
        waiters, event.waiters = event.waiters, []
        for waiter in waiters:
            waiter(now)

    def start_kernel(self, stream: Stream, task: Task, now: int) -> None:
        """Run a kernel or a copy."""
        rank = stream.rank
        task.start = task.rate_since = max(now, stream.ready)
        stream.busy = True
        task.running = True
        rank.running.append(task)
        slow = self.slowdown if rank.active_comms and task.cat == "kernel" else 1.0
        self.end_at(task, task.start + int(task.left * slow))

    def end_at(self, task: Task, time: int) -> None:
        """Schedule the end of a kernel, replacing an earlier schedule."""
        task.version += 1
        version = task.version
        task.end = time

        def finish(now: int) -> None:
            if task.version == version and task.running:
                self.finish_kernel(task, now)

        self.at(time, finish)

    def finish_kernel(self, task: Task, now: int) -> None:
        """End a kernel and continue with its stream."""
        stream = task.stream
        assert stream is not None
        rank = stream.rank
        task.running = False
        rank.running.remove(task)
        self.leave_stream(stream, now)

    def leave_stream(self, stream: Stream, now: int) -> None:
        """Free a stream and a slot of the launch queue."""
        rank = stream.rank
        stream.busy = False
        stream.ready = now + self.job.gpu.gap_ns
        rank.in_flight -= 1
        if rank.slot_waiter is not None:
            waiter, rank.slot_waiter = rank.slot_waiter, None
            waiter(now)
        self.pump(stream, now)

    def change_comms(self, rank: Rank, change: int, now: int) -> None:
        """Record that an NCCL kernel acquires or releases SMs of a rank: kernels change their pace."""
        before = rank.active_comms > 0
        rank.active_comms += change
        after = rank.active_comms > 0
        if before == after or self.slowdown == 1.0:
            return
        slow = self.slowdown
        for task in rank.running:
            if task.cat != "kernel":
                continue
            passed = max(0, now - task.rate_since)
            task.left = max(0.0, task.left - passed / (slow if before else 1.0))
            task.rate_since = max(now, task.rate_since)
            self.end_at(task, task.rate_since + int(task.left * (slow if after else 1.0)))

    # collectives
    def enter_collective(self, stream: Stream, task: Task, now: int) -> bool:
        """Start a collective kernel if its communicator is free; return False if the stream must wait."""
        rank = stream.rank
        order = rank.comm_orders[task.kind]
        if order[0] is not task:
            return False  # its predecessor pumps this stream at its end
        starve = self.job.gpu.starve
        if starve and now >= task.rate_since:
            blocker = max(
                (k for k in rank.running if k.stream is not stream), key=lambda k: k.end, default=None
            )
            if blocker is not None and blocker.end > now:
                # SMs become free when the running kernel ends, but the next kernel may take them
                tries = task.version
                task.version += 1
                assert task.collective is not None
                luck = mix(mix(task.collective.key, rank.index), tries) / (1 << 64)
                if tries == 0 or (tries < 6 and luck < starve):
                    self.at(blocker.end + 1, lambda time: self.pump(stream, time))
                    return False
        stream.queue.popleft()
        stream.busy = True
        task.running = True
        task.start = max(now, stream.ready)
        self.change_comms(rank, 1, now)
        operation = task.collective
        assert operation is not None
        operation.entered += 1
        operation.arrived = max(operation.arrived, task.start)
        if operation.entered == len(operation.members):
            self.at(
                operation.arrived + self.alpha(operation), lambda time: self.begin_transfer(operation, time)
            )
        return True

    def spans_nodes(self, operation: Collective) -> bool:
        """Return True if members are on different nodes."""
        size = self.job.cluster.ranks_per_node
        return len({m // size for m in operation.members}) > 1

    def alpha(self, operation: Collective) -> int:
        """Return the latency of a collective, which grows with the ring, and faster across nodes."""
        cluster = self.job.cluster
        base = cluster.inter_alpha_ns if self.spans_nodes(operation) else cluster.intra_alpha_ns
        jitter = 1 + 0.06 * abs(NORMALS[operation.key & 4095])
        return int((base * (0.7 + 0.15 * len(operation.members)) + cluster.extra_alpha_ns) * jitter)

    def begin_transfer(self, operation: Collective, now: int) -> None:
        """Move the bytes over a link that may be shared with other transfers of the same ranks."""
        if self.job.cluster.serial_links and any(self.share_rank(operation, t) for t in self.transfers):
            self.link_queue.append(operation)
            return
        cluster = self.job.cluster
        members = len(operation.members)
        bus = cluster.inter_bus if self.spans_nodes(operation) else cluster.intra_bus
        bus = min(bus, cluster.intra_bus) * cluster.bandwidth_factor
        bus *= min(self.job.ranks[member].link for member in operation.members)
        jitter = 1 + 0.015 * NORMALS[(operation.key >> 12) & 4095]
        operation.left = operation.bytes * (members - 1) / members / bus * max(0.9, jitter)
        operation.since = now
        operation.active = True
        self.transfers.append(operation)
        self.replan_transfers(now)

    def share_rank(self, one: Collective, other: Collective) -> bool:
        """Return True if two transfers have a member in common."""
        return not set(one.members).isdisjoint(other.members)

    def replan_transfers(self, now: int) -> None:
        """Recompute rates and ends of all transfers: transfers that share a rank share its link."""
        loads = Counter(rank for operation in self.transfers for rank in operation.members)
        for operation in self.transfers:
            operation.left = max(0.0, operation.left - (now - operation.since) * operation.rate)
            operation.since = now
            load = max(loads[rank] for rank in operation.members)
            operation.rate = 1.0 / load
            operation.version += 1
            self.at(now + int(operation.left * load), self.transfer_end(operation, operation.version))

    def transfer_end(self, operation: Collective, version: int) -> Callable[[int], None]:
        """Return the action that ends a transfer, unless the transfer was rescheduled meanwhile."""

        def finish(now: int) -> None:
            if operation.active and operation.version == version:
                self.end_transfer(operation, now)

        return finish

    def end_transfer(self, operation: Collective, now: int) -> None:
        """End a collective on all members, a few microseconds apart."""
        operation.active = False
        operation.end = now
        self.transfers.remove(operation)
        for member, task in operation.tasks.items():
            spread = int(self.job.cluster.end_spread_ns * abs(NORMALS[mix(operation.key, member) & 4095]))
            self.at(now + spread, self.leave_collective(task))
        waiting, self.link_queue = self.link_queue, []
        for other in waiting:
            self.begin_transfer(other, now)
        self.replan_transfers(now)

    def leave_collective(self, task: Task) -> Callable[[int], None]:
        """Return the action that ends a collective kernel on one rank."""

        def finish(now: int) -> None:
            stream = task.stream
            assert stream is not None
            task.end = now
            task.running = False
            order = stream.rank.comm_orders[task.kind]
            order.popleft()
            self.change_comms(stream.rank, -1, now)
            self.leave_stream(stream, now)
            if order:
                following = order[0].stream
                assert following is not None
                if following is not stream:
                    self.wake(following, now + self.job.gpu.gap_ns)

        return finish

    def join_collective(self, rank: Rank, comm: int, key: int) -> Collective:
        """Return the operation that a rank's next call on a communicator belongs to."""
        job = self.job
        group = find_group(job, comm, rank.index)
        number = rank.sequence.get(comm, 0)
        rank.sequence[comm] = number + 1
        place = (comm, group, number)
        operation = self.operations.get(place)
        if operation is None:
            operation = self.operations[place] = Collective(tuple(list_members(job, comm, group)), number)
            operation.comm = comm
            operation.key = mix(mix(mix(job.key, key), comm * 64 + group), key)
        return operation
