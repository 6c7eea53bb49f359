"""Define a step's schedule: its units, its passes, and the order of gathers, computes and reductions.

This order is defined only here. The what-if replay, the planner's step and the memory walks all process the
operations of ``build_program``, and add their own times or bytes.

A unit that encloses the others (the root) comes first in both directions, stays gathered until the forward
ends, and has a second pass in the backward, after the others, in which its gradients are complete.

Stage 3: when a unit is needed, it and the prefetched units of the pass are gathered; the unit is waited for,
released after its pass, and reduced. Stages 1 and 2: each unit is gathered after its update, and its next
forward waits for it. An engine with ``updates_first`` that waits immediately does so after the entire update.
From stage 2 on, a reduction that would exceed ``in_flight`` first waits for the oldest. Each backward ends
with a wait for all.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from zprof.model.collectives import CollectiveKind

GATHER = CollectiveKind.ALL_GATHER.value
SCATTER = CollectiveKind.REDUCE_SCATTER.value
ALL_REDUCE = CollectiveKind.ALL_REDUCE.value
#: Indices of the work before the first pass and after the last one.
HEAD, TAIL = -1, -2
#: Number of reductions in flight for engines that wait for reductions only at the end of the backward pass.
UNLIMITED = 1 << 20


class PassPhase(StrEnum):
    """Phase of a pass; recomputation belongs to the backward."""

    FORWARD = "forward"
    BACKWARD = "backward"


class UnitSize(Struct, frozen=True, kw_only=True):
    """A unit that is gathered and reduced in one piece; bytes are those of the full tensors as communicated.

    ``replicate_bytes``: bytes of an all-reduce between replicas that follows the reduction on another link.
    ``skipped``: number of further equal units that this unit stands for, which are neither gathered nor
    reduced. ``has_backward``: False if no gradient passes through the unit.
    """

    name: str
    gather_bytes: float
    reduce_bytes: float
    encloses: bool = False
    replicate_bytes: float = 0.0
    skipped: int = 0
    has_backward: bool = True


class Pass(Struct, frozen=True, kw_only=True):
    """One pass of a unit.

    ``needs``: the pass needs the unit's parameters. ``reduces``: the unit's gradients are complete after it.
    ``runs``: False if nothing is computed; the unit is still prefetched.
    """

    phase: PassPhase
    unit: int
    micro_batch: int = 0
    needs: bool = True
    reduces: bool = False
    runs: bool = True


class EnginePolicy(Struct, frozen=True, kw_only=True):
    """An engine's schedule, including everything that a change can alter.

    ``keep``: none, last or all. ``in_flight``: reductions before the oldest is waited for. ``updates_first``:
    set for an unknown engine on a device; if it waits for new parameters at once, it gathers them after the
    whole update.
    """

    stage: int
    prefetch: int
    keep: str
    overlap_reduce: bool
    overlap_gather: bool
    in_flight: int
    updates_first: bool = False


def list_passes(
    units: Sequence[UnitSize],
    backward: Sequence[int],
    micro_batches: int,
    reduce_each: bool,
    *,
    ends_forward: bool = False,
) -> tuple[Pass, ...]:
    """Return all passes of a step.

    ``units`` are in forward order; ``backward`` lists the inner units in backward order. ``ends_forward``:
    the enclosing units have a second pass in a forward too, after the others (their head and the loss).
    """
    passes: list[Pass] = []
    enclosing = [index for index, unit in enumerate(units) if unit.encloses]
    for number in range(micro_batches):
        reduces = reduce_each or number == micro_batches - 1
        passes += [
            Pass(phase=PassPhase.FORWARD, unit=index, micro_batch=number, needs=not unit.skipped)
            for index, unit in enumerate(units)
        ]
        passes += [
            Pass(phase=PassPhase.FORWARD, unit=unit, micro_batch=number, needs=False)
            for unit in enclosing
            if ends_forward
        ]
        passes += [Pass(phase=PassPhase.BACKWARD, unit=unit, micro_batch=number) for unit in enclosing]
        passes += [
            Pass(
                phase=PassPhase.BACKWARD,
                unit=unit,
                micro_batch=number,
                needs=not units[unit].skipped,
                reduces=reduces,
                runs=units[unit].has_backward,
            )
            for unit in backward
        ]
        passes += [
            Pass(phase=PassPhase.BACKWARD, unit=unit, micro_batch=number, needs=False, reduces=reduces)
            for unit in reversed(enclosing)
        ]
    return tuple(passes)


class StartPass(Struct, frozen=True, kw_only=True):
    """Start of a pass (by index): its gathers follow, then its compute."""

    what: int


class Compute(Struct, frozen=True, kw_only=True):
    """Work of a pass (by index), of the head, or of a share of the tail."""

    what: int
    share: float = 1.0


class Launch(Struct, frozen=True, kw_only=True):
    """Launch of a unit's message; ``after``: the message that it follows, on another link."""

    key: str
    kind: str
    bytes: float
    unit: int = 0
    after: str = ""


class Await(Struct, frozen=True, kw_only=True):
    """Wait for a message; a message that was never launched does not block."""

    key: str
    unit: int = 0


class Release(Struct, frozen=True, kw_only=True):
    """Release of the gathered parameters of a unit."""

    unit: int


class EndBackward(Struct, frozen=True, kw_only=True):
    """End of the backward of a micro-batch: all its reductions are done."""

    micro_batch: int


Op = StartPass | Compute | Launch | Await | Release | EndBackward


def build_program(units: Sequence[UnitSize], passes: Sequence[Pass], policy: EnginePolicy) -> tuple[Op, ...]:
    """Return the operations of one step; consecutive steps repeat them."""
    return tuple(_ProgramBuilder(units, passes, policy).build())


class _ProgramBuilder:
    """Builds the operations; tracks gathered units and reductions in flight."""

    def __init__(self, units: Sequence[UnitSize], passes: Sequence[Pass], policy: EnginePolicy) -> None:
        self._units = units
        self._passes = passes
        self._policy = policy
        self._last = max((index for index, unit in enumerate(units) if not unit.encloses), default=0)
        self._gathered: set[int] = set()
        self._released_late: list[int] = []
        self._in_flight: list[str] = []
        self._count = 0

    def build(self) -> Iterator[Op]:
        yield Compute(what=HEAD)
        for number, unit_pass in enumerate(self._passes):
            if unit_pass.runs:
                yield StartPass(what=number)
                yield from self._require(number, unit_pass)
                yield Compute(what=number)
                yield from self._release(number, unit_pass)
                if unit_pass.reduces:
                    yield from self._reduce(unit_pass)
            else:
                self._released_late.append(unit_pass.unit)
            following = self._passes[number + 1 : number + 2]
            if not following or following[0].micro_batch != unit_pass.micro_batch:
                yield from self._release_units(self._released_late)
                self._released_late.clear()
                yield from self._wait_pending(0)
                yield EndBackward(micro_batch=unit_pass.micro_batch)
        yield from self._finish()

    def _require(self, number: int, each: Pass) -> Iterator[Op]:
        if not each.needs:
            return
        if self._policy.stage < 3:
            if self._policy.stage and each.phase is PassPhase.FORWARD and each.micro_batch == 0:
                yield Await(key=f"parameters.{each.unit}", unit=each.unit)
            return
        yield from self._launch_gather(each.unit)
        for unit in self._list_prefetched(number, each):
            yield from self._launch_gather(unit)
        yield Await(key=f"gather.{each.unit}", unit=each.unit)

    def _list_prefetched(self, number: int, each: Pass) -> list[int]:
        """Return the next units of the same pass direction and micro-batch."""
        units: list[int] = []
        for index in range(number + 1, len(self._passes)):
            other = self._passes[index]
            if len(units) >= self._policy.prefetch or (other.phase, other.micro_batch) != (
                each.phase,
                each.micro_batch,
            ):
                break
            if other.needs:
                units.append(other.unit)
        return units

    def _launch_gather(self, unit: int) -> Iterator[Op]:
        if unit not in self._gathered:
            self._gathered.add(unit)
            yield Launch(key=f"gather.{unit}", kind=GATHER, bytes=self._units[unit].gather_bytes, unit=unit)

    def _release(self, number: int, each: Pass) -> Iterator[Op]:
        encloses = self._units[each.unit].encloses
        if each.phase is PassPhase.BACKWARD:
            if not encloses:
                yield from self._release_units([each.unit])
            elif not each.needs:
                self._released_late.append(each.unit)
            return
        if not encloses and not self._stays_gathered(each.unit):
            yield from self._release_units([each.unit])
        following = self._passes[number + 1 : number + 2]
        if following and following[0].phase is PassPhase.BACKWARD:  # the forward is over, also of the root
            yield from self._release_units(
                [unit for unit in sorted(self._gathered) if not self._stays_gathered(unit)]
            )

    def _release_units(self, units: Sequence[int]) -> Iterator[Op]:
        for unit in units:
            if unit in self._gathered:
                self._gathered.discard(unit)
                yield Release(unit=unit)

    def _stays_gathered(self, unit: int) -> bool:
        return self._policy.keep == "all" or (self._policy.keep == "last" and unit == self._last)

    def _reduce(self, each: Pass) -> Iterator[Op]:
        unit = self._units[each.unit]
        if unit.reduce_bytes <= 0 or unit.skipped:
            return
        if self._policy.stage >= 2:
            yield from self._wait_pending(self._policy.in_flight - 1)
        self._count += 1
        key, kind = f"reduce.{self._count}", SCATTER if self._policy.stage else ALL_REDUCE
        yield Launch(key=key, kind=kind, bytes=unit.reduce_bytes, unit=each.unit)
        if not self._policy.overlap_reduce:
            yield Await(key=key, unit=each.unit)
            return
        self._in_flight.append(key)
        if unit.replicate_bytes > 0:
            replicas = f"replicate.{self._count}"
            yield Launch(key=replicas, kind=ALL_REDUCE, bytes=unit.replicate_bytes, unit=each.unit, after=key)
            self._in_flight.append(replicas)

    def _wait_pending(self, max_pending: int) -> Iterator[Op]:
        while len(self._in_flight) > max(0, max_pending):
            yield Await(key=self._in_flight.pop(0))

    def _finish(self) -> Iterator[Op]:
        if self._policy.stage not in (1, 2):
            yield Compute(what=TAIL)
            return
        at_end = self._policy.updates_first and not self._policy.overlap_gather
        share = 0.0 if at_end else 1.0 / (len(self._units) + 1)
        if at_end:
            yield Compute(what=TAIL)
        for index, unit in enumerate(self._units):
            if share:
                yield Compute(what=TAIL, share=share)
            yield Launch(key=f"parameters.{index}", kind=GATHER, bytes=unit.gather_bytes, unit=index)
        if share:
            yield Compute(what=TAIL, share=share)
        if not self._policy.overlap_gather:
            for index in range(len(self._units)):
                yield Await(key=f"parameters.{index}", unit=index)
