"""ZP414 last_unit_regathered: the last unit is resharded after its forward and immediately gathered again.

The backward starts with the last unit of the forward. If it is resharded in between, it is gathered again
with no compute to hide the gather: its memory was free only while the loss was computed. Signal, from one
rank: the last unit of the forward is gathered a second time, with less than one unit's compute since its
forward (counted from the end of its first gather: less than three units' forward compute, because its own
forward and the forward that the gather ran ahead of are in between).

Threshold: exposed for more than 2 % of the step (chosen). On a device whose host runs far ahead, that gather
is launched during the unit's own forward and costs nothing: it is not reported.
"""

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import mean_wall_ns
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Cause, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity
from zprof.rules.volume.needless_collectives import rate_confidence
from zprof.rules.volume.regathers import Regathers, find_regathers

_FIXES = Fix(
    forms={
        Engine.FSDP2: "fully_shard(blocks[-1], reshard_after_forward=False)   # also the head, if it "
        "is a unit",
        Engine.FSDP1: "FullyShardedDataParallel(blocks[-1], "
        "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)  # before wrapping the model",
        Engine.DEEPSPEED: '"stage3_param_persistence_threshold" above the size of the last layers\' '
        "parameters",
        Engine.REFERENCE: "ZeroConfig(stage=3, keep_after_forward=Keep.LAST)",
    },
)


def last_unit_regathered(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the backward first gathers the unit that the forward has just resharded."""
    regathers = find_regathers(analysis, Cause.LAST_UNIT_REGATHERED)
    if not isinstance(regathers, Regathers):
        return regathers
    between = float(np.nanmean(regathers.rows.floats("compute_between_ns")))
    unit = regathers.rows.texts("unit")[0]
    basis = analysis.time.basis
    return make_finding(
        analysis,
        Cause.LAST_UNIT_REGATHERED,
        sentence=f"{unit}, the last unit of the forward, is resharded and immediately gathered again: "
        f"{regathers.cost.size}, exposed {format_ns(regathers.cost.exposed_ns)} of "
        f"{format_ns(regathers.cost.transfer_ns)} {basis}",
        evidence=[
            make_fact("needless_gathers_per_step", regathers.cost.count),
            *regathers.cost.size_evidence,
            make_fact("exposed_time_per_step", regathers.cost.exposed_ns),
            make_fact("compute_between_gathers", between),
        ],
        saving_ns=(0.0, regathers.cost.lost_ns),
        severity=rate_severity(regathers.cost.exposed_ns, mean_wall_ns(analysis)),
        confidence=rate_confidence(analysis, regathers.cost),
        fix=choose_fix(analysis, _FIXES),
        disprove="keep that unit and record again: its second gather disappears, and the step gets shorter "
        "by its exposed time",
    )
