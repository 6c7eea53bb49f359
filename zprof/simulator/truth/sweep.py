"""Split a rank's time into pieces with one state each: the running work and the blocking collective.

On a device, a rank is blocked in every gap between two kernels of the compute stream, by the collectives
that the next kernel depends on; on a CPU, in each wait of the main thread.  Written in plain Python so as not
to use the interval arithmetic under test.
"""

import itertools
from collections.abc import Sequence

from msgspec import Struct, field

from zprof.simulator.engine.schedule import SimulatedRun
from zprof.simulator.plan import Vendor
from zprof.simulator.program.instructions import CollectiveLaunch, CopyLaunch, KernelLaunch, Wait

#: Time after everything; its negative is before everything.
ENDLESS = 1 << 62


class BlockedSpan(Struct, frozen=True, kw_only=True):
    """Interval without compute, and the numbers of the collectives that block it."""

    begin_ns: int
    end_ns: int
    awaited: tuple[int, ...]


class Dependencies(Struct, frozen=True, kw_only=True):
    """Schedule lines by kind, and the collectives that a line waits for; equal on every rank."""

    kernels: list[int]
    collectives: list[int]
    copies: list[int]
    waits: list[int]
    awaited: dict[int, tuple[int, ...]]


def resolve_dependencies(schedule: SimulatedRun) -> Dependencies:
    """Resolve keys in program order: a key means the latest instruction with that key."""
    dependencies = Dependencies(kernels=[], collectives=[], copies=[], waits=[], awaited={})
    latest: dict[str, int] = {}
    for index, line in enumerate(schedule.lines):
        instruction = line.instruction
        if isinstance(instruction, KernelLaunch):
            dependencies.kernels.append(index)
            dependencies.awaited[index] = tuple(latest[key] for key in instruction.after if key in latest)
        elif isinstance(instruction, CollectiveLaunch):
            latest[instruction.key] = len(dependencies.collectives)
            dependencies.collectives.append(index)
        elif isinstance(instruction, CopyLaunch):
            dependencies.copies.append(index)
        elif isinstance(instruction, Wait):
            dependencies.waits.append(index)
            dependencies.awaited[index] = (latest[instruction.key],)
    return dependencies


def find_blocked_spans(schedule: SimulatedRun, dependencies: Dependencies, rank: int) -> list[BlockedSpan]:
    """Return the spans in which a rank is blocked, in order."""
    if schedule.plan.vendor is Vendor.GLOO:
        return [
            BlockedSpan(
                begin_ns=int(schedule.lines[index].begin[rank]),
                end_ns=int(schedule.lines[index].end[rank]),
                awaited=dependencies.awaited[index],
            )
            for index in dependencies.waits
        ]
    spans, end = [], -ENDLESS
    for index in dependencies.kernels:
        line = schedule.lines[index]
        begin = int(line.begin[rank])
        if begin > end:
            spans.append(BlockedSpan(begin_ns=end, end_ns=begin, awaited=dependencies.awaited[index]))
        end = int(line.end[rank])
    spans.append(BlockedSpan(begin_ns=end, end_ns=ENDLESS, awaited=()))
    return spans


class Running(Struct, frozen=True, kw_only=True):
    """A collective on one rank."""

    begin_ns: int
    arrival_ns: int
    end_ns: int


class StepSums(Struct):
    """Sums over one step."""

    begin_ns: int
    end_ns: int
    compute_ns: int = 0
    collective_ns: int = 0
    wait_ns: int = 0
    transfer_ns: int = 0
    memcpy_ns: int = 0
    ambiguous_ns: int = 0


class CollectiveSums(Struct):
    """Exposed parts of each collective, by its number."""

    wait_ns: list[int]
    transfer_ns: list[int]


class _SweepState(Struct):
    """The state between two cuts."""

    computing: int = 0
    copying: int = 0
    blocked: BlockedSpan | None = None
    running: list[int] = field(default_factory=list)


class Sweep:
    """Sweep over one rank's time, from cut to cut."""

    def __init__(self, collectives: Sequence[Running], steps: Sequence[StepSums]) -> None:
        self._collectives = collectives
        self._steps = steps
        self.sums = CollectiveSums(wait_ns=[0] * len(collectives), transfer_ns=[0] * len(collectives))

    def run(
        self,
        compute: Sequence[tuple[int, int]],
        copies: Sequence[tuple[int, int]],
        blocked: Sequence[BlockedSpan],
    ) -> None:
        """Add up all times of the rank's steps."""
        cuts = self._list_cuts(compute, copies, blocked)
        state, step = _SweepState(), 0
        for (now_ns, change, number), (next_ns, _, _) in itertools.pairwise(cuts):
            self._switch(state, change, number, blocked)
            while step < len(self._steps) and self._steps[step].end_ns <= now_ns:
                step += 1
            if next_ns > now_ns and step < len(self._steps) and self._steps[step].begin_ns <= now_ns:
                self._add(self._steps[step], state, now_ns, next_ns - now_ns)

    def _list_cuts(
        self,
        compute: Sequence[tuple[int, int]],
        copies: Sequence[tuple[int, int]],
        blocked: Sequence[BlockedSpan],
    ) -> list[tuple[int, str, int]]:
        cuts = [(ENDLESS, "", 0)]
        for name, spans in (("compute", compute), ("copy", copies)):
            cuts += [(begin, f"+{name}", 0) for begin, _ in spans]
            cuts += [(end, f"-{name}", 0) for _, end in spans]
        for number, span in enumerate(blocked):
            cuts += [(span.begin_ns, "+blocked", number), (span.end_ns, "-blocked", number)]
        for number, collective in enumerate(self._collectives):
            cuts += [
                (collective.begin_ns, "+running", number),
                (collective.end_ns, "-running", number),
                (min(collective.arrival_ns, collective.end_ns), "", 0),
            ]
        for sums in self._steps:
            cuts += [(sums.begin_ns, "", 0), (sums.end_ns, "", 0)]
        return sorted(cuts)

    def _switch(self, state: _SweepState, change: str, number: int, blocked: Sequence[BlockedSpan]) -> None:
        if change == "+compute":
            state.computing += 1
        elif change == "-compute":
            state.computing -= 1
        elif change in ("+copy", "-copy"):
            state.copying += 1 if change == "+copy" else -1
        elif change == "+blocked":
            state.blocked = blocked[number]
        elif change == "-blocked":
            state.blocked = None if state.blocked is blocked[number] else state.blocked
        elif change == "+running":
            state.running.append(number)
        elif change == "-running":
            state.running.remove(number)

    def _add(self, step: StepSums, state: _SweepState, now_ns: int, length: int) -> None:
        step.compute_ns += length if state.computing else 0
        step.collective_ns += length if state.running else 0
        if state.blocked is None:
            # a CPU rank's thread does the copy itself, and is not blocked during it
            is_exposed = state.copying and not state.computing and not state.running
            step.memcpy_ns += length if is_exposed else 0
            return
        if not state.running:
            step.memcpy_ns += length if state.copying else 0
            return
        waits = [now_ns < self._collectives[number].arrival_ns for number in state.running]
        blocking = self._find_blocking(state.running, state.blocked)
        if now_ns < self._collectives[blocking].arrival_ns:
            step.wait_ns += length
            self.sums.wait_ns[blocking] += length
        else:
            step.transfer_ns += length
            self.sums.transfer_ns[blocking] += length
        step.ambiguous_ns += length if any(waits) and not all(waits) else 0

    def _find_blocking(self, running: Sequence[int], blocked: BlockedSpan) -> int:
        """Return the awaited collective, else the one that started first."""
        awaited = [number for number in running if number in blocked.awaited]
        return min(awaited or running, key=lambda number: (self._collectives[number].begin_ns, number))
