"""Start and end of matched collectives, rank by instance: what clocks and causality are read from.

Times are floats relative to a base of each rank, so that nanoseconds since 1970 lose no digits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from zprof.analysis.intervals import Int64s

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Collectives of one group.

    ``start`` and ``end`` are ranks x instances, NaN where a rank has no event.  ``sync``: nobody leaves
    before all have entered.  ``first``: the first of the group on some rank, which carries the start of
    the profiler.  ``source``: the row that all others wait for (the root of a broadcast, a sender);
    ``sink``: the row that waits for all others (the root of a reduce); -1 where there is none.
    """

    ranks: tuple[int, ...]
    start: Floats
    end: Floats
    sync: Bools
    first: Bools
    source: Int64s
    sink: Int64s

    @property
    def present(self) -> Bools:
        """Where a rank has an event."""
        return ~np.isnan(self.start)

    @property
    def span_ns(self) -> float:
        """From the first start to the last end, on the clock of the rank with most of it."""
        if not self.start.size or not self.present.any():
            return 0.0
        first = np.where(self.present, self.start, np.inf).min(axis=1)
        last = np.where(self.present, self.end, -np.inf).max(axis=1)
        return float((last - first).max())

    def of_ranks(self, keep: Bools) -> "Table":
        """The same with fewer ranks."""
        position = np.where(keep, np.cumsum(keep) - 1, NOBODY)
        moved = {
            name: np.where(getattr(self, name) >= 0, position[getattr(self, name)], NOBODY)
            for name in ("source", "sink")
        }
        return replace(
            self,
            ranks=tuple(rank for rank, kept in zip(self.ranks, keep, strict=True) if kept),
            start=self.start[keep],
            end=self.end[keep],
            **moved,
        )

    def of_instances(self, keep: Bools) -> "Table":
        """The same with fewer instances."""
        columns = {name: getattr(self, name)[keep] for name in ("sync", "first", "source", "sink")}
        return replace(self, start=self.start[:, keep], end=self.end[:, keep], **columns)

    def moved(self, offset: Floats, drift: Floats) -> "Table":
        """The same on the clock that these offsets and drifts lead to."""
        return replace(
            self,
            start=self.start * (1 - drift[:, None]) - offset[:, None],
            end=self.end * (1 - drift[:, None]) - offset[:, None],
        )


def ping_table(pings: Mapping[int, Mapping[int, tuple[int, int]]], base: Mapping[int, int]) -> Table:
    """Clock pings as a table: each is a collective of all ranks, and the profiler's start is not in it."""
    ranks = tuple(sorted(rank for rank, mine in pings.items() if mine))
    names = sorted({name for mine in pings.values() for name in mine})
    times = np.full((2, len(ranks), len(names)), np.nan)
    for row, rank in enumerate(ranks):
        for column, name in enumerate(names):
            if name in pings[rank]:
                times[:, row, column] = [time - base[rank] for time in pings[rank][name]]
    nobody = np.full(len(names), NOBODY, dtype=np.int64)
    return Table(
        ranks=ranks,
        start=times[0],
        end=times[1],
        sync=np.ones(len(names), dtype=bool),
        first=np.zeros(len(names), dtype=bool),
        source=nobody,
        sink=nobody,
    )
