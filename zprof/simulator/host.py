"""Execute the host threads of a job's ranks: what they launch, when, and what they wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Final

from zprof.simulator import kernels
from zprof.simulator import operations as p
from zprof.simulator.job import NORMALS, Job, hash_key, mix
from zprof.simulator.machine import Machine
from zprof.simulator.state import Event, Rank, Schedule, Task

_ATTENTION: Final = frozenset({kernels.FLASH, kernels.FLASH_BACKWARD})
_BLOCK_KEY: Final = 1 << 60
_SLOT: Final = Event()
"""What a host yields that waits for a place in the launch queue."""


def run_job(job: Job, record: bool = True) -> Schedule:
    """Simulate a job. Without `record` only the step ends are kept (faster)."""
    machine = Machine(job, record)
    for rank in machine.ranks:
        machine.at(job.starts[rank.index].skew_ns, Host(machine, rank).resume)
    return machine.run()


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
