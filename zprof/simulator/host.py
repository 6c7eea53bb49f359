"""Execute the host threads of a job's ranks: their launches and waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Final

from zprof.simulator import kernels
from zprof.simulator import operations as p
from zprof.simulator.job import NORMALS, hash_key, mix
from zprof.simulator.machine import Machine
from zprof.simulator.state import Event, Rank, Task

_ATTENTION: Final = frozenset({kernels.FLASH, kernels.FLASH_BACKWARD})
_BLOCK_KEY: Final = 1 << 60
_SLOT: Final = Event()
"""What a host yields that waits for a place in the launch queue."""

Action = Callable[[p.Op], Generator[Event] | None]
"""Performs an operation; yields what it waits for."""


class Host:
    """The host threads of a rank: one program counter, because the main thread waits while autograd runs."""

    def __init__(self, machine: Machine, rank: Rank) -> None:
        self.machine = machine
        self.rank = rank
        self.now = 0
        self.step = self.state = self.lazy_ns = 0
        self.is_stalled = False
        self.open_ranges: list[list[tuple[str, str, int]]] = [[], []]
        self.correlation = 1000 + hash_key(machine.job.key, "correlation", rank.index) % 90_000
        self.external = 1
        self.actions: dict[int, Action] = {
            p.CPU: self.think,
            p.LAUNCH: self.launch_kernel,
            p.COLLECTIVE: self.launch_collective,
            p.RECORD: self.record_event,
            p.WAIT: self.await_event,
            p.SYNC: self.read_result,
            p.BEGIN: self.open_range,
            p.END: self.close_range,
            p.MEMCPY: self.copy_memory,
            p.RUNTIME: self.reallocate,
            p.POINT: self.stall_at,
        }
        self.program = self.execute()

    def resume(self, now: int) -> None:
        """Continue until the host has to wait."""
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
        for self.step in range(job.steps):
            opened = self.now
            yield from self.run_step()
            event = Event()
            self.enqueue(p.COMPUTE, Task("record", 0, None, self.now, 0), event)
            rank.step_host.append((opened, self.now))
            rank.step_events.append(event)
        self.now += 40_000
        yield from self.synchronize("device", 0, "cudaDeviceSynchronize", p.MAIN)
        rank.window = (begin, self.now)

    def run_step(self) -> Generator[Event]:
        """Run the program of a step; the first step includes the profiler's start-up cost on this rank."""
        machine, rank, job = self.machine, self.rank, self.machine.job
        start = job.starts[rank.index]
        self.state = mix(mix(job.key, rank.index + 1), self.step + 1)
        self.is_stalled = (self.step + hash_key(job.key, "rotation")) % job.world == rank.index
        self.lazy_ns = start.lazy_ns if self.step == 0 else 0
        if self.step == 0 and start.stall_ns:
            self.now += start.stall_ns
            self.row(
                "cuda_runtime", start.stall_call, p.MAIN, self.now - start.stall_ns, self.next_correlation()
            )
        for op in machine.list_operations(rank.index):
            waits = self.actions[op[0]](op)  # type: ignore[index]
            if waits is not None:
                yield from waits

    def enqueue(self, stream: int, task: Task, event: Event | None = None) -> None:
        """Append a task to one of the rank's streams."""
        task.stream = self.rank.streams[stream]
        task.event = event
        self.machine.push(task.stream, task, self.now)

    def row(self, cat: str, name: str, tid: int, start: int, correlation: int, *detail: int | str) -> None:
        """Record the host's activity from a time until now."""
        if self.machine.record:
            self.rank.host_rows.append(
                (cat, name, tid, start, self.now - start, correlation, self.external, self.step, *detail)
            )

    def next_correlation(self) -> int:
        """Return a new correlation id; runtime calls that the trace omits take ids too."""
        self.correlation += 1 + (mix(self.correlation, 77) & 3)
        return self.correlation

    def launch_task(self, stream: int, task: Task) -> None:
        """Put a kernel or a copy on a stream, with the ids by which its rows are found."""
        self.rank.in_flight += 1
        self.enqueue(stream, task)
        if self.machine.record:
            task.correlation, task.external, task.step = self.next_correlation(), self.external, self.step
            self.rank.tasks.append(task)

    def await_slot(self) -> Generator[Event]:
        """Wait for a place in the launch queue."""
        while self.rank.in_flight >= self.machine.job.host.queue_depth:
            yield _SLOT

    def await_events(self, events: list[Event]) -> Generator[Event]:
        """Wait for all events."""
        for event in events:
            while not event.done:
                yield event
            self.now = max(self.now, event.time)

    def mark_streams(self, targets: list[int]) -> list[Event]:
        """Record an event on each of the streams."""
        events = []
        for target in targets:
            event = Event()
            self.enqueue(target, Task("record", 0, None, self.now, 0), event)
            events.append(event)
        return events

    def synchronize(self, what: str, target: int, call: str, tid: int) -> Generator[Event]:
        """Wait for a device, a stream or an event, and record the call."""
        begin = self.now
        if what == "event":
            events = [self.rank.events[target]] if target in self.rank.events else []
        else:
            streams = [stream.name for stream in self.rank.streams]
            events = self.mark_streams(streams if what == "device" else [target])
        yield from self.await_events(events)
        self.now += 6_000
        self.row("cuda_runtime", call, tid, begin, self.next_correlation(), what, target)

    # operations of a program
    def think(self, op: p.Op) -> None:
        """Spend time in Python."""
        _, _, ns, key = op
        assert isinstance(ns, int)
        assert isinstance(key, int)
        host = self.machine.job.host
        noise = 1 + host.noise * abs(NORMALS[mix(self.state, key) & 4095])
        self.now += int(ns * self.machine.job.ranks[self.rank.index].host * noise)

    def launch_kernel(self, op: p.Op) -> Generator[Event]:
        """Launch a kernel: Python time, then the runtime call."""
        _, tid, stream, kind, ns, key = op
        assert isinstance(key, int)
        assert isinstance(ns, int)
        assert isinstance(kind, int)
        host = self.machine.job.host
        h = mix(self.state, key)
        began = self.now
        self.now += self.python_ns(int(tid), h)
        called = self.now
        if self.rank.in_flight >= host.queue_depth:
            yield from self.await_slot()
        self.now += host.launch_ns + (h >> 20) % 2000 + self.lazy_ns
        self.lazy_ns = 0
        task = Task("kernel", kind, None, self.now + host.latency_ns, self.work_ns(kind, ns, key, h))
        task.info = (key,)
        self.external += self.machine.record
        self.launch_task(int(stream), task)
        if self.machine.record:
            call = "cudaLaunchKernelExC" if kind == kernels.GEMM2 else "cudaLaunchKernel"
            self.row("cuda_runtime", call, int(tid), called, task.correlation)
            self.row("cpu_op", name_operator(kind, key), int(tid), began, 0)

    def python_ns(self, tid: int, h: int) -> int:
        """Return the Python time before a launch."""
        host, pace = self.machine.job.host, self.machine.job.ranks[self.rank.index]
        factor = host.autograd_factor if tid == p.AUTOGRAD else 1.0
        return int(host.python_ns * pace.host * factor * (1 + host.noise * abs(NORMALS[(h >> 40) & 4095])))

    def work_ns(self, kind: int, ns: int, key: int, h: int) -> float:
        """Return the duration of a kernel on this rank in this step, alone on its GPU."""
        job = self.machine.job
        pace, gpu = job.ranks[self.rank.index], job.gpu
        factor = pace.gpu * gpu.factor
        if key & _BLOCK_KEY:
            factor *= job.rotating.gpu_factor if self.is_stalled else 1.0
            factor *= pace.attention if kind in _ATTENTION else 1.0
        factor *= 1 + job.noise * NORMALS[h & 4095]
        return ns * factor

    def record_event(self, op: p.Op) -> None:
        """Record an event on a stream."""
        _, stream, key = op
        assert isinstance(key, int)
        self.now += 1_200
        event = self.rank.events[key] = Event()
        self.enqueue(int(stream), Task("record", 0, None, self.now, 0), event)

    def await_event(self, op: p.Op) -> Generator[Event] | None:
        """Let a stream wait for an event."""
        _, stream, key = op
        assert isinstance(key, int)
        self.now += 1_200
        if key in self.rank.events:
            self.enqueue(int(stream), Task("wait", 0, None, self.now, 0), self.rank.events[key])
        return None

    def open_range(self, op: p.Op) -> None:
        """Begin an annotation or an operator."""
        _, tid, cat, name = op
        self.now += 900
        self.open_ranges[int(tid)].append((str(cat), str(name), self.now))

    def close_range(self, op: p.Op) -> None:
        """End the innermost range of a thread."""
        tid = int(op[1])
        cat, title, opened = self.open_ranges[tid].pop()
        self.now += 600
        self.external += 1
        self.row(cat, title, tid, opened, 0)

    def read_result(self, op: p.Op) -> Generator[Event]:
        """Wait for a stream or an event, like a program that reads a value back."""
        _, tid, what, target, call = op
        return self.synchronize(str(what), int(target), str(call), int(tid))

    def copy_memory(self, op: p.Op) -> Generator[Event] | None:
        """Launch a copy between host and device."""
        _, tid, stream, direction, size, ns, _ = op
        assert isinstance(ns, int)
        called = self.now
        self.now += self.machine.job.host.launch_ns + 1500
        task = Task("memcpy", 0, None, self.now + self.machine.job.host.latency_ns, ns)
        task.info = (str(direction), int(size))
        self.launch_task(int(stream), task)
        self.row("cuda_runtime", "cudaMemcpyAsync", int(tid), called, task.correlation)
        return None

    def reallocate(self, op: p.Op) -> Generator[Event]:
        """Free memory, which waits for the device, or allocate it; not on every rank."""
        _, tid, name, ns, key, number = op
        assert isinstance(ns, int)
        assert isinstance(key, int)
        own = self.machine.job.ranks[self.rank.index].retries
        if int(number) >= (self.machine.job.retries if own is None else own):
            return
        called = self.now
        if name == "cudaFree":
            for stream in self.rank.streams:
                yield from self.await_events(self.mark_streams([stream.name]))
        self.now += int(ns * (1 + 0.2 * abs(NORMALS[mix(self.state, key) & 4095])))
        self.row("cuda_runtime", str(name), int(tid), called, self.next_correlation())

    def stall_at(self, op: p.Op) -> None:
        """Stall the host at the start of a block: stalls of this rank, rotating stalls, rare hiccups."""
        job = self.machine.job
        pace, point = job.ranks[self.rank.index], int(op[2])
        if point == p.DATA_POINT:
            self.now += pace.data_ns
            return
        if self.is_stalled and point == job.rotating.point:
            self.now += job.rotating.host_ns
        if pace.stall_ns and point == pace.stall_block:
            self.now += pace.stall_ns
        h = mix(self.state, point + 0x5EED)
        if h / (1 << 64) < job.host.hiccup_rate:
            self.now += 300_000 + (h >> 13) % 2_500_000

    def launch_collective(self, op: p.Op) -> Generator[Event]:
        """Launch a collective kernel through ProcessGroupNCCL."""
        rank, job, host = self.rank, self.machine.job, self.machine.job.host
        _, tid, stream, comm, operation, raw, sent, got, itemsize, key = op
        assert isinstance(key, int)
        h = mix(self.state, key)
        began = self.now
        cost = host.collective_ns * job.ranks[rank.index].host * (1 + host.noise * abs(NORMALS[h & 4095]))
        self.now += int(cost * 0.6)
        called = self.now
        yield from self.await_slot()
        self.now += host.launch_ns + 3_000
        task = Task("collective", int(comm), None, self.now + host.latency_ns, 0)
        shared = task.collective = self.machine.join_collective(rank, int(comm), mix(key, self.step + 1))
        shared.tasks[rank.index] = task
        bytes_ = max(int(sent), int(got)) * int(itemsize)
        shared.bytes = max(shared.bytes, bytes_ * 2 if operation == "all_reduce" else bytes_)
        task.info = (str(operation), str(raw), int(sent), int(got), int(itemsize), rank.sequence[int(comm)])
        rank.comm_orders.setdefault(int(comm), deque()).append(task)
        self.external += 2 * self.machine.record  # operator, parameters, annotation: three ids in a row
        self.correlation += 2 * self.machine.record  # the event record and the wait before the kernel
        self.launch_task(int(stream), task)
        launched = self.now
        self.now += int(cost * 0.4)
        if self.machine.record:
            rank.host_rows.append(
                ("cuda_runtime", "cudaLaunchKernelExC", int(tid), called, launched - called, task.correlation,
                 self.external, self.step)
            )  # fmt: skip
            self.row("collective", str(raw), int(tid), began, task.correlation, *task.info, int(comm))
            self.external += 1


def name_operator(kind: int, key: int) -> str:
    """Return the operator that launches a kernel; in the backward pass of a block, its autograd node."""
    names = kernels.KINDS[kind]
    is_backward = key & _BLOCK_KEY and (key >> 32) & 0xFF == p.BACKWARD
    return names.node if is_backward else names.operator
