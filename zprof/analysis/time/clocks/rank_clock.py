"""Convert the clock of each rank to the common clock."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field

from zprof.analysis.intervals import Int64s


class RankClock(Struct, frozen=True, kw_only=True):
    """Linear clock of one rank: common = local - offset - drift * (local - origin)."""

    offset_ns: int = 0
    drift_ppb: float = 0.0
    origin_ns: int = 0

    def common(self, times_ns: Int64s) -> Int64s:
        """Return times of the rank on the common clock; any shape."""
        if not self.drift_ppb:
            return times_ns - self.offset_ns
        drifted: Int64s = np.rint((times_ns - self.origin_ns) * (self.drift_ppb * 1e-9)).astype(np.int64)
        moved: Int64s = times_ns - self.offset_ns - drifted
        return moved

    def local(self, times_ns: Int64s) -> Int64s:
        """Return times of the common clock on that of the rank, to the nanosecond where they drift slowly."""
        moved: Int64s = times_ns + self.offset_ns
        if not self.drift_ppb:
            return moved
        drifted: Int64s = np.rint((moved - self.origin_ns) * (self.drift_ppb * 1e-9)).astype(np.int64)
        return moved + drifted


class Clocks(Struct, frozen=True, kw_only=True):
    """Clocks of the ranks that could be aligned; other ranks are not in ``of_rank``.

    ``uncertainty_ns`` is that of the worst rank, ``rank_uncertainty_ns`` that of each rank. ``interval_ns``:
    offsets that causality alone allows.
    """

    of_rank: Mapping[int, RankClock]
    uncertainty_ns: int
    method: str
    rank_uncertainty_ns: Mapping[int, int] = field(default_factory=dict)
    interval_ns: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def offsets_ns(self) -> dict[int, int]:
        """Offset by rank."""
        return {rank: clock.offset_ns for rank, clock in self.of_rank.items()}

    def of(self, rank: int) -> RankClock:
        """Return the clock of a rank; unchanged local time if it could not be aligned."""
        return self.of_rank.get(rank, _UNMOVED)


_UNMOVED = RankClock()
