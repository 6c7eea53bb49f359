"""Replay the steps of all ranks: run the operations of a step in the order of the reference engine.

Stage 3: when a unit is needed, it and the prefetched units are gathered; the unit is waited for and released
after its pass. The unit that encloses the others comes first in both directions, stays gathered until the
forward is over and is reduced last. Stages 1 and 2: each unit is gathered after its update, and its next
forward waits for it. An engine with ``updates_first`` that waits immediately does so after the entire
update. From stage 2 on, a
reduction that would exceed ``in_flight`` first waits for the oldest. Each backward ends with a wait for all.

    start_i = max(launch_i + pick up, end of the previous message + queue)
    arrival = max_i start_i
    end     = arrival + T(kind, bytes)
    a waiting thread resumes at end + wake, or at once if the message has ended

Blocked time before the arrival of the message on the link is wait; the rest is transfer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zprof.replay.whatif.engine_policy import EnginePolicy
from zprof.replay.whatif.links import Link, MessageCosts
from zprof.replay.whatif.unit_messages import ALL_REDUCE, GATHER, SCATTER
from zprof.replay.whatif.unit_passes import Floats, Pass, PassWork, Phase, StepPasses

HEAD, TAIL = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Work of a pass (by index), of the head, or of a share of the tail."""

    what: int
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Launch of a message."""

    key: str
    kind: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """Wait for a message; a message that was never launched does not block."""

    key: str


Op = Compute | Launch | Await


def build_program(skeleton: StepPasses, policy: EnginePolicy) -> tuple[Op, ...]:
    """Return the operations of one step; consecutive steps repeat them."""
    return tuple(_ProgramBuilder(skeleton, policy).build())


class _ProgramBuilder:
    """Builds the operations; tracks gathered units and reductions in flight."""

    def __init__(self, skeleton: StepPasses, policy: EnginePolicy) -> None:
        self._skeleton = skeleton
        self._policy = policy
        self._gathered: set[int] = set()
        self._in_flight: list[str] = []
        self._count = 0

    def build(self) -> Iterator[Op]:
        yield Compute(what=HEAD)
        passes = self._skeleton.passes
        for number, each in enumerate(passes):
            yield from self._require(number, each)
            yield Compute(what=number)
            if each.reduces:
                yield from self._reduce(each)
            self._release(number, each)
            if self._ends_backward(number):
                yield from self._wait_pending(0)
        yield from self._finish()

    def _ends_backward(self, number: int) -> bool:
        passes = self._skeleton.passes
        return number + 1 == len(passes) or passes[number + 1].micro_batch != passes[number].micro_batch

    def _require(self, number: int, each: Pass) -> Iterator[Op]:
        if not each.needs:
            return
        if self._policy.stage < 3:
            if self._policy.stage and each.phase is Phase.FORWARD and each.micro_batch == 0:
                yield Await(key=f"parameters.{each.unit}")
            return
        yield from self._launch_gather(each.unit)
        ahead = self._list_prefetched(number, each)
        for unit in ahead:
            yield from self._launch_gather(unit)
        yield Await(key=f"gather.{each.unit}")

    def _list_prefetched(self, number: int, each: Pass) -> list[int]:
        units = [
            other.unit
            for other in self._skeleton.passes[number + 1 :]
            if (other.phase, other.micro_batch) == (each.phase, each.micro_batch) and other.needs
        ]
        return units[: self._policy.prefetch]

    def _launch_gather(self, unit: int) -> Iterator[Op]:
        if unit not in self._gathered:
            self._gathered.add(unit)
            yield Launch(key=f"gather.{unit}", kind=GATHER, bytes=self._skeleton.units[unit].gather_bytes)

    def _release(self, number: int, each: Pass) -> None:
        if each.phase is Phase.BACKWARD:
            encloses = self._skeleton.units[each.unit].encloses
            if not (encloses and each.needs):
                self._gathered.discard(each.unit)
            return
        if not self._skeleton.units[each.unit].encloses and not self._stays_gathered(each.unit):
            self._gathered.discard(each.unit)
        if self._skeleton.passes[number + 1].phase is Phase.BACKWARD:  # the forward is over, also of the root
            self._gathered = {unit for unit in self._gathered if self._stays_gathered(unit)}

    def _stays_gathered(self, unit: int) -> bool:
        if self._policy.keep == "all":
            return True
        inner = [index for index, each in enumerate(self._skeleton.units) if not each.encloses]
        return self._policy.keep == "last" and unit == inner[-1]

    def _reduce(self, each: Pass) -> Iterator[Op]:
        reduce_bytes = self._skeleton.units[each.unit].reduce_bytes
        if reduce_bytes <= 0:
            return
        if self._policy.stage >= 2:
            yield from self._wait_pending(self._policy.in_flight - 1)
        self._count += 1
        key = f"reduce.{self._count}"
        yield Launch(key=key, kind=SCATTER if self._policy.stage else ALL_REDUCE, bytes=reduce_bytes)
        if self._policy.overlap_reduce:
            self._in_flight.append(key)
        else:
            yield Await(key=key)

    def _wait_pending(self, max_pending: int) -> Iterator[Op]:
        while len(self._in_flight) > max(0, max_pending):
            yield Await(key=self._in_flight.pop(0))

    def _finish(self) -> Iterator[Op]:
        units = self._skeleton.units
        if self._policy.stage not in (1, 2):
            yield Compute(what=TAIL)
            return
        at_end = self._policy.updates_first and not self._policy.overlap_gather
        share = 0.0 if at_end else 1.0 / (len(units) + 1)
        if at_end:
            yield Compute(what=TAIL)
        for index, unit in enumerate(units):
            if share:
                yield Compute(what=TAIL, share=share)
            yield Launch(key=f"parameters.{index}", kind=GATHER, bytes=unit.gather_bytes)
        if share:
            yield Compute(what=TAIL, share=share)
        if not self._policy.overlap_gather:
            for index in range(len(units)):
                yield Await(key=f"parameters.{index}")


#: Number of recent messages whose transfer can block a thread.
_LOOK_BACK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedSteps:
    """Times per step and rank, in ns: arrays of [step, rank]."""

    wall_ns: Floats
    wait_ns: Floats
    transfer_ns: Floats
    work_ns: Floats


@dataclass(frozen=True, slots=True)
class _SentMessage:
    start: Floats
    arrival: float
    end: float


def replay_steps(ops: Sequence[Op], work: PassWork, link: Link, costs: MessageCosts) -> ReplayedSteps:
    """Run the steps one after another, after a warm-up step whose messages carry over into step 0."""
    machine = _Machine(work, link, costs)
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


class _Machine:
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
        sent = _SentMessage(start, arrival, end)
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
