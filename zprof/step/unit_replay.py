"""Replay all ranks' steps by running a step's operations (:mod:`zprof.step.schedule`).

    start_i = max(launch_i + pick up, end of the previous message + queue)
    arrival = max_i start_i
    end     = arrival + T(kind, bytes)
    a waiting thread resumes at end + wake, or at once if the message has ended

Blocked time before the message's arrival on the link is wait; the rest is transfer.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s
from zprof.step.links import Link
from zprof.step.schedule import HEAD, TAIL, Await, Compute, Launch, Op, Pass, UnitSize
from zprof.step.tasks import Floats

#: Number of recent messages whose transfer can block a thread.
_LOOK_BACK = 64
#: A thread that starts to wait less than this before the message ends does not sleep.
_NO_SLEEP_NS = 20_000
_WAKE_NS = 30_000
#: If kinds overlap for more than this share of the messages' time, each kind has its own link.
_CONCURRENT_RATIO = 0.05


class MessageCosts(Struct, frozen=True, kw_only=True):
    """Costs per message, in ns.

    ``launch_ns``: thread time of a launch, by kind. ``pick_up_ns``: from launch to start on an idle link.
    ``queue_ns``: from the end of one message to the start of the next in the queue. ``wake_ns``: from the end
    of a message until the waiting thread resumes. ``lanes``: True if each kind has its own link.
    """

    launch_ns: dict[str, float]
    pick_up_ns: float
    queue_ns: float
    wake_ns: float
    lanes: bool


class PassWork(Struct, frozen=True, kw_only=True):
    """Each rank's time not blocked by sharding traffic, in ns.

    ``passes`` is [pass, step, rank]; the others are [step, rank]. ``between``: from one step to the next.
    """

    head: Floats
    passes: Floats
    tail: Floats
    between: Floats


class StepPasses(Struct, frozen=True, kw_only=True):
    """A step's passes, with the work of all modelled ranks and steps."""

    units: tuple[UnitSize, ...]
    passes: tuple[Pass, ...]
    work: PassWork
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    micro_batches: int = 1


class ReplayedSteps(Struct, frozen=True, kw_only=True):
    """Times per step and rank, in ns: arrays of [step, rank]."""

    wall_ns: Floats
    wait_ns: Floats
    transfer_ns: Floats
    work_ns: Floats


class _SentMessage(Struct, frozen=True):
    start: Floats
    arrival: float
    end: float


def replay_steps(ops: Sequence[Op], work: PassWork, link: Link, costs: MessageCosts) -> ReplayedSteps:
    """Run the steps one after another, after a warm-up step whose messages carry over into step 0."""
    machine = _UnitPlayer(work, link, costs)
    count, ranks = work.head.shape
    walls, waits, transfers, works = (np.zeros((count, ranks)) for _ in range(4))
    for step in range(-1, count):  # warm-up step: its messages are still in flight when step 0 starts
        machine.begin(max(step, 0))
        machine.run(ops)
        if step >= 0:
            walls[step] = machine.host - machine.begun
            waits[step], transfers[step], works[step] = machine.waited, machine.moved, machine.worked
        machine.host = machine.host + work.between[max(step, 0)]
    return ReplayedSteps(wall_ns=walls, wait_ns=waits, transfer_ns=transfers, work_ns=works)


class _UnitPlayer:
    def __init__(self, work: PassWork, link: Link, costs: MessageCosts) -> None:
        ranks = work.head.shape[1]
        self._work = work
        self._link = link
        self._costs = costs
        self._free: dict[str, float] = defaultdict(float)
        self._sent: dict[str, _SentMessage] = {}
        self._lane: list[_SentMessage] = []
        self._times: dict[tuple[str, float], float] = {}
        self.host: Floats = np.zeros(ranks)
        self.begin(0)

    def begin(self, step: int) -> None:
        """Start a step."""
        self._step = step
        self.begun = self.host
        self.waited, self.moved, self.worked = (np.zeros(len(self.host)) for _ in range(3))

    def run(self, ops: Sequence[Op]) -> None:
        """Run one step."""
        for op in ops:
            if isinstance(op, Compute):
                self._compute(op)
            elif isinstance(op, Launch):
                self._launch(op)
            elif isinstance(op, Await):
                self._await(op)

    def _compute(self, op: Compute) -> None:
        if op.what == HEAD:
            ns = self._work.head[self._step]
        elif op.what == TAIL:
            ns = self._work.tail[self._step] * op.share
        else:
            ns = self._work.passes[op.what, self._step]
        self.host = self.host + ns
        self.worked += ns

    def _launch(self, op: Launch) -> None:
        lane = op.kind if self._costs.lanes else ""
        free = self._free[lane]
        self.host = self.host + self._costs.launch_ns.get(op.kind, 0.0)
        start = np.maximum(self.host + self._costs.pick_up_ns, free + self._costs.queue_ns if free else 0.0)
        arrival = float(start.max())
        message = (op.kind, op.bytes)
        if message not in self._times:
            self._times[message] = self._link.transfer_ns(op.kind, op.bytes)
        end = arrival + self._times[message]
        self._free[lane] = end
        sent = _SentMessage(start, arrival, end)
        self._sent[op.key] = sent
        self._lane.append(sent)
        if len(self._lane) > _LOOK_BACK:
            del self._lane[: _LOOK_BACK // 2]

    def _await(self, op: Await) -> None:
        sent = self._sent.get(op.key)
        if sent is None:
            return
        is_blocked = self.host < sent.end
        if not is_blocked.any():
            return
        host = self.host
        earliest = float(host.min())
        for other in reversed(self._lane):
            if other.end <= earliest and not self._costs.lanes:
                break  # messages run one after another, so earlier ones ended before this one
            if other.end <= earliest or other.arrival > sent.end:
                continue
            moving = np.minimum(other.end, sent.end) - np.maximum(host, other.arrival)
            waiting = other.arrival - np.maximum(host, other.start)
            self.moved += np.where(is_blocked, np.maximum(0.0, moving), 0.0)
            self.waited += np.where(is_blocked, np.maximum(0.0, waiting), 0.0)
        self.host = np.where(is_blocked, sent.end + self._costs.wake_ns, host)


def measure_costs(rows: Columns, *, device: bool) -> MessageCosts:
    """Return the median costs over all messages."""
    launch, start, end = (rows.floats(name) for name in ("launch_end_ns", "start_ns", "end_ns"))
    before, lanes = _previous_ends(rows)
    idle = ~np.isnan(launch) & (before < launch)
    queued = ~np.isnan(launch) & (before >= launch)
    wait, woken = (rows.floats(name) for name in ("wait_start_ns", "wait_end_ns"))
    slept = ~np.isnan(wait) & (wait < end - _NO_SLEEP_NS)
    is_timed = rows.known("launch_end_ns") & rows.known("launch_start_ns")
    calls_ns = (rows.ints("launch_end_ns") - rows.ints("launch_start_ns"))[is_timed]
    call_kinds = rows.texts("kind").at(is_timed)
    return MessageCosts(
        launch_ns={
            kind: 0.0 if device else _median_or(calls_ns[call_kinds.equals(kind)])
            for kind in rows.texts("kind").list_distinct()
        },
        pick_up_ns=0.0 if device else _median_or((start - launch)[idle]),
        queue_ns=0.0 if device else _median_or((start - before)[queued]),
        wake_ns=_median_or((woken - end)[slept], 0.0 if device else _WAKE_NS),
        lanes=lanes,
    )


def _median_or(values: Int64s | Floats, default: float = 0.0) -> float:
    return max(0.0, float(np.median(values))) if len(values) else default


def _previous_ends(rows: Columns) -> tuple[Floats, bool]:
    """Return the end of the previous message on the same rank, and True if kinds run concurrently."""
    before = np.full(len(rows), -np.inf)
    rank, kind = rows.ints("rank"), rows.texts("kind").codes
    start, end = rows.floats("start_ns"), rows.floats("end_ns")
    overlap_ns = total = 0.0
    for each_rank in np.unique(rank):
        indices = np.flatnonzero(rank == each_rank)
        indices = indices[np.argsort(start[indices], kind="stable")]
        latest_end = np.maximum.accumulate(end[indices])
        before[indices[1:]] = latest_end[:-1]
        overlaps = np.maximum(0.0, np.minimum(latest_end[:-1], end[indices[1:]]) - start[indices[1:]])
        overlap_ns += float(overlaps[kind[indices[1:]] != kind[indices[:-1]]].sum())
        total += float((end[indices] - start[indices]).sum())
    return before, overlap_ns > _CONCURRENT_RATIO * max(1.0, total)
