"""State of a simulated job: events, work, streams, collectives, and the record of each rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from zprof.simulator.job import Job


class Event:
    """A CUDA event: its waiters, when it was reached and, on a CPU rank, which collective it follows."""

    __slots__ = ("collective", "done", "time", "waiters")

    def __init__(self) -> None:
        self.done = False
        self.time = 0
        self.waiters: list[Callable[[int], None]] = []
        self.collective: Task | None = None


class Task:
    """A piece of GPU work, and its record."""

    __slots__ = (
        "avail", "cat", "collective", "correlation", "end", "event", "external", "info", "kind", "left",
        "parts", "pending", "rate_since", "running", "start", "step", "stream", "version",
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
        self.parts: tuple[Collective, ...] = ()
        """The messages of a kernel that sends and receives, and how many of them are on their way."""
        self.pending = 0


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
        "active", "arrived", "bytes", "comm", "end", "entered", "key", "left", "members", "number", "rate",
        "sender", "since", "start", "tasks", "version",
    )  # fmt: skip

    def __init__(self, members: tuple[int, ...], number: int) -> None:
        self.members = members
        self.number = number
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
        self.comm = 0
        self.sender = -1
        """Of a message between two ranks, the rank that sends it."""


class Rank:
    """State of one rank, and its record after the run."""

    def __init__(self, index: int, streams: int = 8) -> None:
        self.index = index
        self.streams = [Stream(self, name) for name in range(streams)]
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
        self.blocked: list[tuple[int, int, Task]] = []
        """From when to when the compute stream waited, and for the end of which collective."""


class Schedule:
    """The result of a simulation: one `Rank` per rank, and the collectives in order of creation."""

    def __init__(self, job: Job, ranks: list[Rank], collectives: list[Collective]) -> None:
        self.job = job
        self.ranks = ranks
        self.collectives = collectives

    def step_ends(self) -> list[list[int]]:
        """Return the end of each step on each rank: its host is done and its compute stream is empty."""
        return [
            [max(host[1], event.time) for host, event in zip(r.step_host, r.step_events, strict=True)]
            for r in self.ranks
        ]
