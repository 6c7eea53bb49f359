"""ZP508 lost_compute_efficiency: the same kernels take longer than in the baseline, even without collectives.

For each kernel name in both runs, with t the time of its kernels per step and rank and w the work per step
and rank,

    ratio = sum(t_b / w_b) / sum(t_a / w_a)         lost = sum(t_b) * (1 - 1 / ratio)

Both are computed twice: from the times as measured, and without the slowdown by concurrent collectives
(:mod:`zprof.analysis.time.kernel_slowdown`), which is an estimate and differs between the runs as their
overlap does. The smaller ratio decides.

w is in tokens, else in samples, if both runs report them. Otherwise it is assumed to be the same, and the
number of kernels must agree. Optimizers are excluded, because sharding reduces a rank's share of them; so are
copies around collectives. Reported from 5 % (docs/thresholds.md) on more than half of the ranks: a single
slower rank is a straggler (ZP301). With the fix kernels take as long as in the baseline.
"""

import re

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats
from zprof.analysis.intervals import Int64s
from zprof.analysis.per_step import mean_wall_ns
from zprof.analysis.time.kernel_slowdown import estimate_alone_ns, measure_slowdown_by_name
from zprof.causes.fix import is_on_cpu
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap

_MIN_SLOWDOWN_RATIO = 1.05
_HIGH_CONFIDENCE_RATIO = 1.10
#: Minimum share of either run's compute in common kernels; maximum difference in count if the work is
#: unknown.
_MIN_MATCHED_RATIO = 0.50
_MAX_COUNT_DIFFERENCE_RATIO = 0.10
_OPTIMIZER = re.compile(r"(?i)adam|lamb\b|sgd|multi_tensor_apply|optimizer")


class _Work(Struct, frozen=True, kw_only=True):
    """Work per step and rank in each run; ``unit`` is empty if unknown."""

    unit: str
    a: float
    b: float


class _KernelComparison(Struct, frozen=True, kw_only=True):
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
    work: _Work


def lost_compute_efficiency(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if most ranks compute the same kernels slower than the baseline did."""
    if not len(analysis.kernels):
        return None
    if baseline is None or not len(baseline.kernels):
        reason = "no baseline" if baseline is None else "the baseline has no kernels"
        return untested_gap(
            Cause.LOST_COMPUTE_EFFICIENCY,
            reason,
            "pass a run of the same model on the same devices: --baseline",
        )
    comparison = _compare(analysis, baseline)
    if comparison is None or comparison.matched_ratio < _MIN_MATCHED_RATIO:
        return untested_gap(
            Cause.LOST_COMPUTE_EFFICIENCY,
            "less than half of the compute is in kernels that both runs have",
            "compare with a run of the same model, compiled the same way",
        )
    if not comparison.work.unit and abs(comparison.count_ratio - 1) > _MAX_COUNT_DIFFERENCE_RATIO:
        return untested_gap(
            Cause.LOST_COMPUTE_EFFICIENCY,
            "the runs launch different numbers of kernels per step, and the work per step was not recorded",
            "pass it when recording: --tokens-per-step",
        )
    slow_ranks = comparison.ranks[comparison.ratio > _MIN_SLOWDOWN_RATIO].tolist()
    return (
        _build_finding(analysis, comparison, slow_ranks)
        if 2 * len(slow_ranks) > len(comparison.ratio)
        else None
    )


def _compare(analysis: RunAnalysis, baseline: RunAnalysis) -> _KernelComparison | None:
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
    return _KernelComparison(
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


def _read_work(analysis: RunAnalysis, baseline: RunAnalysis) -> _Work:
    """Return the work per step and rank: tokens, else samples, else unknown."""
    for unit in ("tokens", "samples"):
        a, b = (getattr(run.training, f"{unit}_per_step") for run in (baseline, analysis))
        if a and b:
            return _Work(unit=unit, a=a / baseline.run.world_size, b=b / analysis.run.world_size)
    return _Work(unit="", a=1.0, b=1.0)


def _build_finding(analysis: RunAnalysis, comparison: _KernelComparison, slow_ranks: list[int]) -> Finding:
    basis = analysis.time.basis
    wall, ratio = mean_wall_ns(analysis), float(np.median(comparison.ratio))
    max_compute = max(rank.compute_ns for rank in analysis.time.per_rank)
    return make_finding(
        analysis,
        Cause.LOST_COMPUTE_EFFICIENCY,
        sentence=f"the same kernels take {format_percent(ratio - 1)} longer than in the baseline"
        f"{_describe_unit(comparison, basis)}, on {_format_ranks(slow_ranks, comparison)}: "
        f"{format_ns(comparison.lost_ns)} {basis}, apart from what collectives slow down",
        evidence=_list_evidence(comparison, slow_ranks),
        saving_ns=(0.0, min(comparison.max_lost_ns, max_compute)),
        severity=rate_severity(comparison.lost_ns, wall),
        confidence=Confidence.HIGH
        if ratio > _HIGH_CONFIDENCE_RATIO and comparison.work.unit
        else Confidence.MEDIUM,
        fix=_CPU_FIX if is_on_cpu(analysis) else _FIX,
        disprove="run the model's compute by itself on one rank with the same batch, with and without "
        "sharding: if kernels take equally long there, the cause is clocks or other jobs",
    )


_FIX = (
    "use the memory freed by sharding for a larger micro-batch and accumulate less: small batches leave the "
    "last wave of thread blocks half empty\n"
    "if the batch is the same in both runs: compare clocks and temperature, dtypes, torch.compile and "
    "TF32 settings (torch.set_float32_matmul_precision)"
)
_CPU_FIX = (
    "compare what the ranks compute with in both runs: cores and threads of each rank (OMP_NUM_THREADS,\n"
    "torch.get_num_threads()), other processes on these cores, clocks, dtypes, torch.compile\n"
    "threads of all ranks together: no more than cores; torchrun sets OMP_NUM_THREADS=1 where it is unset"
)


def _describe_unit(comparison: _KernelComparison, basis: str) -> str:
    if not comparison.work.unit:
        return ""
    differs = abs(comparison.work.b / comparison.work.a - 1) > 0.01
    unit = comparison.work.unit.removesuffix("s")
    return (
        f" per {unit} ({comparison.work.b:,.0f} {basis} and rank, "
        f"{comparison.work.a:,.0f} in the baseline)" * differs
    )


def _format_ranks(slow_ranks: list[int], comparison: _KernelComparison) -> str:
    if len(slow_ranks) == len(comparison.ratio):
        return "all ranks"
    shown = ", ".join(str(rank) for rank in slow_ranks[:8])
    return f"ranks {shown}{', ...' if len(slow_ranks) > 8 else ''}"


def _list_evidence(comparison: _KernelComparison, slow_ranks: list[int]) -> list[Fact]:
    worst = comparison.ranks[comparison.ratio.argmax()]
    return [
        make_fact("kernel_time_ratio", float(np.median(comparison.ratio))),
        make_fact("worst_kernel_time_ratio", float(comparison.ratio.max()), rank=int(worst)),
        make_fact("ranks_slower", len(slow_ranks)),
        make_fact("kernels_compared/baseline", comparison.names),
        make_fact("share_of_compute_compared/baseline", comparison.matched_ratio),
        make_fact("kernel_count_ratio", comparison.count_ratio),
        make_fact("lost_per_step", comparison.lost_ns),
    ]
