"""Execute a job on simulated hosts, streams and links: a discrete-event simulation over all ranks.

Rules, as CUDA and NCCL have them: a stream runs in order; a communicator runs one operation at a time on a
rank, in launch order; a collective starts on a rank when its stream reaches it, moves data once the last
rank has arrived, and ends on all ranks about together. Times are integer nanoseconds of one true clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from typing import Final

from benchmarks.jobs import kernels
from benchmarks.jobs import program as p
from benchmarks.jobs.job import NORMALS, Job, hash_key, mix

_ATTENTION: Final = frozenset({kernels.FLASH, kernels.FLASH_BACKWARD})
_BLOCK_KEY: Final = 1 << 60


class Event:
    """A CUDA event: who waits for it, and when it was reached."""

    __slots__ = ("done", "time", "waiters")

    def __init__(self) -> None:
        self.done = False
        self.time = 0
        self.waiters: list[Callable[[int], None]] = []


class Task:
    """A piece of GPU work; also the record of it."""

    __slots__ = (
        "avail", "cat", "collective", "correlation", "end", "event", "external", "info", "kind", "left",
        "rate_since", "running", "start", "step", "stream", "version",
    )  # fmt: skip

    def __init__(self, cat: str, kind: int, stream: Stream | None, avail: int, work: float) -> None:
        self.cat = cat
        self.kind = kind
        self.stream = stream
        self.avail = avail
        self.left = work
        self.start = self.end = -1
        self.rate_since = 0
        self.version = 0
        self.running = False
        self.correlation = self.external = self.step = 0
        self.event: Event | None = None
        self.collective: Collective | None = None
        self.info: tuple[int | str, ...] = ()


class Stream:
    """A CUDA stream of a rank."""

    __slots__ = ("busy", "name", "queue", "rank", "ready", "wakes")

    def __init__(self, rank: Rank, name: int) -> None:
        self.rank = rank
        self.name = name
        self.queue: deque[Task] = deque()
        self.busy = False
        self.ready = 0
        self.wakes = -1


class Collective:
    """One operation of a communicator, over all its members."""

    __slots__ = (
        "active", "arrived", "bytes", "end", "entered", "key", "left", "members", "rate", "since", "start",
        "tasks", "version",
    )  # fmt: skip

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.tasks: dict[int, Task] = {}
        self.entered = 0
        self.arrived = 0
        self.active = False
        self.bytes = 0
        self.key = 0
        self.left = 0.0
        self.rate = 1.0
        self.since = self.start = self.end = 0
        self.version = 0


class Rank:
    """State of one rank; after the run also its record."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.streams = [Stream(self, name) for name in range(7)]
        self.events: dict[int, Event] = {}
        self.in_flight = 0
        self.slot_waiter: Callable[[int], None] | None = None
        self.running: list[Task] = []
        self.active_comms = 0
        self.comm_orders: dict[int, deque[Task]] = {}
        self.sequence: dict[int, int] = {}
        self.tasks: list[Task] = []
        self.host_rows: list[tuple[int | str, ...]] = []
        """(category, name, thread, start, duration, correlation, external id, step, detail...)"""
        self.step_host: list[tuple[int, int]] = []
        self.step_events: list[Event] = []
        self.window = (0, 0)


class Schedule:
    """What happened: one `Rank` each, and the collectives in order of creation."""

    def __init__(self, job: Job, ranks: list[Rank], collectives: list[Collective]) -> None:
        self.job = job
        self.ranks = ranks
        self.collectives = collectives

    def step_ends(self) -> list[list[int]]:
        """Return the end of each step on each rank: its host is done and its compute stream has drained."""
        return [
            [max(host[1], event.time) for host, event in zip(r.step_host, r.step_events, strict=True)]
            for r in self.ranks
        ]


def run_job(job: Job, record: bool = True) -> Schedule:
    """Simulate a job. Without `record` only the step ends are kept (faster)."""
    return Machine(job, record).run()


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
        self.program = p.StepProgram(job).build()

    def at(self, time: int, action: Callable[[int], None]) -> None:
        """Schedule an action; equal times run in order of scheduling."""
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, action))

    def run(self) -> Schedule:
        """Run all hosts to their end."""
        for rank in self.ranks:
            host = Host(self, rank)
            self.at(self.job.starts[rank.index].skew_ns, host.resume)
        heap = self.heap
        while heap:
            time, _, action = heapq.heappop(heap)
            action(time)
        for rank in self.ranks:
            if len(rank.step_host) != self.job.steps:
                raise AssertionError("a simulated rank did not finish: collectives are out of order")
        return Schedule(self.job, self.ranks, list(self.operations.values()))

    # streams
    def push(self, stream: Stream, task: Task, now: int) -> None:
        """Append work to a stream."""
        stream.queue.append(task)
        if not stream.busy and len(stream.queue) == 1:
            self.wake(stream, max(now, task.avail))

    def wake(self, stream: Stream, time: int) -> None:
        """Look at the stream again at a time."""
        if stream.wakes != time:
            stream.wakes = time
            self.at(time, lambda now: self.pump(stream, now))

    def pump(self, stream: Stream, now: int) -> None:
        """Start what can be started on a stream."""
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
        """Schedule the end of a kernel; an earlier plan is void."""
        task.version += 1
        version = task.version
        task.end = time

        def finish(now: int) -> None:
            if task.version == version and task.running:
                self.finish_kernel(task, now)

        self.at(time, finish)

    def finish_kernel(self, task: Task, now: int) -> None:
        """End a kernel and go on with its stream."""
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
        """Note that a NCCL kernel holds SMs on a rank, or lets them go: running kernels change their pace."""
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
                # SMs are free when the running kernel ends; with bad luck the next kernel takes them
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
        """Return the latency of a collective: grows with the ring, and more so across nodes."""
        cluster = self.job.cluster
        base = cluster.inter_alpha_ns if self.spans_nodes(operation) else cluster.intra_alpha_ns
        jitter = 1 + 0.06 * abs(NORMALS[operation.key & 4095])
        return int((base * (0.7 + 0.15 * len(operation.members)) + cluster.extra_alpha_ns) * jitter)

    def begin_transfer(self, operation: Collective, now: int) -> None:
        """Move the bytes, on a link that may be shared with other transfers of the same ranks."""
        if self.job.cluster.serial_links and any(self.share_rank(operation, t) for t in self.transfers):
            self.link_queue.append(operation)
            return
        cluster = self.job.cluster
        members = len(operation.members)
        bus = cluster.inter_bus if self.spans_nodes(operation) else cluster.intra_bus
        bus = min(bus, cluster.intra_bus) * cluster.bandwidth_factor
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
        """Recompute rates and ends of all transfers: those that share a rank share its link."""
        for operation in self.transfers:
            operation.left = max(0.0, operation.left - (now - operation.since) * operation.rate)
            operation.since = now
            load = 1
            for rank in operation.members:
                load = max(load, sum(rank in other.members for other in self.transfers))
            operation.rate = 1.0 / load
            operation.version += 1
            self.at(now + int(operation.left * load), self.transfer_end(operation, operation.version))

    def transfer_end(self, operation: Collective, version: int) -> Callable[[int], None]:
        """Return the action that ends a transfer, unless it was planned anew meanwhile."""

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
            spread = int(1_500 * abs(NORMALS[mix(operation.key, member) & 4095]))
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
        if comm == p.SHARD_COMM:
            group = rank.index // job.shard_size
            members = tuple(range(group * job.shard_size, (group + 1) * job.shard_size))
        elif comm == p.REPLICA_COMM:
            group = rank.index % job.shard_size
            members = tuple(range(group, job.world, job.shard_size))
        else:
            group, members = 0, tuple(range(job.world))
        number = rank.sequence.get(comm, 0)
        rank.sequence[comm] = number + 1
        place = (comm, group, number)
        operation = self.operations.get(place)
        if operation is None:
            operation = self.operations[place] = Collective(members)
            operation.key = mix(mix(mix(job.key, key), comm * 64 + group), key)
        return operation


class Host:
    """The host threads of a rank: one program counter, as main waits while autograd runs."""

    def __init__(self, machine: Machine, rank: Rank) -> None:
        self.machine = machine
        self.rank = rank
        self.now = 0
        self.program = self.execute()

    def resume(self, now: int) -> None:
        """Go on until the host has to wait."""
        self.now = max(self.now, now)
        event = next(self.program, None)
        if event is None:
            return
        if event is _SLOT:
            self.rank.slot_waiter = self.resume
        else:
            event.waiters.append(self.resume)

    def execute(self) -> Generator[Event]:
        """Run the steps of the window, then the synchronization with which the profiler stops."""
        rank, job = self.rank, self.machine.job
        start = job.starts[rank.index]
        self.now = begin = start.skew_ns
        self.correlation = 1000 + hash_key(job.key, "correlation", rank.index) % 90_000
        self.external = 1
        for step in range(job.steps):
            opened = self.now
            yield from self.run_step(step)
            event = Event()
            self.enqueue(p.COMPUTE, Task("record", 0, None, self.now, 0), event)
            rank.step_host.append((opened, self.now))
            rank.step_events.append(event)
        self.now += 40_000
        yield from self.synchronize("device", 0, "cudaDeviceSynchronize", p.MAIN, job.steps - 1)
        rank.window = (begin, self.now)

    def enqueue(self, stream: int, task: Task, event: Event | None = None) -> None:
        """Append a task to one of the rank's streams."""
        task.stream = self.rank.streams[stream]
        task.event = event
        self.machine.push(task.stream, task, self.now)

    def row(
        self, cat: str, name: str, tid: int, start: int, correlation: int, step: int, *detail: int | str
    ) -> None:
        """Record what the host did from a time until now."""
        if self.machine.record:
            self.rank.host_rows.append(
                (cat, name, tid, start, self.now - start, correlation, self.external, step, *detail)
            )

    def next_correlation(self) -> int:
        """Return a new correlation id; other runtime calls that the trace leaves out take ids too."""
        self.correlation += 1 + (mix(self.correlation, 77) & 3)
        return self.correlation

    def synchronize(self, what: str, target: int, call: str, tid: int, step: int) -> Generator[Event]:
        """Wait for a device, a stream or an event, and record the call."""
        begin = self.now
        rank = self.rank
        events: list[Event] = []
        if what == "event":
            if target in rank.events:
                events.append(rank.events[target])
        else:
            for stream in rank.streams if what == "device" else [rank.streams[target]]:
                event = Event()
                self.enqueue(stream.name, Task("record", 0, None, self.now, 0), event)
                events.append(event)
        for event in events:
            while not event.done:
                yield event
            self.now = max(self.now, event.time)
        self.now += 6_000
        self.row("cuda_runtime", call, tid, begin, self.next_correlation(), step, what, target)

    def run_step(self, step: int) -> Generator[Event]:
        """Run the program of a step."""
        machine, rank, job = self.machine, self.rank, self.machine.job
        host, gpu, start = job.host, job.gpu, job.starts[rank.index]
        pace = job.ranks[rank.index]
        state = mix(mix(job.key, rank.index + 1), step + 1)
        stalled_rank = (step + hash_key(job.key, "rotation")) % job.world == rank.index
        gpu_factor = pace.gpu * gpu.factor * (job.rotating.gpu_factor if stalled_rank else 1.0)
        attention = gpu_factor * pace.attention
        python = (host.python_ns * pace.host, host.python_ns * pace.host * host.autograd_factor)
        noise, record = job.noise, machine.record
        open_ranges: list[list[tuple[str, str, int]]] = [[], []]
        if step == 0 and start.stall_ns:
            self.now += start.stall_ns
            self.row(
                "cuda_runtime",
                start.stall_call,
                p.MAIN,
                self.now - start.stall_ns,
                self.next_correlation(),
                0,
            )
        lazy = start.lazy_ns if step == 0 else 0
        for op in machine.program:
            code = op[0]
            if code == p.LAUNCH:
                _, tid, stream, kind, ns, key = op
                assert isinstance(key, int)
                assert isinstance(ns, int)
                assert isinstance(kind, int)
                h = mix(state, key)
                began = self.now
                self.now += int(python[int(tid)] * (1 + host.noise * abs(NORMALS[(h >> 40) & 4095])))
                called = self.now
                while rank.in_flight >= host.queue_depth:
                    yield _SLOT
                self.now += host.launch_ns + (h >> 20) % 2000 + lazy
                lazy = 0
                factor = (
                    (attention if kind in _ATTENTION else gpu_factor)
                    if key & _BLOCK_KEY
                    else pace.gpu * gpu.factor
                )
                factor *= 1 + noise * NORMALS[h & 4095]
                task = Task("kernel", kind, None, self.now + host.latency_ns, ns * factor)
                rank.in_flight += 1
                self.enqueue(int(stream), task)
                if record:
                    self.external += 1
                    task.correlation, task.external, task.step = self.next_correlation(), self.external, step
                    rank.tasks.append(task)
                    call = "cudaLaunchKernelExC" if kind == kernels.GEMM2 else "cudaLaunchKernel"
                    self.row("cuda_runtime", call, int(tid), called, task.correlation, step)
                    names = kernels.KINDS[kind]
                    self.row(
                        "cpu_op",
                        names.node
                        if key & _BLOCK_KEY and (key >> 32) & 0xFF == p.BACKWARD
                        else names.operator,
                        int(tid),
                        began,
                        0,
                        step,
                    )
            elif code == p.WAIT or code == p.RECORD:
                _, stream, key = op
                assert isinstance(key, int)
                self.now += 1_200
                if code == p.RECORD:
                    event = rank.events[key] = Event()
                    self.enqueue(int(stream), Task("record", 0, None, self.now, 0), event)
                elif key in rank.events:
                    self.enqueue(int(stream), Task("wait", 0, None, self.now, 0), rank.events[key])
            elif code == p.CPU:
                _, tid, ns, key = op
                assert isinstance(key, int)
                assert isinstance(ns, int)
                noisy = 1 + host.noise * abs(NORMALS[mix(state, key) & 4095])
                self.now += int(ns * pace.host * noisy)
            elif code == p.BEGIN:
                _, tid, cat, name = op
                self.now += 900
                open_ranges[int(tid)].append((str(cat), str(name), self.now))
            elif code == p.END:
                tid = int(op[1])
                cat, title, opened = open_ranges[tid].pop()
                self.now += 600
                self.external += 1
                self.row(cat, title, tid, opened, 0, step)
            elif code == p.COLLECTIVE:
                yield from self.launch_collective(op, state, step)
            elif code == p.POINT:
                self.stall_at(op, state, stalled_rank)
            elif code == p.SYNC:
                _, tid, what, target, sync = op
                yield from self.synchronize(str(what), int(target), str(sync), int(tid), step)
            elif code == p.MEMCPY:
                _, tid, stream, direction, size, ns, key = op
                assert isinstance(ns, int)
                called = self.now
                self.now += host.launch_ns + 1500
                task = Task("memcpy", 0, None, self.now + host.latency_ns, ns)
                task.info = (str(direction), int(size))
                rank.in_flight += 1
                self.enqueue(int(stream), task)
                if record:
                    task.correlation, task.external, task.step = self.next_correlation(), self.external, step
                    rank.tasks.append(task)
                    self.row("cuda_runtime", "cudaMemcpyAsync", int(tid), called, task.correlation, step)
            elif code == p.RUNTIME:
                _, tid, name, ns, key, syncs = op
                assert isinstance(ns, int)
                assert isinstance(key, int)
                if syncs:
                    called = self.now
                    for stream_ in rank.streams:
                        event = Event()
                        self.enqueue(stream_.name, Task("record", 0, None, self.now, 0), event)
                        while not event.done:
                            yield event
                        self.now = max(self.now, event.time)
                else:
                    called = self.now
                self.now += int(ns * (1 + 0.2 * abs(NORMALS[mix(state, key) & 4095])))
                self.row("cuda_runtime", str(name), int(tid), called, self.next_correlation(), step)

    def stall_at(self, op: p.Op, state: int, stalled_rank: bool) -> None:
        """Let the host hang where a block begins: rotating stalls, and rare hiccups of the system."""
        job = self.machine.job
        point = int(op[2])
        if stalled_rank and point == job.rotating.point:
            self.now += job.rotating.host_ns
        h = mix(state, point + 0x5EED)
        if h / (1 << 64) < job.host.hiccup_rate:
            self.now += 300_000 + (h >> 13) % 2_500_000

    def launch_collective(self, op: p.Op, state: int, step: int) -> Generator[Event]:
        """Launch a collective kernel through ProcessGroupNCCL."""
        machine, rank, job = self.machine, self.rank, self.machine.job
        _, tid, stream, comm, operation, raw, sent, got, itemsize, key = op
        assert isinstance(key, int)
        assert isinstance(sent, int)
        assert isinstance(got, int)
        assert isinstance(itemsize, int)
        host = job.host
        h = mix(state, key)
        began = self.now
        cost = host.collective_ns * job.ranks[rank.index].host * (1 + host.noise * abs(NORMALS[h & 4095]))
        self.now += int(cost * 0.6)
        called = self.now
        while rank.in_flight >= host.queue_depth:
            yield _SLOT
        self.now += host.launch_ns + 3_000
        task = Task("collective", int(comm), None, self.now + host.latency_ns, 0)
        rank.in_flight += 1
        shared = machine.join_collective(rank, int(comm), mix(key, step + 1))
        task.collective = shared
        shared.tasks[rank.index] = task
        bytes_ = max(sent, got) * itemsize
        shared.bytes = bytes_ * 2 if operation == "all_reduce" else bytes_
        number = rank.sequence[int(comm)]
        task.info = (str(operation), str(raw), sent, got, itemsize, number)
        rank.comm_orders.setdefault(int(comm), deque()).append(task)
        self.enqueue(int(stream), task)
        launched = self.now
        self.now += int(cost * 0.4)
        if machine.record:
            self.external += 2  # operator, parameters, annotation: three ids in a row
            self.correlation += 2  # the event record and the wait before the kernel
            task.correlation, task.external, task.step = self.next_correlation(), self.external, step
            rank.tasks.append(task)
            rank.host_rows.append(
                ("cuda_runtime", "cudaLaunchKernelExC", int(tid), called, launched - called, task.correlation,
                 self.external, step)
            )  # fmt: skip
            self.row("collective", str(raw), int(tid), began, task.correlation, step, *task.info, int(comm))
            self.external += 1


_SLOT: Final = Event()
