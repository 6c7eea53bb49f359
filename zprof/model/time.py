"""Where the time of a run went: the time leaves of the report.

Times are integer nanoseconds, sizes integer bytes, ratios floats in [0, 1].  ``None`` means unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: Terms of the step ledger: they sum to the wall time.
LEDGER_TERMS = (
    "compute_ns",
    "exposed_wait_ns",
    "exposed_transfer_ns",
    "exposed_memcpy_ns",
    "idle_ns",
    "unexplained_ns",
)


class WindowPolicy(StrEnum):
    """What of a recording is measured: its steps, or all of it as one stretch."""

    STEP = "step"
    TRACE = "trace"


class LateReason(StrEnum):
    """Why a rank came last to a collective: what it did longer than the others before it."""

    COMPUTE = "compute"
    HOST = "host"
    PREVIOUS_COLLECTIVE = "previous_collective"
    MEMCPY = "memcpy"
    ALLOCATOR = "allocator"
    SYNC = "sync"
    DATA = "data"
    UNKNOWN = "unknown"


class PathKind(StrEnum):
    """What a rank did, or waited for, on the critical path."""

    COMPUTE = "compute"
    TRANSFER = "transfer"
    HOST = "host"
    COPIES = "copies"
    DATA = "data"
    ALLOCATOR = "allocator"
    SYNC = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was measured.

    ``source``: what marked the steps (recorder, ProfilerStep, whole trace).  ``pre_window_ns``: device
    work that was launched before the first step, or not within any, mean over ranks; it is excluded.
    """

    policy: WindowPolicy
    source: str
    pre_window_ns: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it is all of a recording as one stretch: that was asked for, or no step was marked."""
        return self.policy is WindowPolicy.TRACE or "whole trace" in self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """The step ledger of one rank: means over the steps of the window, so that the terms sum.

    wall = compute + exposed_wait + exposed_transfer + exposed_memcpy + idle + unexplained.
    ``overlapped_ns`` is the part of ``collective_ns`` that is hidden: collective = overlapped +
    exposed_wait + exposed_transfer.  ``memcpy_ns`` are all copies and fills of the device, hidden or not.
    ``first_wait_ns``: the part of exposed_wait that carries the start of the profiler: the first collective
    of each group, in a window of one step those that waited for a rank whose recording started later.
    ``unsplit_ns``: the part of the exposed time that lies in collectives
    of which not all ranks were seen; there waiting is the least and transfer the most that it can be.
    ``overlap_ratio`` is None where the rank ran no collective.  ``method`` says how exposure was
    found, ``noise_floor_ns`` below which size a term means nothing.  ``upper_bound`` is true where the
    exposed terms are the most that it can be, because not every wait was seen.
    """

    rank: int
    steps: int
    wall_ns: int
    compute_ns: int
    overlapped_ns: int
    exposed_wait_ns: int
    exposed_transfer_ns: int
    exposed_memcpy_ns: int
    idle_ns: int
    unexplained_ns: int
    wall_median_ns: int
    collective_ns: int
    overlap_ratio: float | None
    method: str
    noise_floor_ns: int
    upper_bound: bool = False
    memcpy_ns: int = 0
    first_wait_ns: int = 0
    unsplit_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The ledger of one step on one rank; the terms sum to ``wall_ns``."""

    rank: int
    step: int
    wall_ns: int
    compute_ns: int
    exposed_wait_ns: int
    exposed_transfer_ns: int
    exposed_memcpy_ns: int
    idle_ns: int
    unexplained_ns: int
    overlapped_ns: int
    collective_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One kind of collective in one group: sums of a step, as the mean over the loaded ranks of the group.

    ``launch_delay_ns`` is the median of one collective, from its launch to its start; ``dependency_ns``
    the part of it in which the collective had to wait for compute or for the collective before it.
    ``bytes`` are those of the full tensors (the gathered size).  Where ``bound`` is true ranks are missing:
    waits are lower and transfers upper bounds; ``method`` says so too.  ``exposed_ns`` is exposed_wait +
    exposed_transfer, cut where the last rank arrived.  ``tail_ns``: median from a rank's
    end to the last end.  Bandwidths come from the intrinsic time (last start to first end), in bytes a
    second, None where that is below the resolution of the clocks.
    """

    kind: str
    group: str
    dtype: str
    count: float
    bytes: int
    total_ns: int
    exposed_ns: int
    wait_ns: int
    transfer_ns: int
    launch_delay_ns: int | None
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    method: str
    group_size: int = 0
    bound: bool = False
    dependency_ns: int | None = None
    tail_ns: int | None = None
    intrinsic_ns: int | None = None
    exposed_wait_ns: int | None = None
    exposed_transfer_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedInCollectives:
    """Exposed time of all collectives of the window's steps: mean of a step over the loaded ranks.

    These are the exposed terms of the ledger but for what runs across the ends of the window.  Entries of
    several groups do not add up to them, for each is a mean over its own group's ranks.
    """

    wait_ns: int
    transfer_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTime:
    """Collectives of one wrapped module: sums of a step, as the mean over the loaded ranks of the group."""

    unit: str
    kind: str
    group: str
    count: float
    bytes: int
    exposed_wait_ns: int
    exposed_transfer_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSizes:
    """Messages of ``at_least_bytes`` to below ``below_bytes``: a bar of the histogram, counts of a step."""

    kind: str
    group: str
    at_least_bytes: int
    below_bytes: int
    count: float
    exposed_ns: int
    busbw_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """T = latency + bytes / algorithm bandwidth, fitted to the intrinsic times of one kind and group.

    ``latency_share_ratio``: count * latency over the sum of the intrinsic times.  ``residual_ratio``:
    the median of |seen - fitted| / seen.
    """

    kind: str
    group: str
    messages: int
    sizes: int
    latency_ns: int
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    latency_share_ratio: float
    residual_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Waiting that a late rank caused on the other ranks, in a step.

    ``exposed_wait_per_rank_ns`` is what zprof calls *wait caused*: exposed wait in collectives to which this
    rank came last, the mean of the ``waiting_ranks`` that waited for it.  That is about what each of them
    would win without it, where the sums, ``wait_ns`` and ``exposed_wait_ns``, grow with the number of ranks.
    ``wait_per_rank_ns`` is the same with the waiting that compute hides.  ``last_ratio``: of the judged
    collectives that this rank took part in, ties among them, the share to which it came last, beyond the
    doubt of the clocks.  ``own_wait_ns``: its own exposed wait of a step.  ``reasons``: the exposed wait,
    summed over the waiting ranks, by why the rank was late (values of :class:`LateReason`).  ``origins``: the
    same by the rank where the delay began, which another rank may have passed on.
    """

    rank: int
    wait_ns: int
    exposed_wait_ns: int
    last_ratio: float
    own_wait_ns: int
    reasons: Mapping[str, int]
    origins: Mapping[int, int]
    waiting_ranks: int = 0
    wait_per_rank_ns: int = 0
    exposed_wait_per_rank_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitShares:
    """Who is blamed for the exposed wait of a step, summed over all waiting ranks.

    blamed + tied + unjudged = all exposed wait.  Tied: the last two ranks arrived within the doubt of the
    clocks.  Unjudged: ranks are missing, the match was refused, or it is the first of its window.
    """

    per_rank: tuple[Blame, ...] = ()
    tied_ns: int = 0
    unjudged_ns: int = 0
    judged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLateness:
    """How late a rank came to the collectives of a step: its start minus the first start of the group.

    Mean and largest over so many ``collectives`` in which all wait for all.  Below the uncertainty of the
    clocks it means nothing.
    """

    rank: int
    step: int
    collectives: int
    mean_ns: int
    largest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PathShare:
    """What of the critical path a rank spends with one thing: mean of a step.

    The transfer is that of the rank that waited for it.
    """

    rank: int
    what: PathKind
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSegment:
    """A piece of the path of one step, ``begin_ns`` after the begin of that path; ``what`` most of it is."""

    step: int
    rank: int
    what: PathKind
    begin_ns: int
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The chain of work across ranks that ends with a step: mean of a step.

    ``shares`` sum to ``wall_ns`` but for rounding, largest first; ``longest``: single pieces.
    """

    steps: int
    wall_ns: int
    shares: tuple[PathShare, ...] = ()
    longest: tuple[PathSegment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How the clocks of the ranks were brought together: local time minus offset is common time.

    ``uncertainty_ns`` is that of the worst rank, ``rank_uncertainty_ns`` of each.  ``interval_ns``: what
    causality alone allows for each offset (lowest, highest).  ``drift_ppb``: how a rank's clock runs against
    the reference, for the ranks where that could be seen.  ``rungs``: matched collectives by how they were
    matched.  ``excluded``: ranks whose collectives fit no shift.  ``shifts``: by how many collectives a
    rank's order was moved to make it fit.
    """

    method: str
    offsets_ns: Mapping[int, int]
    uncertainty_ns: int
    matched: int
    unmatched: int
    rank_uncertainty_ns: Mapping[int, int] = field(default_factory=dict)
    interval_ns: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    drift_ppb: Mapping[int, float] = field(default_factory=dict)
    rungs: Mapping[str, int] = field(default_factory=dict)
    excluded: tuple[int, ...] = ()
    shifts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """The time side of the report.

    ``step_noise_ns``: the means of two recordings of this job differ by no more, 95 times of 100; None where
    the steps are too few to tell.
    """

    per_rank: tuple[RankTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    alignment: Alignment | None = None
    window: Window | None = None
    steps: tuple[StepTime, ...] = ()
    units: tuple[UnitTime, ...] = ()
    messages: tuple[MessageSizes, ...] = ()
    fits: tuple[LinkFit, ...] = ()
    exposed_in_collectives: ExposedInCollectives | None = None
    blame: WaitShares | None = None
    critical_path: CriticalPath | None = None
    lateness: tuple[StepLateness, ...] = ()
    step_noise_ns: int | None = None
