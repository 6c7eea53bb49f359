"""ZP404 units_too_small: wrapped units are so small that gathering one takes longer than computing it.

The link is fine, but the messages are too small. Signal: messages that are mostly latency (more than 50 % of
their time, and more than 3 % of the step exposed; zprof/rules/transfer/small_messages.py). In addition, the
names of units show more than three per block (``layers.3.attn.wq``; the threshold is that of
docs/thresholds.md: FSDP per leaf), or the latency itself is normal, at most 200 us. With a higher latency
and full blocks as units it is latency_bound_collectives.

Saving: the step with units as large as blocks, or half as large. If names do not show blocks, the step with
the best unit sizes, up to four times the best multiple.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import WRAP_BLOCKS, Fix, choose_fix, measure_sizes
from zprof.model.findings import Cause, Finding
from zprof.model.formatting import format_bytes, format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity
from zprof.rules.transfer.small_messages import (
    UNITS_PER_BLOCK,
    SmallMessages,
    find_small_messages,
    rate_small_messages,
    unknown_latency_gap,
)

FIXES = Fix(
    forms={
        Engine.FSDP2: "for block in model.layers:\n"
        "    fully_shard(block)  # the block, not the linears, norms and embeddings in it\n"
        "fully_shard(model)",
        Engine.FSDP1: "FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}))\n"
        "(the block, not the linears, norms and embeddings in it)",
        Engine.DEEPSPEED: '"zero_optimization": {"stage3_prefetch_bucket_size": $gather_elements,\n'
        '                      "stage3_param_persistence_threshold": 1000000,\n'
        '                      "stage3_module_granularity_threshold": $gather_elements}',
        Engine.REFERENCE: "zero(model, config, units=[Block])",
    },
    settings=WRAP_BLOCKS,
)


def units_too_small(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if larger units would hide the exposed gathers."""
    missing = unknown_latency_gap(analysis, Cause.UNITS_TOO_SMALL)
    if missing:
        return missing
    small = find_small_messages(analysis)
    if small is None or not small.units_are_at_fault:
        return None
    return _finding(analysis, small) if small.is_worth_it else None


def _finding(analysis: RunAnalysis, small: SmallMessages) -> Finding:
    basis = analysis.time.basis
    gathers = small.step.traffic.gathers
    assert gathers is not None, "units are at fault where units are gathered"
    parts = small.per_block is not None and small.per_block > UNITS_PER_BLOCK
    shown = f"(exposed {format_ns(small.step.exposed_ns)} {basis})"
    what = (
        f"each block is split into {small.per_block:g} units"
        if parts
        else f"{gathers.count:g} all_gathers {basis}"
    )
    return make_finding(
        analysis,
        Cause.UNITS_TOO_SMALL,
        sentence=f"{what}, each gathering {format_bytes(int(gathers.bytes))} in "
        f"{format_ns(gathers.each_ns)} while it computes for only {format_ns(small.step.forward_ns)} {shown}",
        evidence=[*small.evidence, *_unit_evidence(small)],
        saving_ns=small.saving_ns,
        severity=rate_severity(small.saving_ns[1], small.wall_ns),
        confidence=rate_small_messages(small),
        fix=choose_fix(analysis, FIXES, measure_sizes(analysis, small.sizes[-1])),
        disprove="wrap entire blocks and record again: if the gathers stay exposed as long, their number "
        "was not the cause",
    )


def _unit_evidence(small: SmallMessages) -> list[Fact]:
    facts = [make_fact("unit_forward_compute", small.step.forward_ns)]
    if small.per_block is not None:
        facts.append(make_fact("units_per_block", small.per_block))
    return facts
