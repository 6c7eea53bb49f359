"""ZP506 comm_slows_compute: kernels run slower while a collective runs beside them.

A collective takes processors of the device and memory bandwidth (on CPU ranks its threads take cores) from
what computes.  Kernels that do the same work are held against each other, those alone against those beside
a collective (:mod:`zprof.analysis.time.kernels`); with the slowdown s that this gives

    excess = longer than alone, where that is known, + (1 - 1/s) of the rest of the time beside collectives

Reported from s > 1.15 and excess > 3 % of the step on, 1 % where the step can be replayed
(docs/thresholds.md; GEMMs of A100s were seen at 1.76, NVIDIA/nccl issue 1428).  Fewer channels for
collectives win at most all of it, and collectives get slower by that: from half of it on.  The upper bound
has 10 % on top, for kernels that are only assumed to be slowed down like the others.

Kernels of one name can do other work beside a collective than alone, in blocks of another size: on a device
the median kernel must be past 1.10, too.

Ranks on a CPU share its cores with each other and with whatever else runs: a few kernels lose their core for
a slice of the scheduler, and the mean is 1.3 to 9 times that alone in healthy gloo runs on two cores, where
the median kernel took 0.95 to 1.13 times as long (measured on seven).  A collective that takes cores slows
all kernels down: there the median, too, must be past 1.15, and those judged 8 % of the time beside
collectives (2 to 5 % where the rest slept; a few small ones tell nothing of it), else it is a note.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.units import format_ns, format_percent
from zprof.rules.device.slowdown import SLOWDOWN_RATIO, Slowdown, slowdown_of
from zprof.rules.rows import can_replay, has_no_collectives, mean_per_step, wall_ns
from zprof.rules.rule import finding, not_tested, severity_of

#: Of the step; a replay knows what is left of it where the compute is hidden itself.
_WORTH_RATIO, _REPLAYED_RATIO = 0.03, 0.01
#: Of the median kernel on a device; medians hold kernels of several sizes, which hide some of it.
_TYPICAL_RATIO = 1.10
#: Where less of the step computes beside collectives than this, even twice slower kernels are not worth it.
_BESIDE_RATIO = 0.06
_SAVING_RATIOS = (0.5, 1.1)
#: High confidence wants this many kernels and share of the time judged, from names that mostly agree.
_SURE_KERNELS = 20
_SURE_JUDGED_RATIO = 0.05
_AGREEING_RATIO = 0.5
_CPU_JUDGED_RATIO = 0.08

GPU_FIX = (
    "NCCL_MAX_CTAS=8 (since 2.17; before: NCCL_MAX_NCHANNELS=8), fewer until the gathers get exposed\n"
    "NCCL_CTA_POLICY=2: gathers by the copy engines where NCCL and the buffers can (zero-CTA)\n"
    "torch.cuda.Stream(priority=-1) for compute does not help: a collective's blocks stay where they are"
)
_CPU_FIX = (
    "leave the communication threads a core: torch.set_num_threads(cores - 1), OMP_NUM_THREADS likewise\n"
    "pin ranks to cores of their own: torchrun --numa-binding=node, taskset, numactl"
)


def comm_slows_compute(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Finding where kernels beside collectives are clearly slower than the same kernels alone."""
    if has_no_collectives(analysis):
        return not_tested(Cause.COMM_SLOWS_COMPUTE, "no collective was recorded", "record the time window")
    if analysis.kernels.empty or analysis.collectives.empty:
        return None
    seen = slowdown_of(analysis.kernels)
    wall = wall_ns(analysis)
    if mean_per_step(analysis, seen.beside_ns) <= _BESIDE_RATIO * wall:
        return None
    if not seen.known:
        return not_tested(
            Cause.COMM_SLOWS_COMPUTE,
            "too few kernels ran both beside a collective and, doing the same work, alone",
            "record more steps, or one of them without overlap",
        )
    excess = mean_per_step(analysis, seen.excess_ns)
    worth = _REPLAYED_RATIO if can_replay(analysis) else _WORTH_RATIO
    if seen.factor <= SLOWDOWN_RATIO or excess <= worth * wall:
        return None
    if analysis.run.device != "cpu" and seen.typical_factor <= _TYPICAL_RATIO:
        return None  # some names take longer beside collectives: they do other work there
    return _finding(analysis, seen, excess)


def _finding(analysis: RunAnalysis, seen: Slowdown, excess: float) -> Finding:
    low, high = (ratio * excess for ratio in _SAVING_RATIOS)
    most = max(rank.compute_ns for rank in analysis.time.per_rank)
    beside = mean_per_step(analysis, seen.beside_ns)
    return finding(
        Cause.COMM_SLOWS_COMPUTE,
        sentence=f"kernels take {seen.factor:.2f} times as long beside collectives as alone: "
        f"{format_ns(excess)} of the {format_ns(beside)} a step that run beside them "
        f"({format_percent(excess / wall_ns(analysis))} of the step)",
        evidence=_evidence(seen, excess, beside),
        saving_ns=(min(low, most), min(high, most)),
        severity=severity_of(excess, wall_ns(analysis)),
        confidence=_confidence(seen, on_cpu=analysis.run.device == "cpu"),
        fix=_CPU_FIX if analysis.run.device == "cpu" else GPU_FIX,
        disprove="record one step with the collectives launched after the compute (no prefetch, a "
        "synchronisation after each unit): the same kernels must get faster by this factor",
    )


def _evidence(seen: Slowdown, excess: float, beside: float) -> list[Evidence]:
    return [
        Evidence(what="slowdown of kernels beside a collective", value=seen.factor, unit="ratio"),
        Evidence(what="compute beside collectives, a step", value=beside, unit="ns"),
        Evidence(what="of it lost to the slowdown", value=excess, unit="ns"),
        Evidence(what="kernels beside a collective that also ran alone", value=seen.kernels, unit="count"),
        Evidence(what="their share of the compute beside collectives", value=seen.judged_ratio, unit="ratio"),
        Evidence(what="share of it in names slowed down themselves", value=seen.agreeing_ratio, unit="ratio"),
    ]


def _confidence(seen: Slowdown, *, on_cpu: bool) -> Confidence:
    few = seen.judged_ratio < _CPU_JUDGED_RATIO or seen.typical_factor <= SLOWDOWN_RATIO
    if (on_cpu and few) or seen.agreeing_ratio < _AGREEING_RATIO:
        return Confidence.LOW
    sure = seen.kernels >= _SURE_KERNELS and seen.judged_ratio >= _SURE_JUDGED_RATIO
    return Confidence.HIGH if sure else Confidence.MEDIUM
