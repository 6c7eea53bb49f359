"""Define measurements of another program (HTA) on the same ranks, and their comparison with zprof's figures.

Times are integer nanoseconds, shares floats in [0, 1]; the overlap is in percent, rounded as by the other
program. The comparison has schema ``zprof.verify/1``.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from zprof.model.gaps import Gap


class HtaCriticalPath(Struct, frozen=True, kw_only=True):
    """Longest path through one rank's work; a collective on the path is one segment, including its wait.

    ``window``: the part of the trace that the path covers. ``shares``: shares of its length by resource (cpu,
    gpu_compute, gpu_communication, gpu_kernel_kernel_overhead, gpu_kernel_launch_overhead).
    """

    window: str
    length_ns: int
    shares: Mapping[str, float]


class StreamIdle(Struct, frozen=True, kw_only=True):
    """Gaps between the kernels of one stream, by the reason why the next kernel started late.

    Host: it was launched after the previous kernel had ended. Kernel: the gap is as short as a launch.
    Other: everything else, including waits for another stream.
    """

    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


class RankOpinion(Struct, frozen=True, kw_only=True):
    """Figures of one rank; None if the other program reported none, in which case a gap has its message."""

    rank: int
    critical_path: HtaCriticalPath | None
    idle: tuple[StreamIdle, ...] | None


class SecondOpinion(Struct, frozen=True, kw_only=True):
    """Figures of another program; ``source`` is its name and version."""

    source: str
    per_rank: tuple[RankOpinion, ...]


VERIFY_SCHEMA = "zprof.verify/1"


class FigureStatus(StrEnum):
    """Agreement of the two programs on a figure."""

    EQUAL = "equal"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class VerifiedFigure(Struct, frozen=True, kw_only=True):
    """One figure of one rank.

    ``difference`` is zprof's value minus the other program's value, None if one is None. If both programs
    find nothing to measure (no collective, so no overlap), both are None and the status is equal.
    """

    name: str
    unit: str
    zprof: float | None
    other: float | None
    difference: float | None
    tolerance: float
    status: FigureStatus


class RankVerification(Struct, frozen=True, kw_only=True):
    """Comparison of one rank; ``reasons`` explain the differences, as far as they are known."""

    rank: int
    device_rows: int
    figures: tuple[VerifiedFigure, ...]
    reasons: tuple[str, ...] = ()


class Verification(Struct, frozen=True, kw_only=True):
    """Comparison of all ranks; ``source`` is the other program, ``settings`` are its settings."""

    schema: str = VERIFY_SCHEMA
    zprof_version: str
    source: str
    settings: str
    window: str
    ranks: tuple[RankVerification, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def status(self) -> FigureStatus:
        """Return DIFFERS if any figure differs, UNKNOWN if none could be compared, else EQUAL."""
        seen = {figure.status for rank in self.ranks for figure in rank.figures}
        for status in (FigureStatus.DIFFERS, FigureStatus.EQUAL):
            if status in seen:
                return status
        return FigureStatus.UNKNOWN
