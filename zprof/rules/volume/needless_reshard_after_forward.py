"""ZP413 needless_reshard_after_forward: units are resharded after forward, and gathered again for backward.

Resharding a unit after its forward saves the memory of unsharded parameters until the backward, and costs a
second gather. Every healthy stage 3 run gathers twice: a hidden second gather costs nothing and
is not reported. Signal, from one rank: units that are gathered again in the backward, and

    exposed time of these gathers > 2 % of the step                         (docs/thresholds.md)
    free memory of the device at the peak >= bytes of the unsharded units   if memory was recorded

If memory was not recorded, it is unknown if the fix is possible: a note with low confidence, which claims
time after all other findings.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import mean_wall_ns
from zprof.causes.fix import KEEP_AFTER_FORWARD, Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity
from zprof.rules.volume.needless_collectives import rate_confidence
from zprof.rules.volume.regathers import Regathers, find_regathers, measure_headroom

_FIXES = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block, reshard_after_forward=False)   # or an int: reshard within "
        "a host only",
        Engine.FSDP1: "FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 2}',
        Engine.REFERENCE: "ZeroConfig(stage=3, keep_after_forward=Keep.ALL)   # or stage=2",
    },
    settings=KEEP_AFTER_FORWARD,
)


def needless_reshard_after_forward(
    analysis: RunAnalysis, baseline: RunAnalysis | None
) -> Finding | Gap | None:
    """Return a finding if the backward waits to gather units that memory could keep from the forward."""
    regathers = find_regathers(analysis, Cause.NEEDLESS_RESHARD_AFTER_FORWARD)
    if not isinstance(regathers, Regathers):
        return regathers
    headroom = measure_headroom(analysis, regathers.gathers)
    if headroom.suffices is False:
        return None
    units = len(regathers.rows.texts("unit").list_distinct())
    basis = analysis.time.basis
    return make_finding(
        analysis,
        Cause.NEEDLESS_RESHARD_AFTER_FORWARD,
        sentence=f"{units} units are resharded after their forward and gathered again for their backward: "
        f"{regathers.cost.size} "
        f"(exposed {format_ns(regathers.cost.exposed_ns)} of "
        f"{format_ns(regathers.cost.transfer_ns)} {basis}); "
        f"{headroom.description}",
        evidence=[
            make_fact("units_regathered", units),
            make_fact("second_gathers_per_step", regathers.cost.count),
            *regathers.cost.size_evidence,
            make_fact("exposed_time_per_step", regathers.cost.exposed_ns),
            *headroom.evidence,
        ],
        saving_ns=(0.0, regathers.cost.lost_ns),
        severity=rate_severity(regathers.cost.exposed_ns, mean_wall_ns(analysis)),
        confidence=rate_confidence(analysis, regathers.cost) if headroom.suffices else Confidence.LOW,
        fix=choose_fix(analysis, _FIXES),
        disprove="keep the units after their forward and record again: if the step takes as long, or memory "
        "runs out, resharding them was right",
    )
