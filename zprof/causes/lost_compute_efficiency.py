"""ZP508: the same kernels take longer than in the baseline, even without collectives.

Signs: the time of the kernels whose names are in both runs, per step and rank and at equal work
(:mod:`zprof.analysis.time.kernel_comparison`). If the work of the runs is unknown, the number of kernels must
agree. Reported from 5 % (docs/thresholds.md) on more than half of the ranks: a single slower rank is a
straggler (ZP301). With the fix kernels take as long as in the baseline.
"""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, make_untested, mean_wall_ns
from zprof.analysis.time.kernel_comparison import KernelComparison, Work, compare_kernels
from zprof.causes.cause import Cause, Signal, rate_severity
from zprof.causes.fix import is_on_cpu
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.step import edits
from zprof.step.tasks import Graph

_MIN_SLOWDOWN_RATIO, _SURE_SLOWDOWN_RATIO = 1.05, 1.10
#: Minimum share of either run's compute in common kernels; maximum difference in count if the work is
#: unknown.
_MIN_MATCHED_RATIO = 0.50
_MAX_COUNT_DIFFERENCE_RATIO = 0.10
_MIN_WORK_DIFFERENCE_RATIO = 0.01
_MAX_NAMED_RANKS = 8
#: Keys of the facts that the edit reads: for the median of the ranks, and for the worst rank.
_TIME_RATIOS = ("kernel_time_ratio", "worst_kernel_time_ratio")

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

CAUSE = Cause(
    id="ZP508",
    name="lost_compute_efficiency",
    meaning="The same kernels take longer than in the baseline, and collectives are not the reason.",
    terms=("compute_ns",),
    sentence="the same kernels take {slower:percent} longer than in the baseline{work}, on {ranks}: "
    "{lost:ns} {per_step}, apart from what collectives slow down",
    evidence={
        _TIME_RATIOS[0]: ("time of the same kernels relative to the baseline", Unit.RATIO),
        _TIME_RATIOS[1]: ("on the worst rank", Unit.RATIO),
        "ranks_slower": ("ranks more than 5 % slower", Unit.COUNT),
        "kernels_compared": ("kernel names in both runs", Unit.COUNT),
        "share_of_compute_compared": ("their share of the compute", Unit.RATIO),
        "kernel_count_ratio": ("kernels {per_step} relative to the baseline", Unit.RATIO),
        "lost_per_step": ("lost {per_step}", Unit.NS),
    },
    disprove="run the model's compute by itself on one rank with the same batch, with and without "
    "sharding: if kernels take equally long there, the cause is clocks or other jobs",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if most ranks compute the same kernels slower than the baseline did."""
    if not len(analysis.kernels):
        return None
    if baseline is None or not len(baseline.kernels):
        return make_untested("no_baseline" if baseline is None else "baseline_without_kernels")
    compared = compare_kernels(analysis, baseline)
    if compared is None or compared.matched_ratio < _MIN_MATCHED_RATIO:
        return make_untested("few_common_kernels")
    if not compared.work.unit and abs(compared.count_ratio - 1) > _MAX_COUNT_DIFFERENCE_RATIO:
        return make_untested("kernel_counts_differ")
    ranks = compared.ranks[compared.ratio > _MIN_SLOWDOWN_RATIO].tolist()
    return _make_signal(analysis, compared, ranks) if 2 * len(ranks) > len(compared.ratio) else None


def _make_signal(analysis: RunAnalysis, compared: KernelComparison, ranks: list[int]) -> Signal:
    ratio, worst = float(np.median(compared.ratio)), int(compared.ratio.argmax())
    max_compute = max(rank.compute_ns for rank in analysis.time.per_rank)
    shown = ", ".join(str(rank) for rank in ranks[:_MAX_NAMED_RANKS])
    named = f"ranks {shown}{', ...' if len(ranks) > _MAX_NAMED_RANKS else ''}"
    is_sure = ratio > _SURE_SLOWDOWN_RATIO and compared.work.unit
    return Signal(
        confidence=Confidence.HIGH if is_sure else Confidence.MEDIUM,
        severity=rate_severity(compared.lost_ns, mean_wall_ns(analysis)),
        words={
            "slower": ratio - 1,
            "work": _describe_work(compared.work, analysis.time.basis),
            "ranks": "all ranks" if len(ranks) == len(compared.ratio) else named,
            "lost": compared.lost_ns,
        },
        facts=[
            make_fact(_TIME_RATIOS[0], ratio),
            make_fact(_TIME_RATIOS[1], float(compared.ratio[worst]), rank=int(compared.ranks[worst])),
            make_fact("ranks_slower", len(ranks)),
            make_fact("kernels_compared", compared.names),
            make_fact("share_of_compute_compared", compared.matched_ratio),
            make_fact("kernel_count_ratio", compared.count_ratio),
            make_fact("lost_per_step", compared.lost_ns),
        ],
        lost_ns=min(compared.max_lost_ns, max_compute),
        fix=_CPU_FIX if is_on_cpu(analysis) else _FIX,
    )


def _describe_work(work: Work, basis: str) -> str:
    """Return the unit of work of the times, with its amount if it differs between the runs."""
    if not work.unit:
        return ""
    if abs(work.b / work.a - 1) <= _MIN_WORK_DIFFERENCE_RATIO:
        return ""
    unit = work.unit.removesuffix("s")
    return f" per {unit} ({work.b:,.0f} {basis} and rank, {work.a:,.0f} in the baseline)"


@CAUSE.edit
def restore_baseline(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Restore the kernel times of the baseline, by the median of the ranks and by the worst rank."""
    slower = [entry.value for entry in finding.evidence if entry.key in _TIME_RATIOS]
    return [edits.scale_work(graph, 1 / ratio) for ratio in slower if ratio > 1]
