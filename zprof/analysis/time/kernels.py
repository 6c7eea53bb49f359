"""Sum the kernels of a rank by name, in its steps: alone, and concurrent with collectives.

For each kernel, with o the part of its duration d in which a collective ran:

    alone         o <= 1 % of d        overlapped    o >= 50 % of d
    excess        d - median duration of at least two kernels that do the same work alone

Kernels do the same work if they and their three neighbours on each side have the same names. On CPU ranks,
the outermost operators of the main thread are used instead of kernels, and a collective counts from its last
arrival on.
"""

import numpy as np
import numpy.typing as npt

from zprof.analysis.columns import Column, Columns, Floats, Groups, Mask, Texts
from zprof.analysis.intervals import Int64s, covered, intervals, union
from zprof.analysis.time.activity import NamedWork
from zprof.analysis.time.timeline import RankTimeline

ALONE_RATIO = 0.01
OVERLAPPED_RATIO = 0.50
_MIN_ALONE = 2
#: Maximum rows per rank: a hostile trace may have as many names as kernels.
_MAX_NAMES = 256
OTHER_KERNELS = "(others)"

#: One row per rank, name and role. ``role``: compute, copy (a kernel) or memcpy; the last two are copies
#: around collectives. Sums over the steps: ``total_ns``; ``beside_ns``, its part concurrent with a
#: collective; ``judged_beside_ns`` and ``excess_ns`` over the ``judged_count`` kernels that are not alone and
#: have a known duration when alone; ``uncovered_ns``, the part of copies without concurrent compute. Medians
#: are NaN if there is no value.
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


def sum_kernels(timeline: RankTimeline, collectives: Columns) -> Columns:
    """Return the rows of one rank, with ``KERNEL_COLUMNS``; times are on the common clock."""
    work, named = timeline.activity, timeline.activity.named
    launch, start, end = named.times.T
    in_steps = (timeline.host_steps.step_at(launch) >= 0) & (end > start)
    duration = (end - start)[in_steps]
    # when a collective competes with compute
    until = collectives.ints("end_ns")
    since = np.minimum(collectives.ints("start_ns" if work.on_device else "arrival_ns"), until)
    running = union(intervals(since, until), work.nameless)
    concurrent = covered(running, start[in_steps], end[in_steps])
    is_alone, overlapped = concurrent <= ALONE_RATIO * duration, concurrent >= OVERLAPPED_RATIO * duration
    excess = duration - _measure_alone(group_same_work(named.code)[in_steps], duration, is_alone)
    is_judged = ~is_alone & ~np.isnan(excess)
    group, names, roles = _group_by_name(named, in_steps)
    size = len(names)

    def total(values: "npt.NDArray[np.generic] | None", rows: Mask | slice = slice(None)) -> Int64s:
        weights = None if values is None else values[rows].astype(np.float64)
        return np.bincount(group[rows], weights, size).astype(np.int64)

    times = named.times[in_steps, 1:]
    other = union(named.times[~named.copies, 1:])
    columns: dict[str, Column] = {
        "rank": np.full(size, timeline.rank, dtype=np.int64),
        "name": Texts.of(names),
        "role": Texts.of(roles),
        "count": total(None),
        "total_ns": total(duration),
        "beside_ns": total(concurrent),
        "alone_count": total(None, is_alone),
        "alone_median_ns": group_medians(group[is_alone], duration[is_alone], size),
        "overlapped_count": total(None, overlapped),
        "overlapped_median_ns": group_medians(group[overlapped], duration[overlapped], size),
        "judged_count": total(None, is_judged),
        "judged_beside_ns": total(concurrent, is_judged),
        "excess_ns": total(excess, is_judged),
        "uncovered_ns": total(
            np.where(named.copies[in_steps], times[:, 1] - times[:, 0] - covered(other, *times.T), 0)
        ),
    }
    return Columns({name: columns[name] for name in KERNEL_COLUMNS})


def _measure_alone(kind: Int64s, duration: Int64s, is_alone: Mask) -> Floats:
    """Return how long each kernel takes when it runs alone; NaN if unknown."""
    kinds = int(kind.max()) + 1 if len(kind) else 0
    normal = group_medians(kind[is_alone], duration[is_alone], kinds)
    normal[np.bincount(kind[is_alone], minlength=kinds) < _MIN_ALONE] = np.nan
    return normal[kind]


def _group_by_name(named: NamedWork, in_steps: Mask) -> tuple[Int64s, list[str], list[str]]:
    """Return the row of each kernel, and name and role of each row; small names share one row."""
    role = named.copies.astype(np.int64) + named.memcpy
    pairs, row = np.unique(named.code[in_steps] * len(_ROLES) + role[in_steps], return_inverse=True)
    names = [named.names[pair // len(_ROLES)] for pair in pairs.tolist()]
    roles = [_ROLES[pair % len(_ROLES)] for pair in pairs.tolist()]
    if len(pairs) <= _MAX_NAMES:
        return row, names, roles
    spent = np.bincount(
        row, (named.times[in_steps, 2] - named.times[in_steps, 1]).astype(np.float64), len(pairs)
    )
    keep = np.sort(np.argsort(-spent, kind="stable")[:_MAX_NAMES])
    group = np.full(len(pairs), len(keep), dtype=np.int64)
    group[keep] = np.arange(len(keep))
    return group[row], [*(names[i] for i in keep), OTHER_KERNELS], [*(roles[i] for i in keep), _ROLES[0]]


#: Neighbouring names on each side: enough to distinguish a GEMM of the forward from one of the backward.
_NEIGHBOURS = 3
_Hashes = npt.NDArray[np.uint64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


def group_same_work(code: Int64s) -> Int64s:
    """Return a group number per kernel, equal for kernels that do the same work; ``code``: names in order."""
    padding = np.full(_NEIGHBOURS, -1, dtype=np.int64)
    words = _mix_bits(np.concatenate((padding, code, padding)).astype(np.uint64))
    hashed = np.zeros(len(code), dtype=np.uint64)
    for offset in range(2 * _NEIGHBOURS + 1):
        hashed = _mix_bits(hashed ^ words[offset : offset + len(code)])
    return np.unique(hashed, return_inverse=True)[1].astype(np.int64)


def _mix_bits(values: _Hashes) -> _Hashes:
    """Spread values over all bits, as the finaliser of splitmix64 does, but without its first xor-shift."""
    values = (values + _MIX) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def group_medians(group: Int64s, values: Int64s, groups: int) -> Floats:
    """Return the median of the values of each group 0 ... groups - 1; NaN for an empty group."""
    medians = np.full(groups, np.nan)
    found = Groups(group)
    medians[group[found.first]] = found.median(values)
    return medians
