"""The kernels of a rank summed by name, in its steps.

For each kernel, with o the part of its duration d in which a collective ran:

    alone         o <= 1 % of d        overlapped    o >= 50 % of d
    excess        d - median of those alone that do the same work (:mod:`...alike`), of at least two

On CPU ranks the outermost operators of the main thread take the place of kernels, and a collective counts
from the arrival of its last rank on: before that its thread sleeps, where a device's kernel spins.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals, covered, intervals, union
from zprof.analysis.time.activity.named import NamedWork
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.activity.view import Mask
from zprof.analysis.time.kernels.alike import alike, medians

ALONE_RATIO = 0.01
OVERLAPPED_RATIO = 0.50
_LEAST_ALONE = 2
#: Rows a rank: hostile traces have as many names as kernels.
_MOST_NAMES = 256
OTHERS = "(others)"

#: One row a rank, name and role.  ``role``: compute, copy (a kernel) or memcpy, both around collectives.
#: Sums over the steps: ``total_ns``; ``beside_ns``, of it beside a collective; of the ``judged_count``
#: kernels not alone for which it is known what they take alone, ``judged_beside_ns`` and ``excess_ns``;
#: ``uncovered_ns`` of copies the part with no other compute beside it.  Medians are NaN where there is none.
KERNEL_COLUMNS = (
    "rank",
    "name",
    "role",
    "count",
    "total_ns",
    "beside_ns",
    "alone_count",
    "alone_median_ns",
    "overlapped_count",
    "overlapped_median_ns",
    "judged_count",
    "judged_beside_ns",
    "excess_ns",
    "uncovered_ns",
)
_ROLES = ("compute", "copy", "memcpy")
_Floats = npt.NDArray[np.float64]
Columns = dict[str, "npt.NDArray[np.generic] | list[str]"]


def kernel_sums(timeline: RankTimeline, collectives: pd.DataFrame) -> Columns:
    """The columns of one rank; times are on the common clock."""
    work, named = timeline.activity, timeline.activity.named
    launch, start, end = named.times.T
    kept = (timeline.host_steps.step_at(launch) >= 0) & (end > start)
    duration = (end - start)[kept]
    beside = covered(_running(collectives, work.on_device, work.nameless), start[kept], end[kept])
    alone, overlapped = beside <= ALONE_RATIO * duration, beside >= OVERLAPPED_RATIO * duration
    excess = _excess(alike(named.code)[kept], duration, alone)
    judged = ~alone & ~np.isnan(excess)
    group, names, roles = _groups(named, kept)
    size = len(names)

    def total(values: "npt.NDArray[np.generic] | None", rows: Mask | slice = slice(None)) -> Int64s:
        weights = None if values is None else values[rows].astype(np.float64)
        return np.bincount(group[rows], weights, size).astype(np.int64)

    return {
        "rank": np.full(size, timeline.rank, dtype=np.int64),
        "name": names,
        "role": roles,
        "count": total(None),
        "total_ns": total(duration),
        "beside_ns": total(beside),
        "alone_count": total(None, alone),
        "alone_median_ns": medians(group[alone], duration[alone], size),
        "overlapped_count": total(None, overlapped),
        "overlapped_median_ns": medians(group[overlapped], duration[overlapped], size),
        "judged_count": total(None, judged),
        "judged_beside_ns": total(beside, judged),
        "excess_ns": total(excess, judged),
        "uncovered_ns": total(_uncovered(named, kept)),
    }


def kernel_frame(ranks: Sequence[Columns]) -> pd.DataFrame:
    """The rows of all ranks as one table."""
    columns = {
        name: [text for rank in ranks for text in rank[name]]
        if name in ("name", "role")
        else np.concatenate([np.asarray(rank[name]) for rank in ranks])
        for name in KERNEL_COLUMNS
    }
    return pd.DataFrame(columns)


def _running(collectives: pd.DataFrame, on_device: bool, nameless: Intervals) -> Intervals:
    """When a collective took something from compute."""
    end = collectives["end_ns"].to_numpy(np.int64)
    begin = collectives["start_ns" if on_device else "arrival_ns"].to_numpy(np.int64)
    return union(intervals(np.minimum(begin, end), end), nameless)


def _excess(kind: Int64s, duration: Int64s, alone: Mask) -> _Floats:
    """How much longer than alone each kernel took; NaN where that is not known."""
    kinds = int(kind.max()) + 1 if len(kind) else 0
    normal = medians(kind[alone], duration[alone], kinds)
    normal[np.bincount(kind[alone], minlength=kinds) < _LEAST_ALONE] = np.nan
    return duration - normal[kind]


def _uncovered(named: NamedWork, kept: Mask) -> Int64s:
    times = named.times[kept, 1:]
    other = union(named.times[~named.copies, 1:])
    return np.where(named.copies[kept], times[:, 1] - times[:, 0] - covered(other, *times.T), 0)


def _groups(named: NamedWork, kept: Mask) -> tuple[Int64s, list[str], list[str]]:
    """The row of each kernel, and name and role of each row; names beyond the largest are one."""
    role = named.copies.astype(np.int64) + named.memcpy
    pairs, row = np.unique(named.code[kept] * len(_ROLES) + role[kept], return_inverse=True)
    names = [named.names[pair // len(_ROLES)] for pair in pairs.tolist()]
    roles = [_ROLES[pair % len(_ROLES)] for pair in pairs.tolist()]
    if len(pairs) <= _MOST_NAMES:
        return row, names, roles
    spent = np.bincount(row, (named.times[kept, 2] - named.times[kept, 1]).astype(np.float64), len(pairs))
    keep = np.sort(np.argsort(-spent, kind="stable")[:_MOST_NAMES])
    place = np.full(len(pairs), len(keep), dtype=np.int64)
    place[keep] = np.arange(len(keep))
    return place[row], [*(names[i] for i in keep), OTHERS], [*(roles[i] for i in keep), _ROLES[0]]
