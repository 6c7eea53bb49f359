"""Define the time leaves of the report.

Times are integer nanoseconds, sizes integer bytes, ratios floats in [0, 1]. ``None`` means unknown.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType, field

from zprof.model.communicators import Communicators
from zprof.model.mesh import Mesh
from zprof.model.quantities import Bound, Bounds, combine_bounds, negate_bound
from zprof.model.slowdown import Slowdown

#: Terms of the step ledger in the order of the report's leaves; they sum to the wall time.
LEDGER_TERMS = (
    "compute_ns",
    "exposed_wait_ns",
    "exposed_transfer_ns",
    "exposed_memcpy_ns",
    "idle_ns",
    "unexplained_ns",
)
#: Their names in display order.
LEDGER_NAMES: Mapping[str, str] = {
    "compute_ns": "compute",
    "exposed_transfer_ns": "exposed transfer",
    "exposed_wait_ns": "exposed wait",
    "exposed_memcpy_ns": "exposed copies",
    "idle_ns": "idle",
    "unexplained_ns": "unexplained",
}
#: What a figure totals.
PER_STEP, IN_WINDOW = "per step", "in the window"


class BasisWords(Struct, frozen=True, kw_only=True):
    """Words for what the figures of a sentence total."""

    per_step: str
    of_each_step: str
    of_step: str
    step_is: str


_STEP_WORDS = BasisWords(
    per_step=PER_STEP, of_each_step="of each step", of_step="of the step", step_is="a step is"
)
_WINDOW_WORDS = BasisWords(
    per_step=IN_WINDOW, of_each_step="of the window", of_step="of the window", step_is="the window is"
)


class WindowPolicy(StrEnum):
    """How a recording is measured: step by step, or as one interval."""

    STEP = "step"
    TRACE = "trace"


class LateReason(StrEnum):
    """Reason why a rank arrived last at a collective: the activity that took longer than on other ranks."""

    COMPUTE = "compute"
    HOST = "host"
    PREVIOUS_COLLECTIVE = "previous_collective"
    MEMCPY = "memcpy"
    ALLOCATOR = "allocator"
    SYNC = "sync"
    DATA = "data"
    UNKNOWN = "unknown"


class PathKind(StrEnum):
    """Kind of work or wait on the critical path."""

    COMPUTE = "compute"
    TRANSFER = "transfer"
    HOST = "host"
    COPIES = "copies"
    DATA = "data"
    ALLOCATOR = "allocator"
    SYNC = "sync"


class Window(Struct, frozen=True, kw_only=True):
    """The part of a recording that was measured.

    ``source``: the origin of the steps (recorder, ProfilerStep, whole trace). ``pre_window_ns``: device work
    launched before the first step or outside of any step, as a mean over ranks; it is excluded. ``is_whole``:
    the entire recording is one interval, on request or because no step was marked.
    """

    policy: WindowPolicy
    source: str
    pre_window_ns: int = 0
    is_whole: bool = False


class RankTime(Struct, frozen=True, kw_only=True):
    """Step ledger of one rank: means over the steps of the window, so the terms add up.

    wall = compute + exposed_wait + exposed_transfer + exposed_memcpy + idle + unexplained. ``overlapped_ns``
    is the hidden part of ``collective_ns``: collective = overlapped + exposed_wait + exposed_transfer.
    ``memcpy_ns`` covers all copies and fills of the device, hidden or not. ``first_wait_ns`` is the part of
    exposed_wait that includes the start of the profiler: the first collective of each group or, in a window
    of one step, the collectives that waited for a rank whose recording started later. ``unsplit_ns`` is the
    exposed time in collectives that were not recorded on all ranks; there the wait is a lower bound and the
    transfer an upper bound. ``overlap_ratio`` is None if the rank ran no collective. ``method`` is the name
    of the method that determined exposure; a term below ``noise_floor_ns`` is not significant.
    ``upper_bound`` is true if the exposed terms are upper bounds because not every wait was recorded.
    ``bounds``: the fields that are bounds; outputs mark them.
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
    bounds: Bounds = field(default_factory=dict)


def mean_over_ranks(ranks: Sequence[RankTime], term: str) -> int:
    """Return the mean of a term over the ranks, rounded to nanoseconds; 0 without ranks."""
    return round(sum(int(getattr(rank, term)) for rank in ranks) / len(ranks)) if ranks else 0


def bound_over_ranks(ranks: Sequence[RankTime], term: str) -> Bound:
    """Return the bound of the mean of a term over the ranks."""
    return combine_bounds(rank.bounds.get(term, Bound.EXACT) for rank in ranks)


def has_unsplit_wait(ranks: Sequence[RankTime]) -> bool:
    """Return True if the wait and transfer of some rank could not be separated, so they are bounds."""
    return any(rank.bounds.get("exposed_wait_ns") in (Bound.AT_LEAST, Bound.UNKNOWN) for rank in ranks)


def bound_exposed_time(ranks: Sequence[RankTime]) -> Bound:
    """Return the bound of all exposed time in collectives, wait and transfer together."""
    return negate_bound(bound_over_ranks(ranks, "overlapped_ns"))


class StepTime(Struct, frozen=True, kw_only=True):
    """Ledger of one step on one rank; the terms sum to ``wall_ns``."""

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


#: Bounds of collectives that could not be compared on all ranks.
SPLIT_BOUNDS: Bounds = {
    "wait_ns": Bound.AT_LEAST,
    "exposed_wait_ns": Bound.AT_LEAST,
    "transfer_ns": Bound.AT_MOST,
    "exposed_transfer_ns": Bound.AT_MOST,
}


class CollectiveTime(Struct, frozen=True, kw_only=True):
    """One kind of collective in one group: sums per step, as a mean over the loaded ranks of the group.

    ``launch_delay_ns`` is the median time from launch to start of a collective, ``dependency_ns`` the part of
    the launch delay in which the collective waited for compute or for the previous collective. ``bytes``
    counts full tensors (the gathered size). If ``bound`` is true, ranks are missing: waits are lower bounds
    and transfers upper bounds, as noted in ``method``. ``exposed_ns`` is exposed_wait + exposed_transfer,
    split at the arrival of the last rank. ``tail_ns``: median time from a rank's end to the last end.
    Bandwidths are computed from the intrinsic time (last start to first end), in bytes per second; they are
    None if that time is below the resolution of the clocks. ``hosts``: number of hosts of the group's ranks,
    None if a rank or its host is unknown.
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
    hosts: int | None = None

    @property
    def bounds(self) -> Bounds:
        """Its waits and transfers, if they are bounds."""
        return SPLIT_BOUNDS if self.bound else {}


class ExposedInCollectives(Struct, frozen=True, kw_only=True):
    """Exposed time of all collectives in the window's steps: mean per step over the loaded ranks.

    These are the exposed terms of the ledger, except for collectives that cross the ends of the window. The
    entries of several groups do not add up to these terms, because each is a mean over its group's ranks.
    If ``bound`` is true, the wait is a lower bound and the transfer an upper bound.
    """

    wait_ns: int
    transfer_ns: int
    bound: bool = False

    @property
    def bounds(self) -> Bounds:
        """Its fields, if they are bounds."""
        return SPLIT_BOUNDS if self.bound else {}


class PartialGroup(Struct, frozen=True, kw_only=True):
    """What the loaded ranks of a group bound: sums per step, as a mean over these ranks.

    ``exposed_ns`` is the exposed part of ``total_ns``, the time in all collectives of the group; both include
    waiting. ``least_bus_bytes_per_s`` is the bus bandwidth if none of this time is waiting, so the link is at
    least that fast; None if a size is unknown. ``usual_bus_bytes_per_s`` is that of machines with this device
    within a node or between nodes (``is_within_node``); None if the device or the ranks are unknown.
    ``missing`` counts the ranks of the group that are not loaded; None if its ranks are unknown.
    ``next_ranks``: the first of them, whose traces to add.
    """

    group: str
    group_size: int
    loaded: int
    missing: int | None
    next_ranks: tuple[int, ...]
    exposed_ns: int
    total_ns: int
    bytes: int
    least_bus_bytes_per_s: float | None
    usual_bus_bytes_per_s: float | None
    is_within_node: bool | None

    @property
    def slowdown_factor(self) -> float | None:
        """How many times slower than usual the link is if no rank is late; None if unknown."""
        if not self.least_bus_bytes_per_s or not self.usual_bus_bytes_per_s:
            return None
        return self.usual_bus_bytes_per_s / self.least_bus_bytes_per_s


class UnitTime(Struct, frozen=True, kw_only=True):
    """Collectives of one wrapped module: sums per step, as a mean over the loaded ranks of the group.

    If ``bound`` is true, ranks are missing, as in ``CollectiveTime``.
    """

    unit: str
    kind: str
    group: str
    count: float
    bytes: int
    exposed_wait_ns: int
    exposed_transfer_ns: int
    bound: bool = False

    @property
    def bounds(self) -> Bounds:
        """Its wait and transfer, if they are bounds."""
        return SPLIT_BOUNDS if self.bound else {}

    @property
    def exposed_ns(self) -> int:
        """Return the exposed time, defined like ``CollectiveTime.exposed_ns``."""
        return self.exposed_wait_ns + self.exposed_transfer_ns


class MessageSizes(Struct, frozen=True, kw_only=True):
    """One histogram bin: messages from ``at_least_bytes`` to below ``below_bytes``, counts per step."""

    kind: str
    group: str
    at_least_bytes: int
    below_bytes: int
    count: float
    exposed_ns: int
    busbw_bytes_per_s: float | None


class LinkFit(Struct, frozen=True, kw_only=True):
    """T = latency + bytes / algorithm bandwidth, fitted to the intrinsic times of one kind and group.

    ``latency_share_ratio``: count * latency over the sum of the intrinsic times. ``residual_ratio``: the
    median of ``|measured - fitted| / measured``.
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


class Blame(Struct, frozen=True, kw_only=True):
    """Wait that a late rank caused on the other ranks, per step.

    ``exposed_wait_per_rank_ns`` is *wait caused*: exposed wait in collectives at which this rank arrived
    last, as a mean over the ``waiting_ranks`` that waited for it. This is roughly the time that each waiting
    rank would save without the delay; the sums ``wait_ns`` and ``exposed_wait_ns`` grow with the number of
    ranks. ``wait_per_rank_ns`` is the same including wait hidden by compute. ``last_ratio``: share of this
    rank's judged collectives (ties included) at which it arrived last by more than the clock uncertainty.
    ``own_wait_ns``: its own exposed wait per step. ``reasons``: exposed wait summed over the waiting ranks,
    by reason (values of :class:`LateReason`). ``origins``: the same by the rank where the delay started;
    other ranks may have passed it on.
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


class WaitShares(Struct, frozen=True, kw_only=True):
    """Blame for the exposed wait of a step, summed over all waiting ranks.

    blamed + tied + unjudged = all exposed wait. Tied: the last two ranks arrived within the clock
    uncertainty. Unjudged: ranks are missing, the match was rejected, or it is the first collective of its
    window.
    """

    per_rank: tuple[Blame, ...] = ()
    tied_ns: int = 0
    unjudged_ns: int = 0
    judged: int = 0


class StepLateness(Struct, frozen=True, kw_only=True):
    """How late a rank arrived at the collectives of a step: its start minus the first start of the group.

    Mean and maximum over the ``collectives`` (number) in which every rank waits for all others.
    Values below the clock uncertainty are not significant.
    """

    rank: int
    step: int
    collectives: int
    mean_ns: int
    largest_ns: int


class PathShare(Struct, frozen=True, kw_only=True):
    """Share of the critical path that a rank spends on one kind of work: mean per step.

    A transfer is counted on the rank that waited for it.
    """

    rank: int
    what: PathKind
    ns: int


class PathSegment(Struct, frozen=True, kw_only=True):
    """One segment of the path of one step, ``begin_ns`` after its start; ``what`` is the dominant kind."""

    step: int
    rank: int
    what: PathKind
    begin_ns: int
    ns: int


class CriticalPath(Struct, frozen=True, kw_only=True):
    """Chain of work across ranks that ends with the end of a step: mean per step.

    ``shares`` sum to ``wall_ns`` up to rounding, largest first. ``longest``: the longest single segments.
    """

    steps: int
    wall_ns: int
    shares: tuple[PathShare, ...] = ()
    longest: tuple[PathSegment, ...] = ()


class Alignment(Struct, frozen=True, kw_only=True):
    """How the clocks of the ranks were aligned: local time minus offset is common time.

    ``uncertainty_ns`` is the uncertainty of the worst rank, ``rank_uncertainty_ns`` that of each rank.
    ``interval_ns``: the lowest and highest offset that causality alone allows. ``drift_ppb``: clock rate of a
    rank relative to the reference, if it could be measured. ``rungs``: matched collectives by matching
    method. ``excluded``: ranks whose collectives fit no shift. ``shifts``: by how many collectives the order
    of a rank was shifted to make it fit.
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


class Time(Struct, frozen=True, kw_only=True):
    """Time part of the report.

    ``step_noise_ns``: the means of two recordings of this job differ by no more than this in 95 % of cases;
    None if there are too few steps to estimate it. ``slowdown``: of a pipeline's operations, else None.
    ``mesh``: roles of the process groups and time by role; None for jobs with one kind of group. ``partial``:
    the group with missing ranks that has the most exposed time, None if no rank is missing.
    ``communicators``: only of a run of NCCL's Inspector.
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
    slowdown: Slowdown | None = None
    mesh: Mesh | None = None
    partial: PartialGroup | None = None
    communicators: Communicators | UnsetType = UNSET

    @property
    def schedule_ratio(self) -> float:
        """Share of a step in which a pipeline of equal stages fills and drains; 0 without a pipeline."""
        bubble = None if self.mesh is None else self.mesh.bubble
        return 0.0 if bubble is None else min(bubble.ideal_ratio, bubble.share_ratio)

    @property
    def bounds_by_rank(self) -> Mapping[int, Bounds]:
        """The terms of each rank that are bounds, both in its steps and in their means."""
        return {entry.rank: entry.bounds for entry in self.per_rank}

    @property
    def is_whole(self) -> bool:
        """Return True if its figures cover one interval instead of a step."""
        return self.window is not None and self.window.is_whole

    @property
    def words(self) -> BasisWords:
        """Words for what its figures total: steps, or the window if that is one interval."""
        return _WINDOW_WORDS if self.is_whole else _STEP_WORDS

    @property
    def basis(self) -> str:
        """What its figures total: ``per step``, or ``in the window`` if that is one interval."""
        return self.words.per_step

    @property
    def is_without_ledger(self) -> bool:
        """True for an operation timeline and for NCCL's Inspector, which have no steps of single ranks."""
        return not self.per_rank and (self.slowdown is not None or self.communicators is not UNSET)

    @property
    def total_name(self) -> str:
        """The name of the sum of the ledger's terms."""
        return "total" if self.is_whole else "step"


#: Below this share of the step, blamed wait is not worth a first look: the gain from which a cause is sure.
MIN_BLAMED_RATIO = 0.05


def find_culprit(time: Time, min_step_ratio: float = 0.0) -> int | None:
    """Return the rank where most of the wait that is blamed on late ranks began.

    Args:
        time: The measured times.
        min_step_ratio: Minimum blamed wait of all ranks as a share of their steps.

    Returns:
        None if no wait, or less than the minimum, is blamed on timed ranks.
    """
    began: dict[int, int] = {}
    for entry in () if time.blame is None else time.blame.per_rank:
        for rank, wait_ns in entry.origins.items():
            began[rank] = began.get(rank, 0) + wait_ns
    if sum(began.values()) < min_step_ratio * sum(entry.wall_ns for entry in time.per_rank):
        return None
    timed = {entry.rank for entry in time.per_rank if began.get(entry.rank, 0) > 0}
    return max(timed, key=lambda rank: (began[rank], -rank), default=None)


def pick_rank_and_step(time: Time, rank: int | None = None) -> tuple[int, int] | None:
    """Return the culprit, or the rank with the most time outside compute, and its median step.

    Args:
        time: The measured times.
        rank: Pick the step of this rank.

    Returns:
        None if no step of the rank, or of any rank, was timed.
    """
    rank = find_culprit(time, MIN_BLAMED_RATIO) if rank is None else rank
    ranks = [entry for entry in time.per_rank if rank is None or entry.rank == rank]
    worst = max(ranks, key=lambda entry: entry.wall_ns - entry.compute_ns, default=None)
    if worst is None:
        return None
    steps = sorted((step.wall_ns, step.step) for step in time.steps if step.rank == worst.rank)
    return (worst.rank, steps[len(steps) // 2][1]) if steps else None
