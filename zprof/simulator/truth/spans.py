"""What one rank ran when, and what it was blocked for, read off the schedule.

Blocked is, on a device, every gap between two kernels of the compute stream, and the collectives that the
kernel behind the gap depends on are what it is blocked for.  On a CPU it is each wait of the main thread.
"""

from dataclasses import dataclass

from zprof.simulator.engine.schedule import Line, Schedule
from zprof.simulator.plan import Vendor
from zprof.simulator.program.instructions import Collective, Copy, Kernel, Wait

#: Before and behind everything.
ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A stretch without compute, and the collectives (by number) that it is blocked for."""

    begin_ns: int
    end_ns: int
    awaited: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The same on every rank: the lines of each sort, and the collectives that a line waits for."""

    kernels: list[int]
    collectives: list[int]
    copies: list[int]
    waits: list[int]
    awaited: dict[int, tuple[int, ...]]


def dependencies(schedule: Schedule) -> Dependencies:
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


def blocked_spans(schedule: Schedule, known: Dependencies, rank: int) -> list[Blocked]:
    """When a rank is blocked, in order."""
    if schedule.plan.vendor is Vendor.GLOO:
        return [_wait(schedule.lines[index], known.awaited[index], rank) for index in known.waits]
    found, end = [], -ENDLESS
    for index in known.kernels:
        line = schedule.lines[index]
        begin = int(line.begin[rank])
        if begin > end:
            found.append(Blocked(begin_ns=end, end_ns=begin, awaited=known.awaited[index]))
        end = int(line.end[rank])
    found.append(Blocked(begin_ns=end, end_ns=ENDLESS, awaited=()))
    return found


def _wait(line: Line, awaited: tuple[int, ...], rank: int) -> Blocked:
    return Blocked(begin_ns=int(line.begin[rank]), end_ns=int(line.end[rank]), awaited=awaited)
