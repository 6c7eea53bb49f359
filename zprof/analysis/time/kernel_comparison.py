"""Compare the kernels of a run with those of a baseline that have the same names, at equal work.

With t the time of the kernels of a name per step and rank and w the work per step and rank,

    ratio = sum(t_b / w_b) / sum(t_a / w_a)         lost = sum(t_b) * (1 - 1 / ratio)

Both are computed twice: from the times as measured, and without the slowdown by concurrent collectives
(:mod:`zprof.analysis.time.kernel_slowdown`), which is an estimate and differs between the runs as their
overlap does. The smaller ratio decides.

w is in tokens, else in samples, if both runs report them; else it is assumed to be the same. Optimizers are
excluded, because sharding reduces a rank's share of them; so are copies around collectives.
"""

import re

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.kernel_slowdown import estimate_alone_ns, measure_slowdown_by_name

_OPTIMIZER = re.compile(r"(?i)adam|lamb\b|sgd|multi_tensor_apply|optimizer")


class Work(Struct, frozen=True, kw_only=True):
    """Work per step and rank in each run; ``unit`` is empty if unknown."""

    unit: str
    a: float
    b: float


class KernelComparison(Struct, frozen=True, kw_only=True):
    """``ratio`` of each rank at equal work, the smaller of measured and corrected; ``lost_ns`` by it.

    ``max_lost_ns`` is by the larger one; ``names`` are compared, ``matched_ratio`` is their share of compute.
    """

    ranks: Int64s
    ratio: Floats
    lost_ns: float
    max_lost_ns: float
    names: int
    matched_ratio: float
    count_ratio: float
    work: Work


def compare_kernels(analysis: RunAnalysis, baseline: RunAnalysis) -> KernelComparison | None:
    """Compare the kernels of each rank with the median rank of the baseline; None if no name is in both."""
    own_kernels, baseline_kernels = _select_model_kernels(analysis), _select_model_kernels(baseline)
    baseline_names = set(baseline_kernels.texts("name").list_distinct())
    common_names = [name for name in own_kernels.texts("name").list_distinct() if name in baseline_names]
    if not common_names:
        return None
    work = _read_work(analysis, baseline)
    by_basis = []
    for column in ("total_ns", "alone_ns"):
        own_times, baseline_times = (
            _sum_by_name(rows, common_names, column) for rows in (own_kernels, baseline_kernels)
        )
        baseline_ns = float(np.median(baseline_times, axis=1).sum()) * work.b / work.a
        own_ns = own_times.sum(axis=0)
        ratio = own_ns / max(1.0, baseline_ns)
        by_basis.append((ratio, float(np.median(own_ns * (1 - 1 / np.maximum(ratio, 1e-9))))))
    (measured, measured_lost_ns), (alone, alone_lost_ns) = by_basis
    return KernelComparison(
        ranks=np.unique(own_kernels.ints("rank")),
        ratio=np.minimum(measured, alone),
        lost_ns=max(0.0, min(measured_lost_ns, alone_lost_ns)),
        max_lost_ns=max(0.0, measured_lost_ns, alone_lost_ns),
        names=len(common_names),
        matched_ratio=min(
            _measure_compute_share(own_kernels, common_names),
            _measure_compute_share(baseline_kernels, common_names),
        ),
        count_ratio=_count_kernels(own_kernels, common_names, steps=len(analysis.steps))
        / max(1e-9, _count_kernels(baseline_kernels, common_names, steps=len(baseline.steps))),
        work=work,
    )


def _select_model_kernels(analysis: RunAnalysis) -> Columns:
    """Return the compute kernels without optimizers; ``total_ns`` and ``alone_ns`` are per step."""
    factor = measure_slowdown_by_name(analysis.kernels).factor
    rows = analysis.kernels.at(analysis.kernels.texts("role").equals("compute"))
    rows = rows.at(~rows.texts("name").match(_OPTIMIZER.search))
    step_counts = dict(zip(*np.unique(analysis.steps.ints("rank"), return_counts=True), strict=True))
    steps = np.array([step_counts.get(rank, np.nan) for rank in rows.ints("rank")], dtype=np.float64)
    return rows.with_columns(
        alone_ns=estimate_alone_ns(rows, factor) / steps,
        total_ns=rows.ints("total_ns") / steps,
    )


def _sum_by_name(kernels: Columns, names: list[str], column: str) -> Floats:
    """Return the time of each name (row) per step of each rank (column), in ns; 0 if a rank lacks it."""
    ranks, rank = np.unique(kernels.ints("rank"), return_inverse=True)
    place = {name: index for index, name in enumerate(names)}
    texts = kernels.texts("name")
    name = np.array([*(place.get(word, -1) for word in texts.words), -1])[texts.codes]
    chosen = name >= 0
    cells = name[chosen] * len(ranks) + rank.ravel()[chosen]
    sums = np.zeros(len(names) * len(ranks))
    np.add.at(sums, cells, kernels.floats(column)[chosen])
    return sums.reshape(len(names), len(ranks))


def _measure_compute_share(kernels: Columns, names: list[str]) -> float:
    """Return the share of these names in the compute of a run."""
    alone_ns = kernels.floats("alone_ns")
    return float(alone_ns[kernels.texts("name").equals(*names)].sum()) / max(1.0, float(alone_ns.sum()))


def _count_kernels(kernels: Columns, names: list[str], *, steps: int) -> float:
    """Return the number of kernels of these names per step and rank; ``steps`` of all ranks."""
    return float(kernels.ints("count")[kernels.texts("name").equals(*names)].sum()) / max(1, steps)


def _read_work(analysis: RunAnalysis, baseline: RunAnalysis) -> Work:
    """Return the work per step and rank: tokens, else samples, else unknown."""
    for unit in ("tokens", "samples"):
        a, b = (getattr(run.training, f"{unit}_per_step") for run in (baseline, analysis))
        if a and b:
            return Work(unit=unit, a=a / baseline.run.world_size, b=b / analysis.run.world_size)
    return Work(unit="", a=1.0, b=1.0)
