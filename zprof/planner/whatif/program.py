"""What a rank's thread does in a step, as work, launches and waits: the order of the reference engine.

Stage 3: a unit is gathered when it is needed, those ahead with it, then waited for, and given back after its
pass.  The unit that encloses the others comes first in both directions, stays until the forward is over, and
is reduced last.  Stages 1 and 2: each unit is gathered after its update, and its next forward waits for it;
an engine on a device that waits at once does so after the whole update.
From stage 2 on a reduction is launched when fewer than ``in_flight`` are under way, or the oldest is waited
for; each backward ends with a wait for all.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from zprof.planner.whatif.habits import Habits
from zprof.planner.whatif.messages import ALL_REDUCE, GATHER, SCATTER
from zprof.planner.whatif.skeleton import Pass, Phase, Skeleton

HEAD, TAIL = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Work of a pass, by its number, of the head or of a share of the tail."""

    what: int
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A message begins its way."""

    key: str
    kind: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """The thread goes on when the message is there; one that nobody launched is there."""

    key: str


Op = Compute | Launch | Await


def program_of(skeleton: Skeleton, habits: Habits) -> tuple[Op, ...]:
    """One step; steps follow each other."""
    return tuple(_Step(skeleton, habits).ops())


class _Step:
    """Builds the list; remembers what is gathered and what is in flight."""

    def __init__(self, skeleton: Skeleton, habits: Habits) -> None:
        self._skeleton = skeleton
        self._habits = habits
        self._present: set[int] = set()
        self._flying: list[str] = []
        self._count = 0

    def ops(self) -> Iterator[Op]:
        yield Compute(what=HEAD)
        passes = self._skeleton.passes
        for number, each in enumerate(passes):
            yield from self._need(number, each)
            yield Compute(what=number)
            if each.reduces:
                yield from self._reduce(each)
            self._give_back(number, each)
            if self._ends_backward(number):
                yield from self._settle(0)
        yield from self._finish()

    def _ends_backward(self, number: int) -> bool:
        passes = self._skeleton.passes
        return number + 1 == len(passes) or passes[number + 1].micro_batch != passes[number].micro_batch

    def _need(self, number: int, each: Pass) -> Iterator[Op]:
        if not each.needs:
            return
        if self._habits.stage < 3:
            if self._habits.stage and each.phase is Phase.FORWARD and each.micro_batch == 0:
                yield Await(key=f"parameters.{each.unit}")
            return
        yield from self._gather(each.unit)
        ahead = self._following(number, each)
        for unit in ahead:
            yield from self._gather(unit)
        yield Await(key=f"gather.{each.unit}")

    def _following(self, number: int, each: Pass) -> list[int]:
        later = [
            other.unit
            for other in self._skeleton.passes[number + 1 :]
            if (other.phase, other.micro_batch) == (each.phase, each.micro_batch) and other.needs
        ]
        return later[: self._habits.prefetch]

    def _gather(self, unit: int) -> Iterator[Op]:
        if unit not in self._present:
            self._present.add(unit)
            yield Launch(key=f"gather.{unit}", kind=GATHER, bytes=self._skeleton.units[unit].gather_bytes)

    def _give_back(self, number: int, each: Pass) -> None:
        if each.phase is Phase.BACKWARD:
            encloses = self._skeleton.units[each.unit].encloses
            if not (encloses and each.needs):
                self._present.discard(each.unit)
            return
        if not self._skeleton.units[each.unit].encloses and not self._stays(each.unit):
            self._present.discard(each.unit)
        if self._skeleton.passes[number + 1].phase is Phase.BACKWARD:  # the forward is over, the root's too
            self._present = {unit for unit in self._present if self._stays(unit)}

    def _stays(self, unit: int) -> bool:
        if self._habits.keep == "all":
            return True
        inside = [index for index, each in enumerate(self._skeleton.units) if not each.encloses]
        return self._habits.keep == "last" and unit == inside[-1]

    def _reduce(self, each: Pass) -> Iterator[Op]:
        size = self._skeleton.units[each.unit].reduce_bytes
        if size <= 0:
            return
        if self._habits.stage >= 2:
            yield from self._settle(self._habits.in_flight - 1)
        self._count += 1
        key = f"reduce.{self._count}"
        yield Launch(key=key, kind=SCATTER if self._habits.stage else ALL_REDUCE, bytes=size)
        if self._habits.overlap_reduce:
            self._flying.append(key)
        else:
            yield Await(key=key)

    def _settle(self, most: int) -> Iterator[Op]:
        while len(self._flying) > max(0, most):
            yield Await(key=self._flying.pop(0))

    def _finish(self) -> Iterator[Op]:
        units = self._skeleton.units
        if self._habits.stage not in (1, 2):
            yield Compute(what=TAIL)
            return
        at_end = self._habits.updates_first and not self._habits.overlap_gather
        share = 0.0 if at_end else 1.0 / (len(units) + 1)
        if at_end:
            yield Compute(what=TAIL)
        for index, unit in enumerate(units):
            if share:
                yield Compute(what=TAIL, share=share)
            yield Launch(key=f"parameters.{index}", kind=GATHER, bytes=unit.gather_bytes)
        if share:
            yield Compute(what=TAIL, share=share)
        if not self._habits.overlap_gather:
            for index in range(len(units)):
                yield Await(key=f"parameters.{index}")
