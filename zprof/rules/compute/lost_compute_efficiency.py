"""ZP508 lost_compute_efficiency: the same kernels take longer than in the baseline, without collectives.

For each kernel name that both runs have, with t the time of its kernels per step and rank, less what they
lose beside collectives (:mod:`zprof.rules.compute.comm_slows_compute`), and w the work per step and rank,

    ratio = sum(t_b / w_b) / sum(t_a / w_a)         lost = sum(t_b) * (1 - 1 / ratio)

w is in tokens, else in samples, if both runs state them. Otherwise it is assumed to be the same, and the
number of kernels must agree. Optimizers are left out, because sharding gives a rank less of them; so are
copies around collectives. Reported from 5 % on (docs/thresholds.md) on more than half of the ranks: a single
slower rank is a straggler (ZP301). Compute that gets shorter can expose what it hides: if it shrinks by a
share, so does what it hides in the worst case, and lost * (1 - overlapped / compute) is left.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Evidence, Finding
from zprof.model.formatting import format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.rules.compute.comm_slows_compute import alone_ns, measure_slowdown_by_name
from zprof.rules.rule import make_finding, rate_severity, untested_gap, wall_ns

_SLOWER_RATIO = 1.05
_HIGH_RATIO = 1.10
#: Minimum share of either run's compute in kernels of both, and maximum difference of their number if the
#: work is unknown.
_MATCHED_RATIO = 0.50
_SAME_COUNT_RATIO = 0.10
#: Margins for the median over ranks, optimizers and the noise of kernels.
_SAVING_RATIOS = (0.90, 1.10)
_OPTIMIZER = r"(?i)adam|lamb\b|sgd|multi_tensor_apply|optimizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Work per step and rank in each run; ``unit`` is empty if unknown."""

    unit: str
    a: float
    b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """``ratio`` of each rank at equal work, ``lost_ns`` per step, number of names, their share of compute."""

    ratio: "pd.Series[float]"
    lost_ns: float
    names: int
    matched_ratio: float
    count_ratio: float
    work: _Work


def lost_compute_efficiency(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if most ranks compute the same kernels slower than the baseline did."""
    if analysis.kernels.empty:
        return None
    if baseline is None or baseline.kernels.empty:
        reason = "no baseline" if baseline is None else "the baseline shows no kernels"
        return untested_gap(
            Cause.LOST_COMPUTE_EFFICIENCY,
            reason,
            "give a run of the same model on the same devices: --baseline",
        )
    seen = _compare(analysis, baseline)
    if seen is None or seen.matched_ratio < _MATCHED_RATIO:
        return untested_gap(
            Cause.LOST_COMPUTE_EFFICIENCY,
            "less than half of the compute is in kernels that both runs have",
            "compare with a run of the same model, compiled the same way",
        )
    if not seen.work.unit and abs(seen.count_ratio - 1) > _SAME_COUNT_RATIO:
        return untested_gap(
            Cause.LOST_COMPUTE_EFFICIENCY,
            "the runs launch different numbers of kernels per step, and do not say how much work that is",
            "say it when recording: --tokens-per-step",
        )
    slow = seen.ratio[seen.ratio > _SLOWER_RATIO]
    return _finding(analysis, seen, slow) if 2 * len(slow) > len(seen.ratio) else None


def _compare(analysis: RunAnalysis, baseline: RunAnalysis) -> _Comparison | None:
    mine, theirs = _kernel_times_per_step(analysis), _kernel_times_per_step(baseline)
    both = mine.columns.intersection(theirs.columns)
    if not len(both):
        return None
    work = _read_work(analysis, baseline)
    before = float(theirs[both].median(axis=0).sum()) * work.b / work.a
    after = mine[both].sum(axis=1)
    ratio = after / max(1.0, before)
    lost = after * (1 - 1 / ratio.clip(lower=1e-9))
    return _Comparison(
        ratio=ratio,
        lost_ns=max(0.0, float(lost.median())),
        names=len(both),
        matched_ratio=min(_compute_share(mine, both), _compute_share(theirs, both)),
        count_ratio=_count_kernels(analysis, both) / max(1e-9, _count_kernels(baseline, both)),
        work=work,
    )


def _compute_share(table: pd.DataFrame, names: "pd.Index[str]") -> float:
    """Return the share of these names in the compute of the table."""
    return float(table[names].to_numpy().sum()) / max(1.0, float(table.to_numpy().sum()))


def _model_kernels(analysis: RunAnalysis) -> pd.DataFrame:
    rows = analysis.kernels[analysis.kernels["role"] == "compute"]
    return rows[~rows["name"].str.contains(_OPTIMIZER)]


def _kernel_times_per_step(analysis: RunAnalysis) -> pd.DataFrame:
    """Return the time of each name (column) alone, per step of each rank (row), in ns."""
    factor = measure_slowdown_by_name(analysis.kernels).factor
    rows = _model_kernels(analysis)
    rows = rows.assign(alone_ns=alone_ns(rows, factor) / rows["rank"].map(_count_steps(analysis)))
    return rows.pivot_table(index="rank", columns="name", values="alone_ns", aggfunc="sum", fill_value=0.0)


def _count_kernels(analysis: RunAnalysis, names: "pd.Index[str]") -> float:
    """Return the number of kernels of these names per step and rank."""
    rows = _model_kernels(analysis)
    return float(rows.loc[rows["name"].isin(names), "count"].sum()) / max(1, len(analysis.steps))


def _count_steps(analysis: RunAnalysis) -> "pd.Series[int]":
    return analysis.steps.groupby("rank").size()


def _read_work(analysis: RunAnalysis, baseline: RunAnalysis) -> _Work:
    """Return the work per step and rank: tokens, else samples, else unknown."""
    for unit in ("tokens", "samples"):
        a, b = (getattr(run.training, f"{unit}_per_step") for run in (baseline, analysis))
        if a and b:
            return _Work(unit=unit, a=a / baseline.run.world_size, b=b / analysis.run.world_size)
    return _Work(unit="", a=1.0, b=1.0)


def _finding(analysis: RunAnalysis, seen: _Comparison, slow: "pd.Series[float]") -> Finding:
    wall, ratio = wall_ns(analysis), float(seen.ratio.median())
    compute = float(np.mean([rank.compute_ns for rank in analysis.time.per_rank]))
    hidden = float(np.mean([rank.overlapped_ns for rank in analysis.time.per_rank]))
    kept = max(0.3, 1 - hidden / max(1.0, compute))
    most = max(rank.compute_ns for rank in analysis.time.per_rank)
    low, high = (scale * seen.lost_ns for scale in _SAVING_RATIOS)
    return make_finding(
        Cause.LOST_COMPUTE_EFFICIENCY,
        sentence=f"the same kernels take {format_percent(ratio - 1)} longer than in the baseline"
        f"{_describe_unit(seen)}, on {_name_ranks(slow, seen)}: {format_ns(seen.lost_ns)} per step, "
        "not counting what collectives slow down",
        evidence=_evidence(seen, slow),
        saving_ns=(min(low * kept, most), min(high, most)),
        severity=rate_severity(seen.lost_ns, wall),
        confidence=_confidence(seen, ratio),
        fix=_FIX,
        disprove="run the model's compute by itself, one rank, the same batch, with and without sharding: if "
        "kernels take the same there, clocks or neighbours made the difference (nvidia-smi -q -d CLOCK)",
    )


_FIX = (
    "raise the micro-batch with the memory that sharding freed, and accumulate less: small batches leave the "
    "last wave of blocks half empty\n"
    "the same batch in both runs: look at clocks and temperature, at dtypes, at torch.compile and "
    "TF32 settings (torch.set_float32_matmul_precision)"
)


def _describe_unit(seen: _Comparison) -> str:
    if not seen.work.unit:
        return ""
    differs = abs(seen.work.b / seen.work.a - 1) > 0.01
    unit = seen.work.unit.removesuffix("s")
    return f" per {unit} ({seen.work.b:,.0f} per step and rank, there {seen.work.a:,.0f})" * differs


def _name_ranks(slow: "pd.Series[float]", seen: _Comparison) -> str:
    if len(slow) == len(seen.ratio):
        return "all ranks"
    shown = ", ".join(str(rank) for rank in slow.index[:8])
    return f"ranks {shown}{', ...' if len(slow) > 8 else ''}"


def _evidence(seen: _Comparison, slow: "pd.Series[float]") -> list[Evidence]:
    worst = seen.ratio.idxmax()
    return [
        Evidence(
            key="kernel_time_ratio",
            what="time of the same kernels, to the baseline",
            value=seen.ratio.median(),
            unit="ratio",
        ),
        Evidence(
            key="worst_kernel_time_ratio",
            what="worst",
            value=float(seen.ratio.max()),
            unit="ratio",
            rank=int(str(worst)),
        ),
        Evidence(key="ranks_slower", what="ranks more than 5 % slower", value=len(slow), unit="count"),
        Evidence(
            key="kernels_compared",
            what="names of kernels that both runs have",
            value=seen.names,
            unit="count",
        ),
        Evidence(
            key="share_of_compute_compared",
            what="their share of the compute",
            value=seen.matched_ratio,
            unit="ratio",
        ),
        Evidence(
            key="kernel_count_ratio",
            what="kernels per step, to the baseline",
            value=seen.count_ratio,
            unit="ratio",
        ),
        Evidence(key="lost_per_step", what="lost per step", value=seen.lost_ns, unit="ns"),
    ]


def _confidence(seen: _Comparison, ratio: float) -> Confidence:
    return Confidence.HIGH if ratio > _HIGH_RATIO and seen.work.unit else Confidence.MEDIUM
