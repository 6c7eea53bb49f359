"""Execute ranks without a device: the main thread computes, a thread per group runs gloo's messages."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from zprof.simulator import operations as p
from zprof.simulator.host import Host, name_operator
from zprof.simulator.job import mix
from zprof.simulator.machine import Machine
from zprof.simulator.state import Event, Rank, Task
from zprof.simulator.trace_writer import GroupNames

_WAKE_NS: Final = 30_000
"""From the end of a collective until the main thread goes on."""
_NO_WAIT_NS: Final = 2_000
"""A wait that returns at once."""


class CpuHost(Host):
    """A rank whose main thread does the work of a device's compute stream."""

    def __init__(self, machine: Machine, rank: Rank) -> None:
        super().__init__(machine, rank)
        self.groups = GroupNames(machine.job)
        self.last: dict[int, Task] = {}
        """By stream, the last collective that its work comes after."""
        self.awaited: set[Task | None] = {None}

    def enqueue(self, stream: int, task: Task, event: Event | None = None) -> None:
        """Append a task to a stream; an event stands for the last collective before it."""
        if task.cat == "collective":
            self.last[stream] = task
        elif event is not None and task.cat == "record":
            event.collective = self.last.get(stream)
        elif event is not None and event.collective is not None:
            self.last[stream] = event.collective
        super().enqueue(stream, task, event)

    def launch_collective(self, op: p.Op) -> Generator[Event]:
        """Pass a collective to the thread of its group; an engine may write a range around the call."""
        began = self.now
        yield from super().launch_collective(op)
        if self.machine.job.dialect.names_collectives and self.machine.record:
            task = self.rank.tasks[-1]
            _, _, sent, got, itemsize, _ = task.info
            size, dtype = max(int(sent), int(got)) * int(itemsize), p.DTYPES[int(itemsize)]
            name = f"zprof::launch {self.identify(task)} bytes={size} dtype={dtype}"
            self.external += 1
            self.row("user_annotation", name, p.MAIN, began, 0)

    def identify(self, task: Task) -> str:
        """Return kind, group and number of a collective as in engine ranges."""
        kind, *_, number = task.info
        return f"{kind} pg={self.groups.describe(task.kind, self.rank.index)[0]} seq={number}"

    def launch_kernel(self, op: p.Op) -> Generator[Event]:
        """Compute on the main thread; its time outside of operators is Python time."""
        _, tid, _, kind, ns, key = op
        assert isinstance(key, int)
        assert isinstance(ns, int)
        assert isinstance(kind, int)
        h = mix(self.state, key)
        self.now += self.python_ns(int(tid), h) + self.machine.job.host.launch_ns
        task = Task("kernel", kind, None, self.now, self.work_ns(kind, ns, key, h))
        yield from self.run_here(task)
        names = dict.fromkeys(
            (name_operator(kind, key), name_operator(kind, 0))
        )  # an autograd node, and inside it
        for name in names:
            self.row("cpu_op", name, int(tid), task.start, 0)

    def run_here(self, task: Task) -> Generator[Event]:
        """Do some work on the main thread, which continues when it is done."""
        self.external += 1
        self.launch_task(p.COMPUTE, task)
        yield from self.await_events(self.mark_streams([p.COMPUTE]))

    def await_event(self, op: p.Op) -> Generator[Event] | None:
        """Let a worker or the main thread wait for an event."""
        _, stream, key = op
        assert isinstance(key, int)
        event = self.rank.events.pop(key, None) if stream == p.COMPUTE else None
        return super().await_event(op) if stream != p.COMPUTE else self.block([event] if event else [])

    def block(self, events: list[Event]) -> Generator[Event]:
        """Wait on the main thread, as `Work.wait` does."""
        begin = self.now
        if not events:
            return
        if all(event.done and event.time <= self.now for event in events):
            self.now += _NO_WAIT_NS
        else:
            yield from self.await_events(events)
            self.now += _WAKE_NS
        if self.machine.job.dialect.names_collectives:
            self.name_waits(begin, events)
        else:
            self.external += 1
            self.row("wait", "zprof::wait", p.MAIN, begin, 0)

    def name_waits(self, begin: int, events: list[Event]) -> None:
        """Record the collectives for which the main thread waited, each once, in the order of their ends."""
        ends = {event.collective: event.time for event in events if event.collective not in self.awaited}
        woken = self.now
        for task, end in sorted(ends.items(), key=lambda item: item[1]):
            if task is not None and (end > begin or len(events) == 1):
                is_last = end == max(ends.values())
                self.now = woken if is_last else end
                self.external += 1
                self.row("wait", f"zprof::wait {self.identify(task)}", p.MAIN, begin, 0)
                self.awaited.add(task)
                begin = self.now
        self.now = woken

    def read_result(self, op: p.Op) -> Generator[Event]:
        """Wait for everything in flight: on a CPU, a value that is read back may depend on all of it."""
        return self.block(self.mark_streams([s.name for s in self.rank.streams if s.name != p.COMPUTE]))

    def copy_memory(self, op: p.Op) -> Generator[Event] | None:
        """Copy a shard to or from slower memory, on the main thread."""
        _, _, _, direction, size, ns, _ = op
        assert isinstance(ns, int)
        task = Task("memcpy", 0, None, self.now, ns)
        task.info = (str(direction), int(size))
        return self.copy_here(task)

    def copy_here(self, task: Task) -> Generator[Event]:
        """Run a copy and record its range."""
        yield from self.run_here(task)
        name = f"zprof::copy shard unit=model bytes={task.info[1]}"
        self.row("user_annotation", name, p.MAIN, task.start, 0)
