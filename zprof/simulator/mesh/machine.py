"""Execute a job of several dimensions: messages between two ranks, and links by role and node."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator
from typing import Final

from zprof.simulator import operations as p
from zprof.simulator.host import Host
from zprof.simulator.job import NORMALS, Job, mix
from zprof.simulator.machine import Machine
from zprof.simulator.mesh.layout import PIPELINE, ROLES
from zprof.simulator.mesh.program import STREAMS, MeshProgram
from zprof.simulator.state import Collective, Event, Rank, Stream, Task

_FIRST_PAIR: Final = 32
"""Communicators of single messages are numbered from here, by stream."""


class MeshMachine(Machine):
    """The event loop with a program per rank."""

    def __init__(self, job: Job, record: bool) -> None:
        super().__init__(job, record)
        assert job.parallel is not None
        self.ranks = [Rank(index, STREAMS) for index in range(job.world)]
        self.programs = [MeshProgram(job, rank).build() for rank in range(job.world)]
        self.link_factors = dict(job.parallel.link_factors)
        self.links: dict[tuple[int, bool], list[Collective]] = defaultdict(list)
        """Transfers by rank and by whether they leave the node: these share a link."""
        self.stopped: dict[int, tuple[int, Event]] = {}

    def list_operations(self, rank: int) -> list[p.Op]:
        """Return the operations of a step of a rank."""
        return self.programs[rank]

    def pump(self, stream: Stream, now: int) -> None:
        """Start the next work, and record for which collective a compute stream waits."""
        if not self.record or stream.name != p.COMPUTE:
            super().pump(stream, now)
            return
        index = stream.rank.index
        since, event = self.stopped.get(index, (0, None))
        if event is not None and event.done:
            del self.stopped[index]
            if event.collective is not None and now > since:
                stream.rank.blocked.append((since, now, event.collective))
        super().pump(stream, now)
        head = stream.queue[0] if stream.queue and not stream.busy else None
        if head is not None and head.cat == "wait" and head.event is not None and not head.event.done:
            self.stopped.setdefault(index, (now, head.event))

    # messages
    def join_message(self, rank: Rank, comm: int, sender: int, receiver: int, key: int) -> Collective:
        """Return the message that a rank's next send or receive between two ranks belongs to."""
        lane = _FIRST_PAIR + (comm * self.job.world + sender) * self.job.world + receiver
        number = rank.sequence.get(lane, 0)
        rank.sequence[lane] = number + 1
        place = (lane, 0, number)
        message = self.operations.get(place)
        if message is None:
            message = self.operations[place] = Collective((sender, receiver), number)
            message.key = mix(mix(self.job.key, key), lane)
            message.comm, message.sender = comm, sender
        return message

    def enter_collective(self, stream: Stream, task: Task, now: int) -> bool:
        """Start a collective, or the kernel of one or more messages, if its communicator is free."""
        if not task.parts:
            return super().enter_collective(stream, task, now)
        rank = stream.rank
        if rank.comm_orders[task.kind][0] is not task:
            return False
        stream.queue.popleft()
        stream.busy = task.running = True
        task.start = max(now, stream.ready)
        self.change_comms(rank, 1, now)
        for message in task.parts:
            message.entered += 1
            message.arrived = max(message.arrived, task.start)
            if message.entered == len(message.members):
                begin = message.arrived + self.alpha(message)
                self.at(begin, lambda time, message=message: self.begin_transfer(message, time))  # type: ignore[misc]
        return True

    # links
    def begin_transfer(self, operation: Collective, now: int) -> None:
        """Move the bytes over a link, which transfers of the same rank share."""
        cluster, members = self.job.cluster, len(operation.members)
        leaves_node = self.spans_nodes(operation)
        bus = min(cluster.inter_bus, cluster.intra_bus) if leaves_node else cluster.intra_bus
        bus *= cluster.bandwidth_factor * self.link_factors.get(ROLES[operation.comm], 1.0)
        bus *= min(self.job.ranks[member].link for member in operation.members)
        share = 1.0 if operation.sender >= 0 else (members - 1) / members
        jitter = 1 + 0.015 * NORMALS[(operation.key >> 12) & 4095]
        operation.left = operation.bytes * share / bus * max(0.9, jitter)
        operation.since = now
        operation.active = True
        operation.rate = 0.0
        for member in operation.members:
            self.links[member, leaves_node].append(operation)
        self.replan_neighbors(operation, leaves_node, now)

    def replan_neighbors(self, operation: Collective, leaves_node: bool, now: int) -> None:
        """Recompute rates and ends of the transfers that share a link with one that begins or ends."""
        links = self.links
        near = {id(other): other for rank in operation.members for other in links[rank, leaves_node]}
        for other in near.values():
            load = max(len(links[rank, leaves_node]) for rank in other.members)
            if other.rate == 1.0 / load:
                continue
            other.left = max(0.0, other.left - (now - other.since) * other.rate)
            other.since = now
            other.rate = 1.0 / load
            other.version += 1
            self.at(now + int(other.left * load), self.transfer_end(other, other.version))

    def end_transfer(self, operation: Collective, now: int) -> None:
        """End a transfer on its members, a few microseconds apart."""
        operation.active = False
        operation.end = now
        leaves_node = self.spans_nodes(operation)
        for member in operation.members:
            self.links[member, leaves_node].remove(operation)
        for member, task in operation.tasks.items():
            spread = int(self.job.cluster.end_spread_ns * abs(NORMALS[mix(operation.key, member) & 4095]))
            task.pending -= 1
            task.end = max(task.end, now + spread)
            if task.pending <= 0:
                self.at(task.end, self.leave_collective(task))
        self.replan_neighbors(operation, leaves_node, now)


class MeshHost(Host):
    """The host threads of a rank that also sends and receives."""

    def __init__(self, machine: MeshMachine, rank: Rank) -> None:
        super().__init__(machine, rank)
        self.mesh = machine
        self.last: dict[int, Task] = {}
        """By stream, the last collective that its work comes after."""
        self.actions[p.MESSAGE] = self.launch_messages

    def enqueue(self, stream: int, task: Task, event: Event | None = None) -> None:
        """Append a task to a stream; an event stands for the last collective before it."""
        if task.cat == "collective":
            self.last[stream] = task
        elif event is not None and task.cat == "record":
            event.collective = self.last.get(stream)
        elif event is not None and event.collective is not None and stream != p.COMPUTE:
            self.last[stream] = event.collective
        super().enqueue(stream, task, event)

    def launch_messages(self, op: p.Op) -> Generator[Event]:
        """Launch the kernel of a send, of a receive, or of a batch of these."""
        rank, job, host = self.rank, self.machine.job, self.machine.job.host
        _, tid, stream, comm, is_batched, elements, itemsize, key, *ends = op
        assert isinstance(key, int)
        h = mix(self.state, key)
        began = self.now
        cost = host.collective_ns * job.ranks[rank.index].host * (1 + host.noise * abs(NORMALS[h & 4095]))
        self.now += int(cost * 0.6)
        yield from self.await_slot()
        called = self.now
        self.now += host.launch_ns + 3_000
        kind = PIPELINE if is_batched and int(comm) == PIPELINE else _FIRST_PAIR + int(stream)
        task = Task("collective", kind, None, self.now + host.latency_ns, 0)
        pairs = [(int(ends[i]), int(ends[i + 1])) for i in range(0, len(ends), 2)]
        task.parts = tuple(
            self.mesh.join_message(rank, int(comm), sender, receiver, mix(key, self.step + 1))
            for sender, receiver in pairs
        )
        task.pending = len(task.parts)
        for message in task.parts:
            message.tasks[rank.index] = task
            message.bytes = int(elements) * int(itemsize)
        task.collective = task.parts[0] if len(pairs) == 1 else Batch(task.parts)
        sender, receiver = pairs[0]
        name = "coalesced" if is_batched else "send" if sender == rank.index else "recv"
        peer = receiver if sender == rank.index else sender
        number = task.parts[0].number + 1
        task.info = (name, name, int(elements), int(elements), int(itemsize), number, peer, int(comm))
        rank.comm_orders.setdefault(kind, deque()).append(task)
        self.external += 2 * self.machine.record
        first_id = self.external
        self.external += 4 * len(pairs) * (self.machine.record and bool(is_batched))
        self.correlation += 2 * self.machine.record
        self.launch_task(int(stream), task)
        launched = self.now
        self.now += int(cost * 0.4)
        if self.machine.record:
            self.record_messages(task, pairs, int(tid), (began, called, launched), first_id)
            self.external += 1

    def record_messages(
        self, task: Task, pairs: list[tuple[int, int]], tid: int, times: tuple[int, int, int], first_id: int
    ) -> None:
        """Record the calls of the messages and the launch of their kernel, in a batch after all calls."""
        began, called, launched = times
        rows, own = self.rank.host_rows, self.rank.index
        name, _, elements, _, itemsize, _, _, comm = task.info
        is_batched = name == "coalesced"
        rows.append(
            ("cuda_runtime", "cudaLaunchKernelExC", tid, called, launched - called, task.correlation,
             self.external, self.step)
        )  # fmt: skip
        end = called - (called - began) // 8 if is_batched else self.now
        for place, (message, (sender, receiver)) in enumerate(zip(task.parts, pairs, strict=True)):
            first = began + (end - began) * place // len(pairs)
            last = began + (end - began) * (place + 1) // len(pairs)
            call, peer = ("send", receiver) if sender == own else ("recv", sender)
            rows.append(
                ("message", call, tid, first, last - first - 200, task.correlation, first_id + 4 * place,
                 self.step, elements, itemsize, message.number + 1, peer, comm, int(is_batched))
            )  # fmt: skip
        if is_batched:
            self.row("user_annotation", "nccl:coalesced", tid, called - (called - began) // 16, 0)


class Batch(Collective):
    """Several messages in one kernel: it has arrived when the last of them has."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Collective, ...]) -> None:
        super().__init__(parts[0].members, parts[0].number)
        self.parts = parts
        self.comm = parts[0].comm

    @property
    def arrived(self) -> int:
        """Return when the last member of any of the messages arrived."""
        return max(part.arrived for part in self.parts)

    @arrived.setter
    def arrived(self, value: int) -> None:
        """Ignore the start value: the messages know."""
