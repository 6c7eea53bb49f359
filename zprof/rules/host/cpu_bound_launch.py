"""ZP502 cpu_bound_launch: the host launches slower than kernels run, so the device runs dry between them.

Signal: idle time that ends with work launched after the device had nothing left (the queue was empty), and
that is no wait for the device, no allocator, no data loader and no optimizer on the CPU; on most ranks, in
the typical step.  On a CPU rank: the main thread is in no operator, no wait, no launch of a collective.
From 10 % of the step on a finding (docs/thresholds.md), from 15 % on a sure one:
of real CPU ranks that were healthy, with two ranks on two cores, up to 8 % was such time.

    saving: half of (that idle time - collectives in the background that nothing else would hide)
         .. that idle time, exposed transfer that ran while nothing was queued behind it, and 15 %

Half, because graphs, compiled or fused operators leave some launches.  Where the host comes late, the next
gather is late too, and its transfer is exposed: hence the second term; and ranks that run dry at different
instants wait for each other: hence the 15 %.  One late host is another finding.
"""

from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.units import format_ns
from zprof.rules.host.lost import by_size, moves_state, no_host, of_most, on_device, typical
from zprof.rules.rows import wall_ns
from zprof.rules.rule import finding, not_tested, severity_of

#: Of the step: from the first on a finding, from the second on a sure one.
_WORTH_RATIO = 0.10
_SURE_RATIO = 0.15
#: What is saved of it at least; at most, where ranks then wait for each other.
_LEAST_RATIO = 0.5
_MOST_RATIO = 1.15

_FIX = (
    "model = torch.compile(model)  # or mode='reduce-overhead': CUDA graphs\n"
    "optimizer = torch.optim.AdamW(parameters, fused=True)\n"
    "larger micro-batches; fewer hooks, and fewer Python statements, in each layer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Behind:
    """Means of a step.  ``unhidden_ns``: collectives under the gaps that compute has no room for."""

    wall_ns: float
    idle_ns: float
    exposed_ns: float
    unhidden_ns: float

    @property
    def saving_ns(self) -> tuple[float, float]:
        """The range."""
        least = _LEAST_RATIO * max(0.0, self.idle_ns - self.unhidden_ns)
        return least, _MOST_RATIO * (self.idle_ns + self.exposed_ns)


def cpu_bound_launch(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Finding where the hosts of all ranks are slower than their devices."""
    missing = no_host(analysis, Cause.CPU_BOUND_LAUNCH) or _no_operators(analysis)
    if missing:
        return missing
    # an optimizer on the CPU is offload; one that only takes long to launch is not
    columns = ["launch_ns"] if moves_state(analysis) else ["launch_ns", "optimizer_ns"]
    seen = _Behind(
        wall_ns=wall_ns(analysis),
        idle_ns=of_most(analysis, *columns),
        exposed_ns=of_most(analysis, "launch_exposed_ns"),
        unhidden_ns=_unhidden_ns(analysis),
    )
    if min(seen.idle_ns, typical(analysis, *columns)) < _WORTH_RATIO * seen.wall_ns:
        return None
    return _finding(analysis, seen)


def _no_operators(analysis: RunAnalysis) -> Gap | None:
    if on_device(analysis) or analysis.steps["compute_ns"].any():
        return None
    return not_tested(
        Cause.CPU_BOUND_LAUNCH,
        "no operator of the main thread was recorded",
        "record with activities=[ProfilerActivity.CPU]",
    )


def _unhidden_ns(analysis: RunAnalysis) -> float:
    steps = analysis.steps
    under = [name for name in analysis.host.columns if name.endswith("_under_ns")]
    behind_compute = float(steps["overlapped_ns"].mean()) - float(analysis.host[under].sum(axis=1).mean())
    free = float(steps["compute_ns"].mean()) - max(0.0, behind_compute)
    return max(0.0, of_most(analysis, "launch_under_ns") - max(0.0, free))


def _finding(analysis: RunAnalysis, seen: _Behind) -> Finding:
    share = seen.idle_ns / seen.wall_ns
    says = (
        f"the host is behind the device: nothing is queued for {format_ns(seen.idle_ns)} of each step"
        if on_device(analysis)
        else f"the main thread is busy outside of operators for {format_ns(seen.idle_ns)} of each step"
    )
    return finding(
        Cause.CPU_BOUND_LAUNCH,
        sentence=f"{says} ({share:.0%})",
        evidence=[
            Evidence(what="idle with nothing queued, a step", value=seen.idle_ns, unit="ns"),
            Evidence(what="of the step", value=share, unit="ratio"),
            Evidence(what="exposed transfer with nothing queued behind it", value=seen.exposed_ns, unit="ns"),
            Evidence(what="collectives that only these gaps hide", value=seen.unhidden_ns, unit="ns"),
        ],
        saving_ns=seen.saving_ns,
        severity=severity_of(seen.saving_ns[1], seen.wall_ns),
        confidence=by_size(analysis, share, _SURE_RATIO, _WORTH_RATIO),
        fix=_FIX,
        disprove="double the micro-batch and record again: kernels take longer and launches do not, so the "
        "idle time of a step stays as it is or shrinks; if it doubles, launching is not the cause",
    )
