"""ZP415: the recomputation of a checkpointed unit gathers it a third time.

A unit that is resharded after its forward pass is gathered for its backward pass. If the checkpoint wrapper
is outside the unit, or the unit is wrapped twice, the recomputed forward pass gathers the unit, and the
backward pass gathers it again: three gathers of a unit in a micro-batch, where two would suffice. Detected on
one rank by a third gather of the same unit in a micro-batch (docs/thresholds.md; pytorch #105635, #175406).
The fix removes that third gather.

Threshold: the exposed time of the third gathers exceeds 2 % of the step (chosen, as for other repeated
gathers). With more than one micro-batch, ZP412 covers the gathers of later micro-batches.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, mean_per_step, mean_wall_ns
from zprof.analysis.time.needless_collectives import Regathers, RepeatedGather, find_regathers, rate_cost
from zprof.causes.cause import Cause, Proof, Sign, Signal, rate_severity
from zprof.causes.fix import CHECKPOINT_BLOCKS, Fix
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step.needless_bytes import drop_repeated_gathers
from zprof.step.tasks import Graph

_FIX = Fix(
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

CAUSE = Cause(
    id="ZP415",
    name="checkpoint_regathers",
    meaning="The recomputation of a checkpointed unit gathers it a third time.",
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns", "compute_ns"),
    # recomputation requests its gather at the moment it needs it
    produces=(Sign.LATE_GATHERS,),
    proof=Proof.COUNTS,
    is_priced_by_step=True,
    amounts=("third_gathers_per_step",),
    sentence="{units} units are gathered three times per micro-batch, the third time for recomputation: "
    "{size} that the backward gathers anyway (exposed {exposed:ns} of {transfer:ns} {per_step})",
    evidence={
        "units_gathered_three_times": ("units gathered three times", Unit.COUNT),
        "third_gathers_per_step": ("third gathers {per_step}", Unit.COUNT),
    },
    fix=_FIX,
    disprove="turn checkpointing off for a step that fits in memory, and count: if two all_gathers per "
    "unit remain, recomputation causes the third",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if units are gathered a third time in a micro-batch, and that costs exposed time."""
    again = find_regathers(analysis, RepeatedGather.FOR_RECOMPUTATION)
    if not isinstance(again, Regathers):
        return again
    cost, units = again.cost, len(again.rows.texts("unit").list_distinct())
    return Signal(
        confidence=rate_cost(analysis, cost),
        words={"units": units, "size": cost.size, "exposed": cost.exposed_ns, "transfer": cost.transfer_ns},
        facts=[
            make_fact("all_gathers_per_step", mean_per_step(analysis, len(again.gathers))),
            make_fact("units_gathered_three_times", units),
            make_fact("third_gathers_per_step", cost.count),
            *cost.size_facts,
            make_fact("exposed_time_per_step", cost.exposed_ns),
        ],
        lost_ns=cost.lost_ns,
        severity=rate_severity(cost.exposed_ns, mean_wall_ns(analysis)),
    )


@CAUSE.edit
def drop_third_gathers(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which the recomputation finds its unit gathered."""
    return drop_repeated_gathers(analysis, graph, RepeatedGather.FOR_RECOMPUTATION)
