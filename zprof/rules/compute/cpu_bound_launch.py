"""ZP502 cpu_bound_launch: the host launches slower than kernels run, so the device runs dry between them.

Signal: idle time that ends with work launched after the device had nothing left (the queue was empty), and
that is not a wait for the device, the allocator, a data loader or an optimizer on the CPU; on most ranks, in
the typical step. If one host came later than the others and is as fast as they are, its rank alone is idle,
and the others wait for it meanwhile. That is the pace of all hosts, too. From 10 % of the step on it is a
finding (docs/thresholds.md), from 15 % on a sure one: healthy real CPU ranks, two on two cores, had up to 8 %
of such time.

On a CPU rank: the main thread is in no operator, no wait and no launch of a collective. No recording tells
whether it then runs Python or sleeps, so the finding says no more than that, and is never sure.

    saving: half of (that idle time - collectives in the background that nothing else would hide)
         .. that idle time, exposed transfer that ran while nothing was queued behind it, and 15 %

Half, because graphs and compiled or fused operators leave some launches. If the host is late, the next gather
is late too, and its transfer is exposed: hence the second term. Ranks that run dry at different instants wait
for each other: hence the 15 %. One late host is another finding.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Evidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.rules.compute.idle_time import (
    FEW_RATIO,
    is_inference,
    missing_host_gap,
    most_ranks_mean,
    most_ranks_median,
    moves_state,
    on_device,
    rate_confidence,
    single_occurrence_gap,
)
from zprof.rules.rule import make_finding, rate_severity, untested_gap, wall_ns
from zprof.rules.waiting.own_time import measure_own_time

#: Minimum share of the step: for a finding, and for a sure one.
_WORTH_RATIO = 0.10
_SURE_RATIO = 0.15
#: Minimum share that is saved; maximum, because ranks then wait for each other.
_MIN_SAVING_RATIO = 0.5
_MAX_SAVING_RATIO = 1.15

_FIX_OF_INFERENCE = (
    "model = torch.compile(model, mode='reduce-overhead')  # or CUDA graphs of the decoding step\n"
    "larger batches; fewer hooks, and fewer Python statements, in each layer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LateHost:
    """Means per step. ``unhidden_ns``: collectives under the gaps that no compute could hide."""

    wall_ns: float
    idle_ns: float
    exposed_ns: float
    unhidden_ns: float

    @property
    def saving_ns(self) -> tuple[float, float]:
        """Lower and upper bound of the saving per step."""
        least = _MIN_SAVING_RATIO * max(0.0, self.idle_ns - self.unhidden_ns)
        return least, _MAX_SAVING_RATIO * (self.idle_ns + self.exposed_ns)


def cpu_bound_launch(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the hosts of all ranks are slower than their devices."""
    missing = missing_host_gap(analysis, Cause.CPU_BOUND_LAUNCH) or _missing_operators_gap(analysis)
    if missing:
        return missing
    # an optimizer on the CPU is offload, but one that only takes long to launch is not
    columns = ["launch_ns"] if moves_state(analysis) else ["launch_ns", "optimizer_ns"]
    shared = _waits_for_one_host(analysis, columns)
    seen = _LateHost(
        wall_ns=wall_ns(analysis),
        idle_ns=max(most_ranks_mean(analysis, *columns), float(shared.mean()) if len(shared) else 0.0),
        exposed_ns=most_ranks_mean(analysis, "launch_exposed_ns"),
        unhidden_ns=_unhidden_ns(analysis),
    )
    usual = max(most_ranks_median(analysis, *columns), float(shared.median()) if len(shared) else 0.0)
    if min(seen.idle_ns, usual) < _WORTH_RATIO * seen.wall_ns:
        return single_occurrence_gap(analysis, Cause.CPU_BOUND_LAUNCH, _WORTH_RATIO, *columns)
    return _finding(analysis, seen)


def _waits_for_one_host(analysis: RunAnalysis, columns: list[str]) -> "pd.Series[float]":
    """Return per step what one rank's host lost at the pace of all hosts while the others waited.

    Empty if unknown: on CPU ranks, and if it is unknown whether the hosts differ.
    """
    own = measure_own_time(analysis) if on_device(analysis) and analysis.run.world_size > 1 else None
    if own is None or not own.is_host_known or not len(own.numbers):
        return pd.Series(dtype=np.float64)
    lost = analysis.host.assign(lost=analysis.host[columns].sum(axis=1)).pivot_table(
        index="step", columns="rank", values="lost", aggfunc="first"
    )
    waited = analysis.steps.pivot_table(
        index="step", columns="rank", values="exposed_wait_ns", aggfunc="first"
    )
    lost, waited = (table.loc[list(own.numbers), list(own.ranks)] for table in (lost, waited))
    alike = np.clip(lost.to_numpy(np.float64) - np.clip(own.idle, 0.0, None), 0.0, None).max(axis=1)
    held_up = (lost + waited).quantile(FEW_RATIO, axis=1, interpolation="lower").to_numpy(np.float64)
    return pd.Series(np.minimum(alike, held_up), index=lost.index)


def _missing_operators_gap(analysis: RunAnalysis) -> Gap | None:
    if on_device(analysis) or analysis.steps["compute_ns"].any():
        return None
    return untested_gap(
        Cause.CPU_BOUND_LAUNCH,
        "no operator of the main thread was recorded",
        "record with activities=[ProfilerActivity.CPU]",
    )


def _unhidden_ns(analysis: RunAnalysis) -> float:
    steps = analysis.steps
    under = [name for name in analysis.host.columns if name.endswith("_under_ns")]
    behind_compute = float(steps["overlapped_ns"].mean()) - float(analysis.host[under].sum(axis=1).mean())
    free = float(steps["compute_ns"].mean()) - max(0.0, behind_compute)
    return max(0.0, most_ranks_mean(analysis, "launch_under_ns") - max(0.0, free))


def _finding(analysis: RunAnalysis, seen: _LateHost) -> Finding:
    share = seen.idle_ns / seen.wall_ns
    says = (
        f"the host is behind the device: nothing is queued for {format_ns(seen.idle_ns)} of each step"
        if on_device(analysis)
        else f"the main thread did nothing that was recorded for {format_ns(seen.idle_ns)} of each step"
    )
    return make_finding(
        Cause.CPU_BOUND_LAUNCH,
        sentence=f"{says} ({share:.0%})",
        evidence=[
            Evidence(
                key="idle_nothing_queued_per_step",
                what="idle with nothing queued per step",
                value=seen.idle_ns,
                unit="ns",
            ),
            Evidence(key="share_of_step", what="of the step", value=share, unit="ratio"),
            Evidence(
                key="exposed_transfer_nothing_queued",
                what="exposed transfer with nothing queued behind it",
                value=seen.exposed_ns,
                unit="ns",
            ),
            Evidence(
                key="collectives_hidden_by_idle",
                what="collectives that only these gaps hide",
                value=seen.unhidden_ns,
                unit="ns",
            ),
        ],
        saving_ns=seen.saving_ns,
        severity=rate_severity(seen.saving_ns[1], seen.wall_ns),
        confidence=_confidence(analysis, share),
        fix=choose_launch_fix(analysis),
        disprove="double the micro-batch and record again: kernels take longer and launches do not, so the "
        "idle time of a step stays as it is or shrinks; if it doubles, launching is not the cause",
    )


def _confidence(analysis: RunAnalysis, share: float) -> Confidence:
    """Return the confidence, one level lower on a CPU, where a sleeping thread looks like a busy one."""
    if on_device(analysis):
        return rate_confidence(analysis, share, _SURE_RATIO, _WORTH_RATIO)
    return Confidence.MEDIUM if share >= _SURE_RATIO else Confidence.LOW


def choose_launch_fix(analysis: RunAnalysis) -> str:
    """Return the fix that fits: kernel graphs only on devices, torch.compile only if not already used."""
    if is_inference(analysis):
        return _FIX_OF_INFERENCE
    is_compiled = bool(analysis.host["is_compiled"].astype(bool).any())
    lines = ["optimizer = torch.optim.AdamW(parameters, fused=True)"]
    if on_device(analysis) and is_compiled:
        lines.insert(0, "model = torch.compile(model, mode='reduce-overhead')  # adds CUDA graphs")
    elif on_device(analysis):
        lines.insert(0, "model = torch.compile(model)  # or mode='reduce-overhead': CUDA graphs")
    else:
        lines.insert(0, "py-spy record --native -- python train.py  # what the main thread does meanwhile")
    if not on_device(analysis) and not is_compiled:
        lines.append("model = torch.compile(model)  # if that is Python between operators")
    if is_compiled:
        lines.append("TORCH_LOGS=graph_breaks python train.py  # what runs outside of compiled regions")
    lines.append("larger micro-batches; fewer hooks, and fewer Python statements, in each layer")
    return "\n".join(lines)
