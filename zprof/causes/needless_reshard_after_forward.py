"""ZP413: units are resharded after the forward pass, and gathered again for the backward pass.

Resharding a unit after its forward pass saves the memory of unsharded parameters until the backward pass, and
costs a second gather. Every healthy stage 3 run gathers twice: a hidden second gather costs nothing and is
not reported. Signal, from one rank: units that are gathered again in the backward pass, and

    exposed time of these gathers > 2 % of the step                         (docs/thresholds.md)
    free memory of the device at the peak >= bytes of the unsharded units   if memory was recorded

If memory was not recorded, it is unknown if the fix is possible: a note with low confidence, which claims
time after all other findings.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, mean_wall_ns
from zprof.analysis.time.needless_collectives import (
    Regathers,
    RepeatedGather,
    find_regathers,
    measure_headroom,
    rate_cost,
    read_gathers,
)
from zprof.causes.cause import Cause, Sign, Signal, rate_severity
from zprof.causes.fix import KEEP_AFTER_FORWARD, Fix
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step.needless_bytes import drop_repeated_gathers
from zprof.step.tasks import Graph

_FIX = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block, reshard_after_forward=False)   # or an int: reshard within "
        "a host only",
        Engine.FSDP1: "FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 2}',
        Engine.REFERENCE: "ZeroConfig(stage=3, keep_after_forward=Keep.ALL)   # or stage=2",
    },
    settings=KEEP_AFTER_FORWARD,
)

CAUSE = Cause(
    id="ZP413",
    name="needless_reshard_after_forward",
    meaning="Units are dropped after their forward, and the backward waits while they are gathered again.",
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns", "compute_ns"),
    sign=Sign.GATHERS_OF_BACKWARD,
    is_priced_by_step=True,
    amounts=("second_gathers_per_step",),
    sentence="{units} units are resharded after their forward and gathered again for their backward: "
    "{size} (exposed {exposed:ns} of {transfer:ns} {per_step}); {headroom}",
    evidence={
        "units_regathered": ("units gathered again for their backward", Unit.COUNT),
        "second_gathers_per_step": ("second gathers {per_step}", Unit.COUNT),
    },
    fix=_FIX,
    disprove="keep the units after their forward and record again: if the step takes as long, or memory "
    "runs out, resharding them was right",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if the backward pass waits for units that memory could keep from the forward pass."""
    again = find_regathers(analysis, RepeatedGather.FOR_BACKWARD)
    if not isinstance(again, Regathers):
        return again
    cost, headroom = again.cost, measure_headroom(analysis, again.gathers)
    if headroom.suffices is False:
        return None
    units = len(again.rows.texts("unit").list_distinct())
    return Signal(
        confidence=rate_cost(analysis, cost) if headroom.suffices else Confidence.LOW,
        words={
            "units": units,
            "size": cost.size,
            "exposed": cost.exposed_ns,
            "transfer": cost.transfer_ns,
            "headroom": headroom.description,
        },
        facts=[
            make_fact("units_regathered", units),
            make_fact("second_gathers_per_step", cost.count),
            *cost.size_facts,
            make_fact("exposed_time_per_step", cost.exposed_ns),
            *headroom.facts,
        ],
        lost_ns=cost.lost_ns,
        severity=rate_severity(cost.exposed_ns, mean_wall_ns(analysis)),
    )


@CAUSE.edit
def keep_after_forward(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which the backward pass finds its units gathered."""
    return drop_repeated_gathers(analysis, graph, RepeatedGather.FOR_BACKWARD)


@CAUSE.doubt
def may_lack_memory(analysis: RunAnalysis) -> bool:
    """Return True unless there is known to be enough memory to keep the units."""
    return not measure_headroom(analysis, read_gathers(analysis)).suffices
