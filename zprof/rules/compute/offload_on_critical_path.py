"""ZP505 offload_on_critical_path: shards are copied to host memory and back without overlapping compute.

Signal: exposed copies between host and device of 1 MiB or more, in both directions in a step (a batch only
goes in, a checkpoint only out), and an idle device while ``Optimizer.step`` launches nothing for a
millisecond or more: the optimizer runs on the CPU. On a CPU rank, the copies marked by an engine's ``::copy``
ranges; if a collective runs in the background, they are idle time in the ledger. Reported from 5 % of the
step (docs/thresholds.md). With the fix the states stay on the device: no copies, and no update on the CPU.
"""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import mean_wall_ns
from zprof.analysis.time.host_time import (
    has_device,
    mean_of_most_ranks,
    median_of_most_ranks,
    moves_state,
    rate_confidence,
)
from zprof.causes.fix import Fix, choose_fix, is_on_cpu
from zprof.model.findings import Cause, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine, Framework
from zprof.rules.compute.idle_time import find_missing_host_gap
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity

#: Minimum share of the step: for a finding, and for high confidence.
_MIN_STEP_RATIO = 0.05
_HIGH_CONFIDENCE_RATIO = 0.10

_FIXES = Fix(
    forms={
        Engine.FSDP2: "fully_shard(module)  # no offload_policy$pinned_policy",
        Engine.FSDP1: "FullyShardedDataParallel(model, cpu_offload=None)",
        Engine.DEEPSPEED: '"offload_optimizer": {"device": "cpu", $pinned"ratio": 0.3},\n'
        '"zero_force_ds_cpu_optimizer": true, "sub_group_size": 100000000  # or no offload at all',
        Engine.REFERENCE: "ActivationConfig(checkpoint=True, host=False)",
    },
    settings={
        (
            Framework.TRANSFORMERS,
            Engine.FSDP2,
        ): 'TrainingArguments(fsdp="full_shard auto_wrap")  # without offload',
        (
            Framework.TRANSFORMERS,
            Engine.FSDP1,
        ): 'TrainingArguments(fsdp="full_shard auto_wrap")  # without offload',
        (
            Framework.ACCELERATE,
            Engine.FSDP2,
        ): "FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=False)",
        (Framework.ACCELERATE, Engine.FSDP1): "FullyShardedDataParallelPlugin(cpu_offload=False)",
        (Framework.LIGHTNING, Engine.FSDP1): "FSDPStrategy(cpu_offload=False)",
    },
)


class _OffloadCost(Struct, frozen=True, kw_only=True):
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


#: Pinned memory makes copies to a device faster; CPU ranks have none.
_PINNED = {"pinned_policy": "; or CPUOffloadPolicy(pin_memory=True)", "pinned": '"pin_memory": true, '}
_UNPINNED = dict.fromkeys(_PINNED, "")


def offload_on_critical_path(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the step waits for copies to and from the host."""
    missing = find_missing_host_gap(analysis, Cause.OFFLOAD_ON_CRITICAL_PATH)
    if missing:
        return missing
    if has_device(analysis) and not moves_state(analysis):
        return None
    cost = _OffloadCost(
        wall_ns=mean_wall_ns(analysis),
        copies_ns=mean_of_most_ranks(analysis, "host_copy_ns"),
        background_ns=mean_of_most_ranks(analysis, "copy_ns"),
        optimizer_ns=mean_of_most_ranks(analysis, "optimizer_ns"),
        optimizer_exposed_ns=mean_of_most_ranks(analysis, "optimizer_exposed_ns"),
    )
    typical_ns = median_of_most_ranks(analysis, "host_copy_ns", "optimizer_ns")
    return (
        _build_finding(analysis, cost)
        if min(cost.lost_ns, typical_ns) >= _MIN_STEP_RATIO * cost.wall_ns
        else None
    )


def _build_finding(analysis: RunAnalysis, cost: _OffloadCost) -> Finding:
    words = analysis.time.words
    share = cost.lost_ns / cost.wall_ns
    max_lost_ns = cost.lost_ns + cost.background_ns + cost.optimizer_exposed_ns
    optimizer = (
        f", and the optimizer on the CPU takes {format_ns(cost.optimizer_ns)}" if cost.optimizer_ns else ""
    )
    return make_finding(
        analysis,
        Cause.OFFLOAD_ON_CRITICAL_PATH,
        sentence=f"copies to and from host memory take {format_ns(cost.copies_ns)} {words.of_each_step} "
        f"without overlapping compute{optimizer} ({share:.0%})",
        evidence=[
            make_fact("exposed_copies_per_step/offload", cost.copies_ns),
            make_fact("copies_beside_collectives_per_step", cost.background_ns),
            make_fact("idle_in_cpu_optimizer_per_step", cost.optimizer_ns),
            make_fact("share_of_step", share),
        ],
        saving_ns=(0.0, max_lost_ns),
        severity=rate_severity(max_lost_ns, cost.wall_ns),
        confidence=rate_confidence(analysis, share, _HIGH_CONFIDENCE_RATIO, _MIN_STEP_RATIO),
        fix=choose_fix(analysis, _FIXES, _UNPINNED if is_on_cpu(analysis) else _PINNED),
        disprove="turn the offload off for one recording, with a smaller batch if memory is tight: if the "
        "step time per sample does not drop, the copies were not the cause",
    )
