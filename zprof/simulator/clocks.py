"""Clocks of ranks: local = common + offset + drift * (common - origin), in whole nanoseconds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zprof.simulator.plan import Plan

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


def clock_of(plan: Plan, rank: int) -> LocalClock:
    """The clock that a plan gives a rank."""
    return LocalClock(offset_ns=plan.offsets_ns.get(rank, 0), drift_ppb=plan.drift_ppb.get(rank, 0))
