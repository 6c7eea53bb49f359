"""ZP505 offload_on_critical_path: shards travel to host memory and back with no compute beside them.

Signal: exposed copies between host and device of 1 MiB or more, both ways in a step (a batch only goes in, a
checkpoint only out), and an idle device while ``Optimizer.step`` launches nothing for a millisecond or more:
the optimizer runs on the CPU. On a CPU rank, the copies that an engine's ``::copy`` ranges name; those beside
a collective in the background are idle time in the ledger. Reported from 5 % of the step on
(docs/thresholds.md).

    saving: 0.7 of exposed copies and of the optimizer .. all of both, those in the background, and 15 %

At least 0.7, because an update on the device takes time as well, and hidden copies share the link. At most 15
% more: each copy wakes a thread up (two real ranks gained 1.08 of it).
"""

from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Evidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.rules.compute.idle_time import (
    missing_host_gap,
    most_ranks_mean,
    most_ranks_median,
    moves_state,
    on_device,
    rate_confidence,
)
from zprof.rules.rule import choose_fix, make_finding, rate_severity, wall_ns

#: Minimum share of the step: for a finding, and for a sure one.
_WORTH_RATIO = 0.05
_SURE_RATIO = 0.10
_MIN_SAVING_RATIO = 0.7
_MAX_SAVING_RATIO = 1.15

_FIXES = {
    "FSDP2": "fully_shard(module)  # no offload_policy; or CPUOffloadPolicy(pin_memory=True)",
    "DeepSpeed": '"offload_optimizer": {"device": "cpu", "pin_memory": true, "ratio": 0.3},\n'
    '"zero_force_ds_cpu_optimizer": true, "sub_group_size": 100000000  # or no offload at all',
    "reference": "ActivationConfig(checkpoint=True, host=False)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _OffloadCost:
    """Means per step."""

    wall_ns: float
    copies_ns: float
    background_ns: float
    optimizer_ns: float
    optimizer_exposed_ns: float

    @property
    def lost_ns(self) -> float:
        """Time on the critical path."""
        return self.copies_ns + self.optimizer_ns

    @property
    def saving_ns(self) -> tuple[float, float]:
        """Lower and upper bound of the saving per step."""
        beside = self.background_ns + self.optimizer_exposed_ns
        return _MIN_SAVING_RATIO * self.lost_ns, _MAX_SAVING_RATIO * (self.lost_ns + beside)


def offload_on_critical_path(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the step waits for what was moved to the host."""
    missing = missing_host_gap(analysis, Cause.OFFLOAD_ON_CRITICAL_PATH)
    if missing:
        return missing
    if on_device(analysis) and not moves_state(analysis):
        return None
    seen = _OffloadCost(
        wall_ns=wall_ns(analysis),
        copies_ns=most_ranks_mean(analysis, "host_copy_ns"),
        background_ns=most_ranks_mean(analysis, "copy_ns"),
        optimizer_ns=most_ranks_mean(analysis, "optimizer_ns"),
        optimizer_exposed_ns=most_ranks_mean(analysis, "optimizer_exposed_ns"),
    )
    usual = most_ranks_median(analysis, "host_copy_ns", "optimizer_ns")
    return _finding(analysis, seen) if min(seen.lost_ns, usual) >= _WORTH_RATIO * seen.wall_ns else None


def _finding(analysis: RunAnalysis, seen: _OffloadCost) -> Finding:
    share = seen.lost_ns / seen.wall_ns
    optimizer = f", and the optimizer on the CPU {format_ns(seen.optimizer_ns)}" if seen.optimizer_ns else ""
    return make_finding(
        Cause.OFFLOAD_ON_CRITICAL_PATH,
        sentence=f"copies to and from host memory take {format_ns(seen.copies_ns)} of each step with no "
        f"compute beside them{optimizer} ({share:.0%})",
        evidence=[
            Evidence(
                key="exposed_copies_per_step",
                what="exposed copies between host and device per step",
                value=seen.copies_ns,
                unit="ns",
            ),
            Evidence(
                key="copies_beside_collectives_per_step",
                what="copies beside a collective alone per step",
                value=seen.background_ns,
                unit="ns",
            ),
            Evidence(
                key="idle_in_cpu_optimizer_per_step",
                what="idle while the CPU runs the optimizer per step",
                value=seen.optimizer_ns,
                unit="ns",
            ),
            Evidence(key="share_of_step", what="of the step", value=share, unit="ratio"),
        ],
        saving_ns=seen.saving_ns,
        severity=rate_severity(seen.saving_ns[1], seen.wall_ns),
        confidence=rate_confidence(analysis, share, _SURE_RATIO, _WORTH_RATIO),
        fix=choose_fix(analysis.training.engine, _FIXES),
        disprove="turn the offload off for one recording, with a smaller batch if memory is short: if the "
        "step per sample is no shorter, the copies were not what it waited for",
    )
