"""ZP415 checkpoint_regathers: the recomputation of a checkpointed unit gathers it a third time.

A unit that is resharded after its forward is gathered for its backward. If the checkpoint wrapper is outside
the unit, or the unit is wrapped twice, the recomputed forward gathers the unit, and the backward gathers it
again: three gathers of a unit in a micro-batch, where two would suffice. Detected on one rank by a third
gather of the same unit in a micro-batch (docs/thresholds.md; pytorch #105635, #175406). The fix removes that
third gather.

Threshold: the exposed time of the third gathers exceeds 2 % of the step (chosen, as for the other regather
rules). With more than one micro-batch, ZP412 covers the gathers of later micro-batches.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import mean_per_step, mean_wall_ns
from zprof.causes.fix import CHECKPOINT_BLOCKS, Fix, choose_fix
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
        Engine.FSDP2: "block = checkpoint_wrapper(block)   # first the checkpoint, then the sharding:\n"
        "fully_shard(block)                  # recomputation then runs inside the unit, on gathered "
        "parameters",
        Engine.FSDP1: "FullyShardedDataParallel(checkpoint_wrapper(block))  # the checkpoint inside "
        "the unit:\n"
        "recomputation then uses gathered parameters",
        Engine.DEEPSPEED: "checkpoint with deepspeed.checkpointing.checkpoint inside the module whose "
        "parameters "
        "are\ngathered together; do not nest ZeRO units inside a checkpoint",
        Engine.REFERENCE: "ActivationConfig(checkpoint=True) on the units: recomputation reuses gathered "
        "parameters",
    },
    settings=CHECKPOINT_BLOCKS,
)


def checkpoint_regathers(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if units are gathered a third time in a micro-batch, and that costs exposed time."""
    regathers = find_regathers(analysis, Cause.CHECKPOINT_REGATHERS)
    if not isinstance(regathers, Regathers):
        return regathers
    gathers = mean_per_step(analysis, len(regathers.gathers))
    units = len(regathers.rows.texts("unit").list_distinct())
    basis = analysis.time.basis
    return make_finding(
        analysis,
        Cause.CHECKPOINT_REGATHERS,
        sentence=f"{units} units are gathered three times per micro-batch, the third time for "
        f"recomputation: {regathers.cost.size} that the backward gathers anyway "
        f"(exposed {format_ns(regathers.cost.exposed_ns)} of "
        f"{format_ns(regathers.cost.transfer_ns)} {basis})",
        evidence=[
            make_fact("all_gathers_per_step", gathers),
            make_fact("units_gathered_three_times", units),
            make_fact("third_gathers_per_step", regathers.cost.count),
            *regathers.cost.size_evidence,
            make_fact("exposed_time_per_step", regathers.cost.exposed_ns),
        ],
        saving_ns=(0.0, regathers.cost.lost_ns),
        severity=rate_severity(regathers.cost.exposed_ns, mean_wall_ns(analysis)),
        confidence=rate_confidence(analysis, regathers.cost),
        fix=choose_fix(analysis, _FIXES),
        disprove="turn checkpointing off for a step that fits in memory, and count: if two all_gathers per "
        "unit remain, recomputation causes the third",
    )
