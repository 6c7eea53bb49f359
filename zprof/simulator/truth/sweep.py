"""Split a rank's time into pieces with one state each: what runs, and which collective blocks it.

On a device, a rank is blocked in every gap between two kernels of the compute stream, by the collectives
that the next kernel depends on; on a CPU, in each wait of the main thread.  Plain Python on purpose: none of
the interval arithmetic under test is used here.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from zprof.simulator.engine.schedule import Line, Schedule
from zprof.simulator.plan import Vendor
from zprof.simulator.program.instructions import Collective, Copy, Kernel, Wait

#: Before and after everything.
ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A stretch without compute, and the numbers of the collectives that block it."""

    begin_ns: int
    end_ns: int
    awaited: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Lines by kind, and the collectives that a line waits for; equal on every rank."""

    kernels: list[int]
    collectives: list[int]
    copies: list[int]
    waits: list[int]
    awaited: dict[int, tuple[int, ...]]


def resolve_dependencies(schedule: Schedule) -> Dependencies:
    """Resolve keys in program order: a key names the latest instruction that has it."""
    found = Dependencies(kernels=[], collectives=[], copies=[], waits=[], awaited={})
    latest: dict[str, int] = {}
    for index, line in enumerate(schedule.lines):
        instruction = line.instruction
        if isinstance(instruction, Kernel):
            found.kernels.append(index)
            found.awaited[index] = tuple(latest[key] for key in instruction.after if key in latest)
        elif isinstance(instruction, Collective):
            latest[instruction.key] = len(found.collectives)
            found.collectives.append(index)
        elif isinstance(instruction, Copy):
            found.copies.append(index)
        elif isinstance(instruction, Wait):
            found.waits.append(index)
            found.awaited[index] = (latest[instruction.key],)
    return found


def find_blocked_spans(schedule: Schedule, known: Dependencies, rank: int) -> list[Blocked]:
    """Return the spans in which a rank is blocked, in order."""
    if schedule.plan.vendor is Vendor.GLOO:
        return [_make_blocked(schedule.lines[index], known.awaited[index], rank) for index in known.waits]
    found, end = [], -ENDLESS
    for index in known.kernels:
        line = schedule.lines[index]
        begin = int(line.begin[rank])
        if begin > end:
            found.append(Blocked(begin_ns=end, end_ns=begin, awaited=known.awaited[index]))
        end = int(line.end[rank])
    found.append(Blocked(begin_ns=end, end_ns=ENDLESS, awaited=()))
    return found


def _make_blocked(line: Line, awaited: tuple[int, ...], rank: int) -> Blocked:
    return Blocked(begin_ns=int(line.begin[rank]), end_ns=int(line.end[rank]), awaited=awaited)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A collective on one rank."""

    begin_ns: int
    arrival_ns: int
    end_ns: int


@dataclass(slots=True)
class StepSums:
    """Sums over one step."""

    begin_ns: int
    end_ns: int
    compute_ns: int = 0
    collective_ns: int = 0
    wait_ns: int = 0
    transfer_ns: int = 0
    memcpy_ns: int = 0
    ambiguous_ns: int = 0


@dataclass(slots=True)
class CollectiveSums:
    """Exposed parts of each collective, by its number."""

    wait_ns: list[int]
    transfer_ns: list[int]


@dataclass(slots=True)
class _Piece:
    """The state between two cuts."""

    computing: int = 0
    copying: int = 0
    blocked: Blocked | None = None
    running: list[int] = field(default_factory=list)


class Sweep:
    """Sweep over one rank's time once, from cut to cut."""

    def __init__(self, collectives: Sequence[Running], steps: Sequence[StepSums]) -> None:
        self._collectives = collectives
        self._steps = steps
        self.sums = CollectiveSums(wait_ns=[0] * len(collectives), transfer_ns=[0] * len(collectives))

    def over(
        self,
        compute: Sequence[tuple[int, int]],
        copies: Sequence[tuple[int, int]],
        blocked: Sequence[Blocked],
    ) -> None:
        """Add up all times of the rank's steps."""
        cuts = self._cuts(compute, copies, blocked)
        state, step = _Piece(), 0
        for (now, what, number), (then, _, _) in itertools.pairwise(cuts):
            self._switch(state, what, number, blocked)
            while step < len(self._steps) and self._steps[step].end_ns <= now:
                step += 1
            if then > now and step < len(self._steps) and self._steps[step].begin_ns <= now:
                self._add(self._steps[step], state, now, then - now)

    def _cuts(
        self,
        compute: Sequence[tuple[int, int]],
        copies: Sequence[tuple[int, int]],
        blocked: Sequence[Blocked],
    ) -> list[tuple[int, str, int]]:
        cuts = [(ENDLESS, "", 0)]
        for name, spans in (("compute", compute), ("copy", copies)):
            cuts += [(begin, f"+{name}", 0) for begin, _ in spans]
            cuts += [(end, f"-{name}", 0) for _, end in spans]
        for number, span in enumerate(blocked):
            cuts += [(span.begin_ns, "+blocked", number), (span.end_ns, "-blocked", number)]
        for number, one in enumerate(self._collectives):
            cuts += [
                (one.begin_ns, "+running", number),
                (one.end_ns, "-running", number),
                (min(one.arrival_ns, one.end_ns), "", 0),
            ]
        for sums in self._steps:
            cuts += [(sums.begin_ns, "", 0), (sums.end_ns, "", 0)]
        return sorted(cuts)

    def _switch(self, state: _Piece, what: str, number: int, blocked: Sequence[Blocked]) -> None:
        if what == "+compute":
            state.computing += 1
        elif what == "-compute":
            state.computing -= 1
        elif what in ("+copy", "-copy"):
            state.copying += 1 if what == "+copy" else -1
        elif what == "+blocked":
            state.blocked = blocked[number]
        elif what == "-blocked":
            state.blocked = None if state.blocked is blocked[number] else state.blocked
        elif what == "+running":
            state.running.append(number)
        elif what == "-running":
            state.running.remove(number)

    def _add(self, step: StepSums, state: _Piece, now: int, length: int) -> None:
        step.compute_ns += length if state.computing else 0
        step.collective_ns += length if state.running else 0
        if state.blocked is None:
            # a CPU rank's thread does the copy itself, and is not blocked meanwhile
            alone = state.copying and not state.computing and not state.running
            step.memcpy_ns += length if alone else 0
            return
        if not state.running:
            step.memcpy_ns += length if state.copying else 0
            return
        waits = [now < self._collectives[number].arrival_ns for number in state.running]
        chosen = self._chosen(state.running, state.blocked)
        if now < self._collectives[chosen].arrival_ns:
            step.wait_ns += length
            self.sums.wait_ns[chosen] += length
        else:
            step.transfer_ns += length
            self.sums.transfer_ns[chosen] += length
        step.ambiguous_ns += length if any(waits) and not all(waits) else 0

    def _chosen(self, running: Sequence[int], blocked: Blocked) -> int:
        """Return the collective that is waited for, else the one that started first."""
        awaited = [number for number in running if number in blocked.awaited]
        return min(awaited or running, key=lambda number: (self._collectives[number].begin_ns, number))
