"""ZP412 accumulation_regathers: every micro-batch gathers all parameters again.

Parameters change once per step. With k micro-batches and units that are resharded after each forward and
backward, a step gathers each unit 2 k times (formula of this schedule: all_gathers = 2 x units x k), although
one gather would suffice if there is memory to keep the unit. Signal, from counts of one rank: more than one
micro-batch, and units that the forward of a later one gathers anew. The fix removes every gather of such a
unit in the later micro-batches; a second gather within the first one belongs to ZP413.

Threshold: their exposed time is more than 3 % of the step (docs/thresholds.md). A hidden gather costs
nothing: k micro-batches with two hidden gathers each are not reported.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import mean_per_step, mean_wall_ns
from zprof.analysis.time.program_lines import locate_backward
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Cause, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity
from zprof.rules.volume.needless_collectives import CollectiveCost, rate_confidence
from zprof.rules.volume.regathers import Headroom, Regathers, find_regathers, measure_headroom

_FIXES = Fix(
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


def accumulation_regathers(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if later micro-batches wait to gather units that an earlier one had gathered."""
    regathers = find_regathers(analysis, Cause.ACCUMULATION_REGATHERS)
    if not isinstance(regathers, Regathers):
        return regathers
    micro_batches = int(regathers.rows.ints("micro_batches").max())
    first = regathers.gathers.at(regathers.gathers.ints("number") == 1)
    units = mean_per_step(analysis, len(first.group_by("rank", "step", "unit")))
    gathers = mean_per_step(analysis, len(regathers.gathers))
    headroom = measure_headroom(analysis, regathers.gathers)
    return _finding(analysis, regathers.cost, micro_batches, (units, gathers), headroom)


def _finding(
    analysis: RunAnalysis,
    price: CollectiveCost,
    micro_batches: int,
    counted: tuple[float, float],
    headroom: Headroom,
) -> Finding:
    basis = analysis.time.basis
    units, total = counted
    return make_finding(
        analysis,
        Cause.ACCUMULATION_REGATHERS,
        sentence=f"{total:.0f} all_gathers {basis} for {units:.0f} units and {micro_batches} micro-batches: "
        f"{price.size} are gathered again although unchanged "
        f"(exposed {format_ns(price.exposed_ns)} of {format_ns(price.transfer_ns)} {basis}); "
        f"{headroom.description}",
        evidence=[
            make_fact("micro_batches_per_step", micro_batches),
            make_fact("units", units),
            make_fact("all_gathers_per_step", total),
            make_fact("regathers_per_step", price.count),
            *price.size_evidence,
            make_fact("exposed_time_per_step", price.exposed_ns),
            *headroom.evidence,
        ],
        saving_ns=(0.0, price.lost_ns),
        severity=rate_severity(price.exposed_ns, mean_wall_ns(analysis)),
        confidence=headroom.at_most(rate_confidence(analysis, price)),
        fix=choose_fix(analysis, _FIXES),
        disprove="keep the units between micro-batches and record again: if the step takes as long, the "
        "gathers were not the cause",
        location=locate_backward(analysis.source),
    )
