"""ZP506 comm_slows_compute: kernels run slower while a collective runs beside them.

A collective takes processors of the device and memory bandwidth from compute; on CPU ranks its threads take
cores. Kernels that do the same work are compared, those alone with those beside a collective
(:mod:`zprof.analysis.time.kernels`). With o the time that judged kernels ran beside a collective and e how
much longer than alone they took, the slowdown is s = sum(o) / (sum(o) - sum(e)), and

    excess = longer than alone, where that is known, + (1 - 1/s) of the rest of the time beside collectives

Reported from s > 1.15 and excess > 3 % of the step on, 1 % if the step can be replayed (docs/thresholds.md;
GEMMs of A100s were seen at 1.76, NVIDIA/nccl issue 1428). Fewer channels for collectives save at most all of
it, but slow the collectives down: the saving starts at half of it. The upper bound has 10 % on top, for
kernels that are only assumed to be slowed down like the others.

Kernels of one name can do other work beside a collective than alone, in blocks of another size. So on a
device the median kernel (``typical_factor``) must exceed 1.10, too.

Ranks on a CPU share its cores: a few kernels lose their core for a slice of the scheduler, and the mean is
1.3 to 9 times that alone in healthy gloo runs on two cores, where the median kernel took 0.95 to 1.13 times
as long (measured on seven). There the median, too, must exceed 1.15, and judged kernels must cover 8 % of the
time beside collectives (2 to 5 % if the rest slept). Otherwise it is a note.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Evidence, Finding
from zprof.model.formatting import format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.rules.rule import (
    can_replay,
    has_no_collectives,
    make_finding,
    mean_per_step,
    rate_severity,
    untested_gap,
    wall_ns,
)

#: Minimum kernels, and share of the time beside collectives, to measure a slowdown.
MIN_KERNELS = 8
MIN_JUDGED_RATIO = 0.02
#: From this factor on a name counts as slowed down.
SLOWDOWN_RATIO = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Sums over all ranks and steps. ``factor`` is 1 if too few kernels show it (not ``known``).

    ``agreeing_ratio``: the share of the judged time in names that are slowed down themselves.
    """

    factor: float
    known: bool
    kernels: int
    judged_ratio: float
    agreeing_ratio: float
    typical_factor: float
    beside_ns: float
    excess_ns: float


def measure_slowdown_by_name(kernels: pd.DataFrame) -> Slowdown:
    """Return the slowdown of compute and of copies around collectives, by kernel name."""
    rows = kernels[kernels["role"] != "memcpy"]
    names = rows.groupby("name")[["judged_count", "judged_beside_ns", "excess_ns", "beside_ns"]].sum()
    judged, excess, beside = (
        float(names[column].sum()) for column in ("judged_beside_ns", "excess_ns", "beside_ns")
    )
    count = int(names["judged_count"].sum())
    known = count >= MIN_KERNELS and judged >= MIN_JUDGED_RATIO * beside
    factor = _slowdown_factor(judged, excess) if known else 1.0
    clear = names["judged_beside_ns"] >= SLOWDOWN_RATIO * (names["judged_beside_ns"] - names["excess_ns"])
    return Slowdown(
        factor=factor,
        known=known,
        kernels=count,
        judged_ratio=judged / beside if beside else 0.0,
        agreeing_ratio=float(names.loc[clear, "judged_beside_ns"].sum()) / judged if judged else 0.0,
        typical_factor=_median_slowdown(rows),
        beside_ns=beside,
        excess_ns=max(0.0, excess + (beside - judged) * (1 - 1 / factor)),
    )


def _slowdown_factor(judged_ns: float, excess_ns: float) -> float:
    alone = judged_ns - max(0.0, excess_ns)
    return judged_ns / alone if alone > 0 else 1.0


def _median_slowdown(rows: pd.DataFrame) -> float:
    """Return the median slowdown, weighted by time beside collectives; 1 if no name has both medians."""
    ratio = rows["overlapped_median_ns"] / rows["alone_median_ns"]
    known = rows.assign(ratio=ratio)[ratio > 0].sort_values("ratio")
    if known.empty:
        return 1.0
    until = known["judged_beside_ns"].cumsum()
    return float(known["ratio"].to_numpy()[int((until < until.iloc[-1] / 2).sum())])


def alone_ns(kernels: pd.DataFrame, factor: float) -> "pd.Series[float]":
    """Return the time of each row's kernels with no collective beside them."""
    assumed = (kernels["beside_ns"] - kernels["judged_beside_ns"]) * (1 - 1 / factor)
    return kernels["total_ns"] - kernels["excess_ns"] - assumed


#: Minimum excess as a share of the step; lower with a replay, which knows the effect of hidden compute.
_WORTH_RATIO, _REPLAYED_RATIO = 0.03, 0.01
#: Minimum slowdown of the median kernel on a device; medians mix kernel sizes, which hides some of it.
_TYPICAL_RATIO = 1.10
#: Below this share of the step beside collectives, even kernels twice as slow are not worth a finding.
_BESIDE_RATIO = 0.06
_SAVING_RATIOS = (0.5, 1.1)
#: High confidence needs this many kernels and share of the time judged, from names that mostly agree.
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
    """Return a finding if kernels beside collectives are clearly slower than the same kernels alone."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.COMM_SLOWS_COMPUTE, "no collective was recorded", "record the time window")
    if analysis.kernels.empty or analysis.collectives.empty:
        return None
    seen = measure_slowdown_by_name(analysis.kernels)
    wall = wall_ns(analysis)
    if mean_per_step(analysis, seen.beside_ns) <= _BESIDE_RATIO * wall:
        return None
    if not seen.known:
        return untested_gap(
            Cause.COMM_SLOWS_COMPUTE,
            "too few kernels ran both beside a collective and, doing the same work, alone",
            "record more steps, or one of them without overlap",
        )
    excess = mean_per_step(analysis, seen.excess_ns)
    worth = _REPLAYED_RATIO if can_replay(analysis) else _WORTH_RATIO
    if seen.factor <= SLOWDOWN_RATIO or excess <= worth * wall:
        return None
    if analysis.run.device != "cpu" and seen.typical_factor <= _TYPICAL_RATIO:
        return None  # names differ in the work they do beside collectives
    return _finding(analysis, seen, excess)


def _finding(analysis: RunAnalysis, seen: Slowdown, excess: float) -> Finding:
    low, high = (ratio * excess for ratio in _SAVING_RATIOS)
    most = max(rank.compute_ns for rank in analysis.time.per_rank)
    beside = mean_per_step(analysis, seen.beside_ns)
    return make_finding(
        Cause.COMM_SLOWS_COMPUTE,
        sentence=f"kernels take {seen.factor:.2f} times as long beside collectives as alone: "
        f"{format_ns(excess)} of the {format_ns(beside)} a step that run beside them "
        f"({format_percent(excess / wall_ns(analysis))} of the step)",
        evidence=_evidence(seen, excess, beside),
        saving_ns=(min(low, most), min(high, most)),
        severity=rate_severity(excess, wall_ns(analysis)),
        confidence=_confidence(seen, on_cpu=analysis.run.device == "cpu"),
        fix=_CPU_FIX if analysis.run.device == "cpu" else GPU_FIX,
        disprove="record one step with the collectives launched after the compute (no prefetch, a "
        "synchronisation after each unit): the same kernels must get faster by this factor",
    )


def _evidence(seen: Slowdown, excess: float, beside: float) -> list[Evidence]:
    return [
        Evidence(
            key="slowdown_beside_collectives",
            what="slowdown of kernels beside a collective",
            value=seen.factor,
            unit="ratio",
        ),
        Evidence(
            key="compute_beside_collectives_per_step",
            what="compute beside collectives per step",
            value=beside,
            unit="ns",
        ),
        Evidence(key="lost_to_slowdown", what="of it lost to the slowdown", value=excess, unit="ns"),
        Evidence(
            key="kernels_compared",
            what="kernels beside a collective that also ran alone",
            value=seen.kernels,
            unit="count",
        ),
        Evidence(
            key="share_of_compute_compared",
            what="their share of the compute beside collectives",
            value=seen.judged_ratio,
            unit="ratio",
        ),
        Evidence(
            key="share_in_slowed_kernels",
            what="share of it in names slowed down themselves",
            value=seen.agreeing_ratio,
            unit="ratio",
        ),
    ]


def _confidence(seen: Slowdown, *, on_cpu: bool) -> Confidence:
    few = seen.judged_ratio < _CPU_JUDGED_RATIO or seen.typical_factor <= SLOWDOWN_RATIO
    if (on_cpu and few) or seen.agreeing_ratio < _AGREEING_RATIO:
        return Confidence.LOW
    sure = seen.kernels >= _SURE_KERNELS and seen.judged_ratio >= _SURE_JUDGED_RATIO
    return Confidence.HIGH if sure else Confidence.MEDIUM
