"""The step ledger: each step's wall time split into terms that sum to it, to the nanosecond.

    wall = compute + exposed_wait + exposed_transfer + exposed_memcpy + idle + unexplained

Idle is the rest: the main thread neither computes nor is blocked on a running collective (Python, launch
and queue, waking up), the device has nothing to run.  Unexplained is where the trace is silent: before its
first and after its last event, waits for which no collective was seen to run, and communication kernels
that no collective stands for.

Beside it stands collective = overlapped + exposed_wait + exposed_transfer: a collective that runs while a
CPU rank works in Python rather than in an operator holds nothing up, and is overlapped.
"""

import itertools
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Intervals, covered, intersect, subtract, union
from zprof.analysis.time.activity.blocking import MIXED, UPPER_BOUND, Blocking
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.exposure import Exposure
from zprof.model.time import LEDGER_TERMS, RankTime, StepTime

STEP_COLUMNS = ("rank", "step", "wall_ns", *LEDGER_TERMS, "overlapped_ns", "collective_ns", "memcpy_ns")
#: What the profiler's stamp adds to each edge of an interval.
STAMP_NS = 1_000


def step_rows(timeline: RankTimeline, blocking: Blocking, exposure: Exposure) -> pd.DataFrame:
    """One row for each step of a rank; columns are ``STEP_COLUMNS``."""
    steps, activity = timeline.steps, timeline.activity
    ran = union(blocking.running)
    copies, silent = _copies_and_silence(timeline, blocking, exposure)

    def inside(spans: Intervals) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return covered(spans, steps.begin_ns, steps.end_ns)

    terms = {
        "compute_ns": inside(activity.compute),
        "exposed_wait_ns": inside(exposure.waiting),
        "exposed_transfer_ns": inside(exposure.moving),
        "exposed_memcpy_ns": inside(copies),
        "unexplained_ns": inside(subtract(silent, copies)),
    }
    wall = steps.end_ns - steps.begin_ns
    rows = {
        "rank": timeline.rank,
        "step": steps.number,
        "wall_ns": wall,
        **terms,
        "idle_ns": wall - sum(terms.values()),
        "overlapped_ns": inside(subtract(ran, union(exposure.waiting, exposure.moving))),
        "collective_ns": inside(ran),
        "memcpy_ns": inside(activity.copies),
    }
    return pd.DataFrame({name: rows[name] for name in STEP_COLUMNS})


def idle_spans(timeline: RankTimeline, blocking: Blocking, exposure: Exposure) -> Intervals:
    """When a rank was idle: in its steps, outside of all other terms."""
    others = (timeline.activity.compute, exposure.waiting, exposure.moving)
    return subtract(timeline.steps.spans, union(*others, *_copies_and_silence(timeline, blocking, exposure)))


def _copies_and_silence(
    timeline: RankTimeline, blocking: Blocking, exposure: Exposure
) -> tuple[Intervals, Intervals]:
    """Exposed copies, and when the trace is silent; they may overlap."""
    activity = timeline.activity
    known = union(activity.compute, exposure.waiting, exposure.moving)
    copies = subtract(activity.copies, union(known, union(blocking.running)))
    outside = subtract(timeline.steps.spans, activity.coverage)
    return copies, subtract(union(blocking.unexplained, outside), known)


def rank_time(
    rows: pd.DataFrame, method: str, noise_floor_ns: int, first_wait_ns: int = 0, unsplit_ns: int = 0
) -> RankTime:
    """Means over the steps of one rank, as whole nanoseconds that still sum.

    Args:
        rows: Its steps.
        method: How exposure was found.
        noise_floor_ns: Below which size a term means nothing.
        first_wait_ns: The exposed wait of the first collective of each group, of all steps together.
        unsplit_ns: The exposed time of collectives of which not all ranks were seen, of all steps together.
    """
    terms = dict(
        zip(
            LEDGER_TERMS,
            whole_means([int(rows[term].sum()) for term in LEDGER_TERMS], len(rows)),
            strict=True,
        )
    )
    collective, overlapped = int(rows["collective_ns"].sum()), int(rows["overlapped_ns"].sum())
    return RankTime(
        rank=int(rows["rank"].iloc[0]),
        steps=len(rows),
        wall_ns=int(rows["wall_ns"].sum()) // len(rows),
        wall_median_ns=int(rows["wall_ns"].median()),
        collective_ns=collective // len(rows),
        overlapped_ns=overlapped // len(rows),
        overlap_ratio=overlapped / collective if collective else None,
        method=method,
        noise_floor_ns=noise_floor_ns,
        upper_bound=method in (UPPER_BOUND, MIXED),
        memcpy_ns=int(rows["memcpy_ns"].sum()) // len(rows),
        first_wait_ns=min(first_wait_ns // len(rows), terms["exposed_wait_ns"]),
        unsplit_ns=min(unsplit_ns // len(rows), terms["exposed_wait_ns"] + terms["exposed_transfer_ns"]),
        **terms,
    )


def step_times(rows: pd.DataFrame) -> tuple[StepTime, ...]:
    """The same rows as values of the report."""
    names = [field.name for field in fields(StepTime)]
    columns = [rows[name].tolist() for name in names]
    return tuple(StepTime(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True))


def whole_means(sums: Sequence[int], count: int) -> list[int]:
    """Each sum over ``count``, rounded so that the results add up to the whole sum over ``count``."""
    running = [0]
    for value in sums:
        running.append(running[-1] + value)
    return [high // count - low // count for low, high in itertools.pairwise(running)]


def noise_floor(
    timeline: RankTimeline, blocking: Blocking, collectives: pd.DataFrame, uncertainty_ns: int
) -> int:
    """Below which size a term of the ledger means nothing, as the worst case of a step.

    The edges of computing and blocked spans are stamped to about 1 µs each; the instant at which the
    last rank arrives is known to twice the uncertainty of the clocks, for each collective.
    """
    within = timeline.steps.spans
    edges = 2 * (len(intersect(timeline.activity.compute, within)) + len(intersect(blocking.blocked, within)))
    clocks = 2 * uncertainty_ns * len(collectives)
    return max(STAMP_NS, (edges * STAMP_NS + clocks) // max(1, len(timeline.steps)))
