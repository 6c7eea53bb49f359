"""Define a schedule: the times of each instruction on each rank, and the clocks of ranks.

Times are nanoseconds since the start of the simulation on the common clock.  A rank's own clock shows
local = common + offset + drift * (common - origin).  An instant is an integer array of shape (1 + causes,
ranks).  Row 0 is the time; the other rows are its parts spent on compute, the host, collectives ... along
the chain of dependencies.  The later of two instants keeps its own rows.  Time in a collective, including the
wait, counts as collective time, so a rank that made others wait has more time of another cause.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from zprof.model.time import LateReason
from zprof.simulator.plan import SimulationPlan
from zprof.simulator.program.instructions import Groups, Instruction, Mesh

Times = NDArray[np.int64]
#: The common clock at the start of a simulation (nanoseconds since 1970).
ORIGIN_NS = 1_752_839_460_000_000_000


class ExecutedInstruction(Struct, frozen=True, kw_only=True):
    """Execution of one instruction on all ranks.

    ``host_begin``, ``host_end``: the host's call.  ``launch``: time of the runtime call.  ``begin``, ``end``:
    times on the device (on a CPU, of the work itself).  ``arrival``: arrival of the group's last rank.
    ``sequence``: sequence number of a collective within its group.  ``ranks``: participating ranks (None:
    all). ``lane``: the stream.
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
    ranks: frozenset[int] | None = None
    lane: str = ""


class SimulatedRun(Struct, frozen=True, kw_only=True):
    """Result of a simulation."""

    plan: SimulationPlan
    mesh: Mesh
    lines: list[ExecutedInstruction]
    end_ns: Times


Instant = NDArray[np.int64]
REASONS = tuple(reason for reason in LateReason if reason is not LateReason.UNKNOWN)
_REASON_ROWS: dict[LateReason, int] = {reason: 1 + index for index, reason in enumerate(REASONS)}


def time_zero(ranks: int) -> Instant:
    """Return time zero."""
    return np.zeros((1 + len(REASONS), ranks), dtype=np.int64)


def get_later(first: Instant, second: Instant) -> Instant:
    """Return the later instant of each rank."""
    return np.where(first[0] >= second[0], first, second)


def advance(instant: Instant, reason: LateReason, ns: NDArray[np.int64] | int) -> Instant:
    """Return the instant ``ns`` later, with the time assigned to ``reason``."""
    advanced = instant.copy()
    advanced[0] += ns
    advanced[_REASON_ROWS[reason]] += ns
    return advanced


def find_late_reason(instant: Instant, rank: int, others: NDArray[np.int64]) -> LateReason:
    """Return the reason on which ``rank`` spent the most extra time relative to the median of ``others``."""
    if not len(others):
        return LateReason.UNKNOWN
    excess = instant[1:, rank] - np.median(instant[1:, others], axis=1)
    return REASONS[int(np.argmax(excess))]


class LocalClock(Struct, frozen=True, kw_only=True):
    """The clock of one rank's host."""

    offset_ns: int = 0
    drift_ppb: int = 0

    def to_local(self, since_origin_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert times since the origin of the common clock to this clock."""
        drift = np.rint(since_origin_ns.astype(np.float64) * self.drift_ppb * 1e-9).astype(np.int64)
        return since_origin_ns + (ORIGIN_NS + self.offset_ns) + drift


def get_rank_clock(plan: SimulationPlan, rank: int) -> LocalClock:
    """Return the clock of a rank according to the plan."""
    return LocalClock(offset_ns=plan.offsets_ns.get(rank, 0), drift_ppb=plan.drift_ppb.get(rank, 0))
