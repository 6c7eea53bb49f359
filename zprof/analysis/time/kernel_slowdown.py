"""Compare kernels beside collectives with the same kernels alone, by name.

The rows are those of :mod:`zprof.analysis.time.kernels`. With o the concurrent time of comparable kernels and
e its excess over their time alone, the slowdown is s = sum(o) / (sum(o) - sum(e)), and

    excess = measured excess of comparable kernels + (1 - 1/s) of the other concurrent time
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Floats

#: Minimum number of kernels, and share of the concurrent time, to measure a slowdown.
MIN_KERNELS = 8
MIN_JUDGED_RATIO = 0.02
#: Minimum factor for a kernel name to count as slowed down.
SLOWDOWN_RATIO = 1.15


class Slowdown(Struct, frozen=True, kw_only=True):
    """Sums over all ranks and steps. ``factor`` is 1 if there are too few comparable kernels (not ``known``).

    ``agreeing_ratio``: the share of the compared time in kernel names that are themselves slowed down.
    """

    factor: float
    known: bool
    kernels: int
    judged_ratio: float
    agreeing_ratio: float
    typical_factor: float
    concurrent_ns: float
    excess_ns: float


def measure_slowdown_by_name(kernels: Columns) -> Slowdown:
    """Measure the slowdown of compute and of copies around collectives, by kernel name."""
    rows = kernels.at(~kernels.texts("role").equals("memcpy"))
    names = rows.group_by("name")
    judged_ns, excess_ns = names.sum(rows.ints("judged_beside_ns")), names.sum(rows.ints("excess_ns"))
    judged, excess = float(judged_ns.sum()), float(excess_ns.sum())
    concurrent = float(rows.ints("beside_ns").sum())
    count = int(rows.ints("judged_count").sum())
    known = count >= MIN_KERNELS and judged >= MIN_JUDGED_RATIO * concurrent
    factor = _compute_slowdown_factor(judged, excess) if known else 1.0
    is_slowed = judged_ns >= SLOWDOWN_RATIO * (judged_ns - excess_ns)
    return Slowdown(
        factor=factor,
        known=known,
        kernels=count,
        judged_ratio=judged / concurrent if concurrent else 0.0,
        agreeing_ratio=float(judged_ns[is_slowed].sum()) / judged if judged else 0.0,
        typical_factor=_median_slowdown(rows),
        concurrent_ns=concurrent,
        excess_ns=max(0.0, excess + (concurrent - judged) * (1 - 1 / factor)),
    )


def _compute_slowdown_factor(judged_ns: float, excess_ns: float) -> float:
    alone = judged_ns - max(0.0, excess_ns)
    return judged_ns / alone if alone > 0 else 1.0


def _median_slowdown(rows: Columns) -> float:
    """Return the median slowdown, weighted by concurrent time; 1 if no name has both medians."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = rows.floats("overlapped_median_ns") / rows.floats("alone_median_ns")
    known = np.flatnonzero(ratio > 0)
    if not len(known):
        return 1.0
    known = known[np.argsort(ratio[known], kind="stable")]
    cumulative_ns = np.cumsum(rows.ints("judged_beside_ns")[known])
    return float(ratio[known][int((cumulative_ns < cumulative_ns[-1] / 2).sum())])


def estimate_alone_ns(kernels: Columns, factor: float) -> Floats:
    """Estimate the time of each row's kernels without concurrent collectives."""
    assumed = (kernels.ints("beside_ns") - kernels.ints("judged_beside_ns")) * (1 - 1 / factor)
    return kernels.ints("total_ns") - kernels.ints("excess_ns") - assumed
