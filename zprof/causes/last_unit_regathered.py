"""ZP414: the last unit is resharded after its forward pass and immediately gathered again.

The backward pass starts with the last unit of the forward pass. If it is resharded in between, it is gathered
again with no compute to hide the gather: its memory was free only while the loss was computed. Signal, from
one rank: the last unit of the forward pass is gathered a second time, with less than one unit's compute since
its forward pass (counted from the end of its first gather: less than three units' forward compute, because
its own forward pass and that of the previous unit are in between).

Threshold: exposed for more than 2 % of the step (chosen). On a device whose host runs far ahead, that gather
is launched during the unit's own forward pass and costs nothing: it is not reported. The fix keeps the unit.
"""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, mean_wall_ns
from zprof.analysis.time.needless_collectives import Regathers, RepeatedGather, find_regathers, rate_cost
from zprof.causes.cause import Cause, Proof, Signal, rate_severity
from zprof.causes.fix import Fix
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step.needless_bytes import drop_repeated_gathers
from zprof.step.tasks import Graph

_FIX = Fix(
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

CAUSE = Cause(
    id="ZP414",
    name="last_unit_regathered",
    meaning="The last unit is dropped after its forward and gathered again at once, for the backward.",
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns", "compute_ns"),
    proof=Proof.COUNTS,
    is_priced_by_step=True,
    amounts=("needless_gathers_per_step",),
    sentence="{unit}, the last unit of the forward, is resharded and immediately gathered again: "
    "{size}, exposed {exposed:ns} of {transfer:ns} {per_step}",
    evidence={
        "needless_gathers_per_step": ("needless gathers of the unit {per_step}", Unit.COUNT),
        "compute_between_gathers": ("compute between its two gathers", Unit.NS),
    },
    fix=_FIX,
    disprove="keep that unit and record again: its second gather disappears, and the step gets shorter "
    "by its exposed time",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if the backward pass first gathers the unit that was just resharded."""
    again = find_regathers(analysis, RepeatedGather.OF_LAST_UNIT)
    if not isinstance(again, Regathers):
        return again
    cost = again.cost
    return Signal(
        confidence=rate_cost(analysis, cost),
        words={
            "unit": again.rows.texts("unit")[0],
            "size": cost.size,
            "exposed": cost.exposed_ns,
            "transfer": cost.transfer_ns,
        },
        facts=[
            make_fact("needless_gathers_per_step", cost.count),
            *cost.size_facts,
            make_fact("exposed_time_per_step", cost.exposed_ns),
            make_fact("compute_between_gathers", float(np.nanmean(again.rows.floats("compute_between_ns")))),
        ],
        lost_ns=cost.lost_ns,
        severity=rate_severity(cost.exposed_ns, mean_wall_ns(analysis)),
    )


@CAUSE.edit
def keep_last_unit(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step without the second gathers of the last unit."""
    return drop_repeated_gathers(analysis, graph, RepeatedGather.OF_LAST_UNIT)
