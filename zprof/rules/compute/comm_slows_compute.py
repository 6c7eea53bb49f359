"""ZP506 comm_slows_compute: kernels run slower while a collective runs at the same time.

A collective takes SMs and memory bandwidth from compute; on CPU ranks its threads take cores. Kernels that do
the same work are compared, alone and concurrent with a collective (:mod:`zprof.analysis.time.kernels`). With
o the concurrent time of comparable kernels and e its excess over their time alone, the slowdown is s = sum(o)
/ (sum(o) - sum(e)), and

    excess = measured excess of comparable kernels + (1 - 1/s) of the other concurrent time

Reported if s > 1.15 and excess > 3 % of the step, 1 % if the step can be replayed (docs/thresholds.md;
A100 GEMMs reached 1.76, NVIDIA/nccl issue 1428). With the fix kernels run as fast as alone.

Kernels of one name can do different work when concurrent than alone, in blocks of a different size. So on a
device the median kernel (``typical_factor``) must also exceed 1.10.

Ranks on a CPU share its cores with the threads that communicate: a few kernels lose their core for a time
slice of the scheduler, and the mean is 1.3 to 9 times the time alone in healthy gloo runs on two cores, where
the median kernel took 0.95 to 1.13 times as long (seven runs). What gloo takes there is a note.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import can_play_kernels, has_no_collectives, mean_per_step, mean_wall_ns
from zprof.analysis.signal import Fact as NewFact
from zprof.analysis.time.kernel_slowdown import SLOWDOWN_RATIO, Slowdown, measure_slowdown_by_name
from zprof.causes.fix import is_on_cpu
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.rules.evidence import LOST_TO_SLOWDOWN, SLOWDOWN, Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap

#: Minimum factor for kernels to count as slowed down by collectives; 1.00 to 1.06 is usual.
SLOWED_RATIO = 1.10
#: Minimum excess as a share of the step; lower with a replay, which accounts for hidden compute.
_MIN_STEP_RATIO, _MIN_REPLAYED_RATIO = 0.03, 0.01
#: Minimum slowdown of the median kernel on a device; medians mix kernel sizes, which hides some of it.
_MIN_TYPICAL_RATIO = 1.10
#: Below this concurrent share of the step, even kernels twice as slow are not worth a finding.
_MIN_CONCURRENT_RATIO = 0.06
#: High confidence needs this many kernels and this share of the time compared, from names that mostly agree.
_MIN_KERNELS_FOR_HIGH_CONFIDENCE = 20
_HIGH_CONFIDENCE_JUDGED_RATIO = 0.05
_MIN_AGREEING_RATIO = 0.5

_GPU_FIX = (
    "NCCL_MAX_CTAS=8 (before NCCL 2.17: NCCL_MAX_NCHANNELS=8); lower it until the gathers become exposed\n"
    "NCCL_CTA_POLICY=2: the copy engines gather if NCCL and the buffers support it (zero-CTA)\n"
    "torch.cuda.Stream(priority=-1) for compute does not help: a collective's blocks stay where they are"
)
_CPU_FIX = (
    "leave a core for the communication threads: torch.set_num_threads(cores - 1), same for OMP_NUM_THREADS\n"
    "pin each rank to its own cores: torchrun --numa-binding=node, taskset, numactl"
)


def comm_slows_compute(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if kernels are clearly slower during collectives than alone."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.COMM_SLOWS_COMPUTE, "no collective was recorded", "record the time window")
    if not len(analysis.kernels) or not len(analysis.collectives):
        return None
    slowdown = measure_slowdown_by_name(analysis.kernels)
    wall = mean_wall_ns(analysis)
    if mean_per_step(analysis, slowdown.concurrent_ns) <= _MIN_CONCURRENT_RATIO * wall:
        return None
    if not slowdown.known:
        return untested_gap(
            Cause.COMM_SLOWS_COMPUTE,
            "too few kernels did the same work both alone and during a collective",
            "record more steps, or one step without overlap",
        )
    excess = mean_per_step(analysis, slowdown.excess_ns)
    min_ratio = _MIN_REPLAYED_RATIO if can_play_kernels(analysis) else _MIN_STEP_RATIO
    if slowdown.factor <= SLOWDOWN_RATIO or excess <= min_ratio * wall:
        return None
    if not is_on_cpu(analysis) and slowdown.typical_factor <= _MIN_TYPICAL_RATIO:
        return None  # kernels of one name do different work during collectives
    return _build_finding(analysis, slowdown, excess)


def _build_finding(analysis: RunAnalysis, slowdown: Slowdown, excess: float) -> Finding:
    words = analysis.time.words
    max_compute = max(rank.compute_ns for rank in analysis.time.per_rank)
    concurrent = mean_per_step(analysis, slowdown.concurrent_ns)
    return make_finding(
        analysis,
        Cause.COMM_SLOWS_COMPUTE,
        sentence=f"kernels take {slowdown.factor:.2f} times as long during collectives as alone: "
        f"{format_ns(excess)} of their {format_ns(concurrent)} {words.per_step} is lost "
        f"({format_percent(excess / mean_wall_ns(analysis))} {words.of_step})",
        evidence=[
            *make_slowdown_facts(
                slowdown.factor, slowdown.kernels, concurrent_ns=concurrent, excess_ns=excess
            ),
            make_fact("share_of_compute_compared", slowdown.judged_ratio),
            make_fact("share_in_slowed_kernels", slowdown.agreeing_ratio),
        ],
        saving_ns=(0.0, min(excess, max_compute)),
        severity=rate_severity(excess, mean_wall_ns(analysis)),
        confidence=_rate_confidence(slowdown, on_cpu=is_on_cpu(analysis)),
        fix=choose_slowdown_fix(analysis),
        disprove="record one step with the collectives launched after the compute (no prefetch, a "
        "synchronization after each unit): the same kernels must get faster by this factor",
    )


def choose_slowdown_fix(analysis: RunAnalysis) -> str:
    """Return what leaves compute more of the device, or more of the cores of CPU ranks."""
    return _CPU_FIX if is_on_cpu(analysis) else _GPU_FIX


def make_slowdown_facts(
    factor: float, kernels: int, *, concurrent_ns: float, excess_ns: float
) -> tuple[Fact, ...]:
    """Return what was measured of a slowdown: factor, compute during collectives, loss, kernels compared.

    Times are per rank and step.
    """
    return (
        make_fact(SLOWDOWN, factor),
        make_fact("compute_beside_collectives_per_step", concurrent_ns),
        make_fact(LOST_TO_SLOWDOWN, excess_ns),
        make_fact("kernels_compared", kernels),
    )


def state_hidden_slowdown(analysis: RunAnalysis, finding: Finding) -> list[Fact]:
    """Return the part of the measured loss that the final range excludes.

    The played step excludes kernels that end before the collectives that the step waits for.
    """
    lost_ns = max((entry.value for entry in finding.evidence if entry.key == LOST_TO_SLOWDOWN), default=0.0)
    if lost_ns < finding.saving_ns[1] + 1:  # savings are whole
        return []
    return [NewFact(key="hidden_slowdown", value=lost_ns - finding.saving_ns[1])]


def _rate_confidence(slowdown: Slowdown, *, on_cpu: bool) -> Confidence:
    if on_cpu or slowdown.agreeing_ratio < _MIN_AGREEING_RATIO:
        return Confidence.LOW
    sure = (
        slowdown.kernels >= _MIN_KERNELS_FOR_HIGH_CONFIDENCE
        and slowdown.judged_ratio >= _HIGH_CONFIDENCE_JUDGED_RATIO
    )
    return Confidence.HIGH if sure else Confidence.MEDIUM
