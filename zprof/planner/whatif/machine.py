"""Plays steps of all ranks at once: threads work, launch and wait; a link carries one message after another.

    start_i = max(launch_i + pick up, end of the message before)     arrival = max_i start_i
    end     = arrival + T(kind, bytes)
    a thread that waits goes on at end + wake, or at once where the message is there

While it waits, what lies before the arrival of the message on the link is waiting, the rest transfer.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zprof.planner.whatif.costs import Costs
from zprof.planner.whatif.links import Link
from zprof.planner.whatif.program import HEAD, TAIL, Await, Compute, Launch, Op
from zprof.planner.whatif.skeleton import Floats, Work

#: Messages of a lane back to which a blocked thread is compared with.
_LOOK_BACK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Of each step and rank, in nanoseconds: arrays of [step, rank]."""

    wall_ns: Floats
    wait_ns: Floats
    transfer_ns: Floats
    work_ns: Floats


@dataclass(frozen=True, slots=True)
class _Sent:
    start: Floats
    arrival: float
    end: float


def play(ops: Sequence[Op], work: Work, link: Link, costs: Costs) -> Played:
    """Run the steps one after the other; the first one starts with an idle link and new parameters."""
    machine = _Machine(work, link, costs)
    count, ranks = work.head.shape
    walls, waits, moves, works = (np.zeros((count, ranks)) for _ in range(4))
    for step in range(-1, count):  # one more before: what a step leaves to the next is under way then
        machine.begin(max(step, 0))
        machine.run(ops)
        if step >= 0:
            walls[step] = machine.host - machine.begun
            waits[step], moves[step], works[step] = machine.waited, machine.moved, machine.worked
        machine.host = machine.host + work.between[max(step, 0)]
    return Played(wall_ns=walls, wait_ns=waits, transfer_ns=moves, work_ns=works)


class _Machine:
    def __init__(self, work: Work, link: Link, costs: Costs) -> None:
        ranks = work.head.shape[1]
        self._work = work
        self._link = link
        self._costs = costs
        self._free: dict[str, float] = defaultdict(float)
        self._sent: dict[str, _Sent] = {}
        self._lane: list[_Sent] = []
        self._times: dict[tuple[str, float], float] = {}
        self.host: Floats = np.zeros(ranks)
        self.begin(0)

    def begin(self, step: int) -> None:
        """A step begins."""
        self._step = step
        self.begun = self.host
        self.waited, self.moved, self.worked = (np.zeros(len(self.host)) for _ in range(3))

    def run(self, ops: Sequence[Op]) -> None:
        """One step."""
        for op in ops:
            if isinstance(op, Compute):
                self._compute(op)
            elif isinstance(op, Launch):
                self._launch(op)
            else:
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
        end = arrival + self._transfer_ns(op)
        self._free[lane] = end
        sent = _Sent(start, arrival, end)
        self._sent[op.key] = sent
        self._lane.append(sent)
        if len(self._lane) > _LOOK_BACK:
            del self._lane[: _LOOK_BACK // 2]

    def _transfer_ns(self, op: Launch) -> float:
        key = (op.kind, op.bytes)
        if key not in self._times:
            self._times[key] = self._link.transfer_ns(op.kind, op.bytes)
        return self._times[key]

    def _await(self, op: Await) -> None:
        sent = self._sent.get(op.key)
        if sent is None:
            return
        late = self.host < sent.end
        if not late.any():
            return
        since = self.host
        least = float(since.min())
        for other in reversed(self._lane):
            if other.end <= least and not self._costs.lanes:
                break  # one after the other: those before ended earlier still
            if other.end <= least or other.arrival > sent.end:
                continue
            moving = np.minimum(other.end, sent.end) - np.maximum(since, other.arrival)
            waiting = other.arrival - np.maximum(since, other.start)
            self.moved += np.where(late, np.maximum(0.0, moving), 0.0)
            self.waited += np.where(late, np.maximum(0.0, waiting), 0.0)
        self.host = np.where(late, sent.end + self._costs.wake_ns, since)
