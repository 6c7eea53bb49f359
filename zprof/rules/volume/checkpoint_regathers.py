"""ZP415 checkpoint_regathers: the recomputation of a checkpointed unit gathers it a third time.

A unit that is dropped after its forward is gathered for its backward. If the checkpoint lies outside of the
unit, or the unit is wrapped twice, the recomputed forward has a gather of its own, and the backward another
one: three gathers of a unit in a micro-batch, where two would do. Signal, from counts of one rank: a third
gather of the same unit in a micro-batch (docs/thresholds.md; pytorch #105635, #175406). The fix removes that
third gather.

Threshold: their exposed time is more than 2 % of the step (our choice, as for the other gathers). With more
than one micro-batch, ZP412 names the gathers of later ones.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Evidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.rules.rule import choose_fix, make_finding, mean_per_step, mean_wall_ns, rate_severity
from zprof.rules.volume.needless_collectives import CollectiveCost, rate_confidence
from zprof.rules.volume.regathers import Regathers, find_regathers

_FIXES = {
    "FSDP2": "block = checkpoint_wrapper(block)   # first the checkpoint, then the sharding:\n"
    "fully_shard(block)                  # recomputation then runs inside the unit, on what is gathered",
    "DeepSpeed": "checkpoint with deepspeed.checkpointing.checkpoint inside the module whose parameters are\n"
    "gathered together; no nested ZeRO units within a checkpoint",
    "reference": "ActivationConfig(checkpoint=True) on the units: recomputation uses what is gathered",
}


def checkpoint_regathers(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if units are gathered a third time in a micro-batch, and it costs time."""
    again = find_regathers(analysis, Cause.CHECKPOINT_REGATHERS)
    if not isinstance(again, Regathers):
        return again
    gathers = mean_per_step(analysis, len(again.gathers))
    return _finding(analysis, again.price, gathers, int(again.rows["unit"].nunique()))


def _finding(analysis: RunAnalysis, price: CollectiveCost, gathers: float, units: int) -> Finding:
    return make_finding(
        Cause.CHECKPOINT_REGATHERS,
        sentence=f"{units} units are gathered three times per step, the third time for recomputation: "
        f"{price.size} that the backward has gathered anyway "
        f"(exposed {format_ns(price.exposed_ns)} of {format_ns(price.transfer_ns)} per step)",
        evidence=[
            Evidence(key="all_gathers_per_step", what="all_gathers per step", value=gathers, unit="count"),
            Evidence(
                key="units_gathered_three_times", what="units gathered three times", value=units, unit="count"
            ),
            Evidence(
                key="third_gathers_per_step", what="third gathers per step", value=price.count, unit="count"
            ),
            *price.size_evidence,
            Evidence(
                key="exposed_time_per_step",
                what="their exposed time per step",
                value=price.exposed_ns,
                unit="ns",
            ),
        ],
        saving_ns=price.saving_ns,
        severity=rate_severity(price.high_ns, mean_wall_ns(analysis)),
        confidence=rate_confidence(analysis, price),
        fix=choose_fix(analysis.training.engine, _FIXES),
        disprove="turn checkpointing off for a step that fits in memory, and count: two all_gathers a unit "
        "remain if recomputation is what makes the third",
    )
