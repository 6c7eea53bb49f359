"""How much of a stretch a role holds: prepared once for a lane, then O(log n) for each column of a view."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from zprof.analysis.intervals import Intervals, union

Floats = npt.NDArray[np.float64]


class Role(StrEnum):
    """What a column of a lane shows; all but the last are terms of the ledger, by their names in it."""

    COMPUTE = "compute_ns"
    TRANSFER = "exposed_transfer_ns"
    WAIT = "exposed_wait_ns"
    HIDDEN = "overlapped_ns"
    MEMCPY = "exposed_memcpy_ns"
    UNEXPLAINED = "unexplained_ns"
    HOST = "host"


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """A set of intervals.  ``edges``: begins and ends in turn; ``before``: its length left of each edge.

    Between two edges the length grows by one or by nothing a nanosecond, so that linear interpolation is
    exact: times are since the begin of a step, whole numbers far below 2**53.
    """

    edges: Floats
    before: Floats

    @property
    def length_ns(self) -> int:
        """Of all of it."""
        return int(self.before[-1]) if len(self.before) else 0

    def between(self, points: Floats) -> Floats:
        """Its length between each two neighbours of some ascending points."""
        if not len(self.edges):
            return np.zeros(max(0, len(points) - 1))
        lengths: Floats = np.diff(np.interp(points, self.edges, self.before))
        return lengths


def cover_of(spans: Intervals) -> Cover:
    """Prepare a set of intervals, in any order, which may overlap."""
    merged = union(spans)
    lengths = np.zeros(2 * len(merged))
    lengths[1::2] = merged[:, 1] - merged[:, 0]
    return Cover(edges=merged.ravel().astype(np.float64), before=np.cumsum(lengths))
