"""What another program makes of the same ranks: leaves of the report that only ``--hta`` fills.

Times are integer nanoseconds, shares floats in [0, 1].
"""

from collections.abc import Mapping
from dataclasses import dataclass


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
