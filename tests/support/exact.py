"""Hand-made analyses that stand exactly on a threshold: walls and sums that a float holds without a rest."""

from dataclasses import replace

import numpy as np

from tests.support.analyses import MS
from zprof.analysis.analysis import RunAnalysis

WALL_NS = 100 * MS


def with_walls(analysis: RunAnalysis, wall_ns: float = WALL_NS) -> RunAnalysis:
    """The same run, in which each step of each rank takes as long."""
    return replace(analysis, steps=analysis.steps.assign(wall_ns=wall_ns))


def with_clocks(analysis: RunAnalysis, *, uncertainty_ns: int = 0, noise_floor_ns: int = 0) -> RunAnalysis:
    """The same run, with other doubts."""
    assert analysis.time.alignment is not None
    alignment = replace(analysis.time.alignment, uncertainty_ns=uncertainty_ns)
    per_rank = tuple(replace(rank, noise_floor_ns=noise_floor_ns) for rank in analysis.time.per_rank)
    return replace(analysis, time=replace(analysis.time, alignment=alignment, per_rank=per_rank))


def wall_for(value: float, ratio: float) -> float:
    """A wall of which ``ratio`` is this value, to the last bit."""
    wall = value / ratio
    near = [wall, *(np.nextafter(wall, to) for to in (0.0, np.inf))]
    near += [np.nextafter(other, to) for other in near for to in (0.0, np.inf)]
    return float(next(other for other in near if ratio * other == value))
