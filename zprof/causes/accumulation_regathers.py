"""ZP412: every micro-batch gathers all parameters again.

Parameters change once per step. With k micro-batches and units that are resharded after each forward and
backward pass, a step gathers each unit 2 k times (formula of this schedule: all_gathers = 2 x units x k),
although one gather would suffice if there is memory to keep the unit. Signal, from counts of one rank: more
than one micro-batch, and units that the forward pass of a later micro-batch gathers again. The fix removes
every gather of such a unit in the later micro-batches; a second gather within the first one belongs to ZP413.

Threshold: their exposed time is more than 3 % of the step (docs/thresholds.md). A hidden gather costs
nothing: k micro-batches with two hidden gathers each are not reported.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, mean_per_step, mean_wall_ns
from zprof.analysis.time.needless_collectives import (
    Regathers,
    RepeatedGather,
    find_regathers,
    measure_headroom,
    rate_cost,
)
from zprof.analysis.time.program_lines import locate_backward
from zprof.causes.cause import Cause, Proof, Signal, rate_severity
from zprof.causes.fix import Fix
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step.needless_bytes import drop_repeated_gathers
from zprof.step.tasks import Graph

_FIX = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block, reshard_after_forward=False)\n"
        "for i, batch in enumerate(micro_batches):\n"
        "    model.set_reshard_after_backward(i == len(micro_batches) - 1)",
        Engine.FSDP1: "FullyShardedDataParallel(block, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
        "or fewer and larger micro-batches",
        Engine.DEEPSPEED: '"stage3_param_persistence_threshold" and "stage3_max_live_parameters" above the\n'
        'model size, or "stage": 2; or fewer and larger micro-batches',
        Engine.REFERENCE: "ZeroConfig(stage=2); stage 3 with keep_after_forward=Keep.ALL gathers once\n"
        "per micro-batch; or fewer and larger micro-batches",
    },
)

CAUSE = Cause(
    id="ZP412",
    name="accumulation_regathers",
    meaning="Every micro-batch gathers all parameters again, although they change once per step.",
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns", "compute_ns"),
    proof=Proof.COUNTS,
    is_priced_by_step=True,
    amounts=("regathers_per_step",),
    sentence="{gathers:.0f} all_gathers {per_step} for {units:.0f} units and {micro_batches} micro-batches: "
    "{size} are gathered again although unchanged (exposed {exposed:ns} of {transfer:ns} {per_step}); "
    "{headroom}",
    evidence={
        "micro_batches_per_step": ("micro-batches {per_step}", Unit.COUNT),
        "units": ("units", Unit.COUNT),
        "regathers_per_step": ("all_gathers of unchanged units {per_step}", Unit.COUNT),
    },
    fix=_FIX,
    disprove="keep the units between micro-batches and record again: if the step takes as long, the "
    "gathers were not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if later micro-batches wait to gather units that an earlier one had gathered."""
    again = find_regathers(analysis, RepeatedGather.IN_LATER_MICRO_BATCH)
    if not isinstance(again, Regathers):
        return again
    cost, headroom = again.cost, measure_headroom(analysis, again.gathers)
    micro_batches = int(again.rows.ints("micro_batches").max())
    first = again.gathers.at(again.gathers.ints("number") == 1)
    units = mean_per_step(analysis, len(first.group_by("rank", "step", "unit")))
    gathers = mean_per_step(analysis, len(again.gathers))
    return Signal(
        confidence=headroom.at_most(rate_cost(analysis, cost)),
        words={
            "gathers": gathers,
            "units": units,
            "micro_batches": micro_batches,
            "size": cost.size,
            "exposed": cost.exposed_ns,
            "transfer": cost.transfer_ns,
            "headroom": headroom.description,
        },
        facts=[
            make_fact("micro_batches_per_step", micro_batches),
            make_fact("units", units),
            make_fact("all_gathers_per_step", gathers),
            make_fact("regathers_per_step", cost.count),
            *cost.size_facts,
            make_fact("exposed_time_per_step", cost.exposed_ns),
            *headroom.facts,
        ],
        lost_ns=cost.lost_ns,
        severity=rate_severity(cost.exposed_ns, mean_wall_ns(analysis)),
        locate=lambda: locate_backward(analysis.source),
    )


@CAUSE.edit
def keep_units(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which later micro-batches find their units gathered."""
    return drop_repeated_gathers(analysis, graph, RepeatedGather.IN_LATER_MICRO_BATCH)
