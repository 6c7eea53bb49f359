"""What another program (HTA) measures on the same ranks, and the comparison with the figures of zprof.

Times are integer nanoseconds, shares floats in [0, 1]; the overlap is in percent, as the other program
rounds it. The comparison has schema ``zprof.verify/1``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zprof.model.gaps import Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The longest path through one rank's own work; a collective in it is one piece, waiting included.

    ``window``: what of the trace it runs through.  ``shares``: of its length, by what bounds it (cpu,
    gpu_compute, gpu_communication, gpu_kernel_kernel_overhead, gpu_kernel_launch_overhead).
    """

    window: str
    length_ns: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdle:
    """Gaps between the kernels of one stream, by what the next one waited for.

    Host: it was launched after the one before had ended.  Kernel: the gap is as short as a launch takes.
    Other: everything else, also waiting for another stream.
    """

    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOpinion:
    """One rank; None where the other program could not say, and a gap has its words."""

    rank: int
    critical_path: CriticalPath | None
    idle: tuple[StreamIdle, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondOpinion:
    """``source`` is the other program with its version."""

    source: str
    per_rank: tuple[RankOpinion, ...]


VERIFY_SCHEMA = "zprof.verify/1"


class FigureStatus(StrEnum):
    """Whether both say the same."""

    EQUAL = "equal"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of one rank.

    ``difference`` is zprof's minus theirs, None where one of them has none.  Where both find that there is
    nothing to measure (no collective: no overlap), both are None and the status is equal.
    """

    name: str
    unit: str
    zprof: float | None
    other: float | None
    difference: float | None
    tolerance: float
    status: FigureStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerification:
    """Both programs on one rank; ``reasons`` say why they differ, as far as that is known."""

    rank: int
    device_rows: int
    figures: tuple[Figure, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was compared: ``source`` is the other program, ``settings`` those it was run with."""

    schema: str = VERIFY_SCHEMA
    zprof_version: str
    source: str
    settings: str
    window: str
    ranks: tuple[RankVerification, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def status(self) -> FigureStatus:
        """Differs where any figure does; unknown where none could be compared."""
        seen = {figure.status for rank in self.ranks for figure in rank.figures}
        for status in (FigureStatus.DIFFERS, FigureStatus.EQUAL):
            if status in seen:
                return status
        return FigureStatus.UNKNOWN
