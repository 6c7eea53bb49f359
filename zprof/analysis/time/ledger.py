"""Compute the step ledger: each step's wall time split into terms that sum to it, to the nanosecond.

    wall = compute + exposed_wait + exposed_transfer + exposed_memcpy + idle + unexplained

Idle is the remainder: the device has no work, or the main thread neither computes nor is blocked on a
collective. Unexplained is time without information in the trace: before its first and after its last event,
waits without a recorded collective, and communication kernels without a collective. Separately, collective =
overlapped + exposed_wait + exposed_transfer. This module also provides the intervals that make up the sums
(tracks) and the variation of step times.
"""

import itertools
from collections.abc import Sequence
from math import sqrt

import numpy as np
from msgspec import Struct
from msgspec.structs import fields

from zprof.analysis.columns import Columns, Groups
from zprof.analysis.intervals import Int64s, Intervals, covered, intersect, subtract, union
from zprof.analysis.time.blocking import MIXED, UPPER_BOUND, Blocking, RankExposure
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.steps import StepWindows
from zprof.analysis.time.timeline import RankTimeline
from zprof.model.quantities import Bound, Bounds
from zprof.model.time import LEDGER_TERMS, SPLIT_BOUNDS, RankTime, StepTime

STEP_COLUMNS = ("rank", "step", "wall_ns", *LEDGER_TERMS, "overlapped_ns", "collective_ns", "memcpy_ns")
_EXPOSED = ("exposed_wait_ns", "exposed_transfer_ns")
#: Exposed time that cannot be split is negligible below this share of all exposed time.
_MIN_UNSPLIT_RATIO = 0.01
#: Profiler overhead at each edge of an interval.
STAMP_NS = 1_000
_MIN_STEPS = 3


def make_step_columns(timeline: RankTimeline, blocking: Blocking, exposure: RankExposure) -> Columns:
    """Return the steps of a rank, with ``STEP_COLUMNS``."""
    steps, activity = timeline.steps, timeline.activity
    running = union(blocking.running)
    copies, unknown = _find_copies_and_unknown(timeline, blocking, exposure)

    def inside(spans: Intervals) -> Int64s:
        return covered(spans, steps.begin_ns, steps.end_ns)

    terms = {
        "compute_ns": inside(activity.compute),
        "exposed_wait_ns": inside(exposure.waiting),
        "exposed_transfer_ns": inside(exposure.moving),
        "exposed_memcpy_ns": inside(copies),
        "unexplained_ns": inside(subtract(unknown, copies)),
    }
    wall = steps.end_ns - steps.begin_ns
    rows = {
        "rank": np.full(len(steps), timeline.rank, dtype=np.int64),
        "step": steps.number,
        "wall_ns": wall,
        **terms,
        "idle_ns": wall - sum(terms.values()),
        "overlapped_ns": inside(subtract(running, union(exposure.waiting, exposure.moving))),
        "collective_ns": inside(running),
        "memcpy_ns": inside(activity.copies),
    }
    return Columns({name: rows[name] for name in STEP_COLUMNS})


def find_idle_spans(timeline: RankTimeline, blocking: Blocking, exposure: RankExposure) -> Intervals:
    """Return the idle intervals of a rank: in its steps, outside all other terms."""
    others = (timeline.activity.compute, exposure.waiting, exposure.moving)
    return subtract(
        timeline.steps.spans, union(*others, *_find_copies_and_unknown(timeline, blocking, exposure))
    )


def _find_copies_and_unknown(
    timeline: RankTimeline, blocking: Blocking, exposure: RankExposure
) -> tuple[Intervals, Intervals]:
    """Return the exposed copies, and the intervals without information in the trace; they may overlap."""
    activity = timeline.activity
    known = union(activity.compute, exposure.waiting, exposure.moving)
    copies = subtract(activity.copies, union(known, union(blocking.running)))
    outside = subtract(timeline.steps.spans, activity.coverage)
    return copies, subtract(union(blocking.unexplained, outside), known)


def average_rank_time(
    rows: Columns, method: str, noise_floor_ns: int, first_wait_ns: int = 0, unsplit_ns: int = 0
) -> RankTime:
    """Return means over the steps of one rank, in integer nanoseconds that still sum.

    Args:
        rows: The rank's steps.
        method: Method that determined exposure.
        noise_floor_ns: Terms below this are noise.
        first_wait_ns: Exposed wait of the first collective of each group, summed over all steps.
        unsplit_ns: Exposed time in collectives that are missing some ranks, summed over all steps.
    """
    count = len(rows)
    means = divide_evenly([int(rows.ints(term).sum()) for term in LEDGER_TERMS], count)
    terms = dict(zip(LEDGER_TERMS, means, strict=True))
    collective, overlapped = int(rows.ints("collective_ns").sum()), int(rows.ints("overlapped_ns").sum())
    exposed_ns = terms["exposed_wait_ns"] + terms["exposed_transfer_ns"]
    unsplit_ns = min(unsplit_ns // count, exposed_ns)
    is_upper = method in (UPPER_BOUND, MIXED)
    return RankTime(
        rank=int(rows.ints("rank")[0]),
        steps=count,
        wall_ns=int(rows.ints("wall_ns").sum()) // count,
        wall_median_ns=int(np.median(rows.ints("wall_ns"))),
        collective_ns=collective // count,
        overlapped_ns=overlapped // count,
        overlap_ratio=overlapped / collective if collective else None,
        method=method,
        noise_floor_ns=noise_floor_ns,
        upper_bound=is_upper,
        memcpy_ns=int(rows.ints("memcpy_ns").sum()) // count,
        first_wait_ns=min(first_wait_ns // count, terms["exposed_wait_ns"]),
        unsplit_ns=unsplit_ns,
        bounds=find_ledger_bounds(exposed_ns, unsplit_ns, is_upper=is_upper),
        **terms,
    )


def find_ledger_bounds(exposed_ns: int, unsplit_ns: int, *, is_upper: bool) -> Bounds:
    """Return the terms of a rank that are bounds.

    Args:
        exposed_ns: Exposed time in collectives.
        unsplit_ns: The part of it that could not be split into wait and transfer.
        is_upper: True if a wait may be missing in the recording, so that no more than this is exposed.
    """
    has_bounds = is_unsplit(exposed_ns, unsplit_ns)
    if not is_upper:
        return {name: SPLIT_BOUNDS[name] for name in _EXPOSED if has_bounds}
    wait = Bound.UNKNOWN if has_bounds else Bound.AT_MOST
    others = ("exposed_transfer_ns", "exposed_memcpy_ns")
    return {"exposed_wait_ns": wait, **dict.fromkeys(others, Bound.AT_MOST), "overlapped_ns": Bound.AT_LEAST}


def is_unsplit(exposed_ns: int, unsplit_ns: int) -> bool:
    """Return True if so much exposed time could not be split that wait and transfer are only bounds."""
    return unsplit_ns > _MIN_UNSPLIT_RATIO * exposed_ns


def list_step_times(rows: Columns) -> tuple[StepTime, ...]:
    """Convert the step rows to leaves of the report."""
    names = [field.name for field in fields(StepTime)]
    columns = [rows[name].tolist() for name in names]
    return tuple(StepTime(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True))


def divide_evenly(sums: Sequence[int], count: int) -> list[int]:
    """Return each sum divided by ``count``, rounded so that the results add up to the divided total."""
    running = [0]
    for value in sums:
        running.append(running[-1] + value)
    return [high // count - low // count for low, high in itertools.pairwise(running)]


def estimate_noise_floor(
    timeline: RankTimeline, blocking: Blocking, collectives: int, uncertainty_ns: int
) -> int:
    """Return the size below which a ledger term is noise, as the worst case per step.

    The edges of compute and blocked spans have an error of about 1 µs each. The arrival of the last rank has
    an error of twice the clock uncertainty, for each collective.
    """
    within = timeline.steps.spans
    edges = 2 * (len(intersect(timeline.activity.compute, within)) + len(intersect(blocking.blocked, within)))
    clocks = 2 * uncertainty_ns * collectives
    return max(STAMP_NS, (edges * STAMP_NS + clocks) // max(1, len(timeline.steps)))


def estimate_step_noise(steps: Columns) -> int | None:
    """Return the 95 % half width of the difference between two recordings' mean step times.

    The standard deviation is computed from ``steps``, with one row per rank and step. None for fewer than
    three steps.
    """
    walls = Groups(steps.ints("step")).mean(steps.ints("wall_ns"))
    if len(walls) < _MIN_STEPS:
        return None
    return round(1.96 * sqrt(2 / len(walls)) * float(walls.std(ddof=1)))


class RankTracks(Struct, frozen=True, kw_only=True):
    """Intervals of one rank on the common clock; ``clock`` converts its other times.

    ``waiting`` and ``moving``: blocked by a collective before and after the last rank's arrival. Clipped to
    ``steps`` they are the exposed wait and transfer of the ledger. ``host_steps``: the same steps by the
    host's marks. ``wait_before_ns``: wait in the recording's first collective, if launched before the first
    step. ``opened_ns``: when the rank left the recorder's last ping before the first step, with its profiler
    running; None without pings.
    """

    rank: int
    host: str
    clock: RankClock
    steps: StepWindows
    host_steps: StepWindows
    coverage: Intervals
    waiting: Intervals
    moving: Intervals
    wait_before_ns: int = 0
    opened_ns: int | None = None


def make_rank_tracks(
    timeline: RankTimeline, clock: RankClock, exposure: RankExposure, wait_before_ns: int
) -> RankTracks:
    """Return the tracks of a measured rank; ``timeline`` is on the common clock."""
    ping_ends = clock.common(np.array([end for _, end in timeline.pings.values()], dtype=np.int64))
    before = ping_ends[ping_ends <= timeline.host_steps.begin_ns.min(initial=np.iinfo(np.int64).max)]
    has_opening = len(before) and len(timeline.host_steps)
    return RankTracks(
        rank=timeline.rank,
        host=timeline.host,
        clock=clock,
        steps=timeline.steps,
        host_steps=timeline.host_steps,
        coverage=timeline.activity.coverage,
        waiting=exposure.waiting,
        moving=exposure.moving,
        wait_before_ns=wait_before_ns,
        opened_ns=int(before.max()) if has_opening else None,
    )
