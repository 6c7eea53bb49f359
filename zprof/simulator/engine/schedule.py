"""When everything happened: one row per instruction, one column per rank, and the clocks of ranks.

Times are nanoseconds since the start of the simulation on the common clock; a rank's own clock shows
local = common + offset + drift * (common - origin). An instant is an integer array of shape (1 + causes,
ranks): row 0 is the time, the other rows say how much of it went to computing, to the host, to a
collective ... along the chain of things that it waited for. The later of two instants keeps its own rows.
Time in a collective, waiting included, counts as that collective, so a rank that kept others waiting has
more of something else.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zprof.model.time import LateReason
from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import Groups, Instruction, Mesh

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One instruction as all ranks carried it out.

    ``host_begin``, ``host_end``: of the host's call.  ``launch``: when the runtime was called.  ``begin``,
    ``end``: on the device (or of the work itself, on a CPU).  ``arrival``: of the last rank of the group.
    ``sequence``: of a collective in its group.  ``did``: ranks that took part (None: all).
    ``lane``: the stream.
    """

    instruction: Instruction
    step: int
    host_begin: Times
    host_end: Times
    launch: Times
    begin: Times
    end: Times
    groups: Groups | None = None
    sequence: int = 0
    arrival: Times | None = None
    late: tuple[tuple[int, LateReason], ...] = ()
    did: frozenset[int] | None = None
    lane: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The whole simulation."""

    plan: Plan
    mesh: Mesh
    lines: list[Line]
    end_ns: Times


Instant = NDArray[np.int64]
REASONS = tuple(reason for reason in LateReason if reason is not LateReason.UNKNOWN)
_ROW: dict[LateReason, int] = {reason: 1 + index for index, reason in enumerate(REASONS)}


def time_zero(ranks: int) -> Instant:
    """Time zero."""
    return np.zeros((1 + len(REASONS), ranks), dtype=np.int64)


def later(first: Instant, second: Instant) -> Instant:
    """The later of both, rank by rank."""
    return np.where(first[0] >= second[0], first, second)


def after(instant: Instant, reason: LateReason, ns: NDArray[np.int64] | int) -> Instant:
    """``ns`` later, because of ``reason``."""
    moved = instant.copy()
    moved[0] += ns
    moved[_ROW[reason]] += ns
    return moved


def find_late_reason(instant: Instant, rank: int, others: NDArray[np.int64]) -> LateReason:
    """What ``rank`` did longer than the median of ``others``, above all."""
    if not len(others):
        return LateReason.UNKNOWN
    excess = instant[1:, rank] - np.median(instant[1:, others], axis=1)
    return REASONS[int(np.argmax(excess))]


#: The common clock when a simulation begins (nanoseconds since 1970).
ORIGIN_NS = 1_752_839_460_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalClock:
    """The clock of one rank's host."""

    offset_ns: int = 0
    drift_ppb: int = 0

    def stamps(self, since_origin_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """What the clock shows at moments given since the origin of the common clock."""
        drift = np.rint(since_origin_ns.astype(np.float64) * self.drift_ppb * 1e-9).astype(np.int64)
        return since_origin_ns + (ORIGIN_NS + self.offset_ns) + drift


def get_rank_clock(plan: Plan, rank: int) -> LocalClock:
    """The clock that a plan gives a rank."""
    return LocalClock(offset_ns=plan.offsets_ns.get(rank, 0), drift_ppb=plan.drift_ppb.get(rank, 0))
