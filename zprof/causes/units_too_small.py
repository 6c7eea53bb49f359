"""ZP404: wrapped units are so small that gathering one takes longer than computing it.

The link is fine, but the messages are too small. Signal: messages that are mostly latency (more than 50 % of
their time, and more than 3 % of the step exposed; zprof/step/message_sizes.py). In addition, the
names of units show more than three per block (``layers.3.attn.wq``; the threshold is that of
docs/thresholds.md: FSDP per leaf), or the latency itself is normal, at most 200 us. With a higher latency
and full blocks as units it is ZP403.

Saving: the step with units as large as blocks, or half as large. If the names show no blocks, the step with
the best unit sizes, up to four times the best multiple.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact, mean_per_step
from zprof.causes.cause import MIN_GAIN_RATIO, Cause, Observation, Proof, Sign, Signal
from zprof.causes.fix import WRAP_BLOCKS, Fix, measure_sizes
from zprof.model.findings import Finding
from zprof.model.plan import Change
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step.message_sizes import (
    UNITS_PER_BLOCK,
    ResizedMessages,
    find_small_messages,
    find_unknown_latency,
    rate_small_messages,
)
from zprof.step.play import PlayedStep
from zprof.step.tasks import Graph

_FIX = Fix(
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

CAUSE = Cause(
    id="ZP404",
    name="units_too_small",
    meaning="Wrapped units are so small that gathering one takes longer than computing it, "
    "on a link that is fine.",
    # each message also waits for its last rank, so fewer messages wait less
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns"),
    # units that wait for a normal latency wait less often if they are larger
    produces=(
        Sign.SHORT_MESSAGES,
        Sign.SLOW_MESSAGES,
        Sign.LATE_GATHERS,
        Sign.GATHERS_OF_BACKWARD,
        Sign.EXPOSED_ROLE,
    ),
    proof=Proof.SPEEDS,
    outranks_signs=True,
    sentence="{units}, each gathering {size:bytes} in {each:ns} while it computes for only {forward:ns} "
    "(exposed {exposed:ns} {per_step})",
    observed="each block is {parts}: with one {part} per block {step_is} shorter",
    evidence={
        "unit_forward_compute": ("compute of a unit's forward, approximately", Unit.NS),
        "units_per_block": ("wrapped units per block", Unit.COUNT),
        "gathers_per_block": ("all_gathers of one block", Unit.COUNT),
        "latency_of_one": ("latency of one all_gather", Unit.NS),
    },
    fix=_FIX,
    disprove="wrap entire blocks and record again: if the gathers stay exposed as long, their number "
    "was not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if larger units would hide the exposed gathers."""
    missing = find_unknown_latency(analysis)
    if missing:
        return missing
    small = find_small_messages(analysis)
    if small is None or not small.units_are_at_fault or not small.is_worth_it:
        return None
    gathers, forward_ns = small.step.traffic.gathers, small.step.forward_ns
    assert gathers is not None, "units are at fault if units are gathered"
    units = f"{gathers.count:g} all_gathers {analysis.time.basis}"
    per_block = [] if small.per_block is None else [make_fact("units_per_block", small.per_block)]
    return Signal(
        confidence=rate_small_messages(small),
        words={
            "units": f"each block is split into {small.per_block:g} units" if small.are_parts else units,
            "size": gathers.bytes,
            "each": gathers.each_ns,
            "forward": forward_ns,
            "exposed": small.step.exposed_ns,
        },
        facts=[*small.facts, make_fact("unit_forward_compute", forward_ns), *per_block],
        saving_ns=small.saving_ns,
        numbers=measure_sizes(analysis, small.sizes[-1]),
    )


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the step with one message per block, if blocks are known and have several messages.

    If it takes as long although names show parts of blocks, the signs in the recording remain valid. Units
    larger than blocks cannot be played.
    """
    sizes, messages = step.sizes, step.sizes.messages
    units, gathers = messages.units_per_block, messages.gathers_per_block
    if not sizes.has_blocks or gathers <= UNITS_PER_BLOCK:
        return None
    merged = sizes.merge()
    gain_ns = max((step.gain_ns(graph) or 0.0 for graph in merged), default=0.0)
    if gain_ns < MIN_GAIN_RATIO * step.step_ns:
        small = find_small_messages(step.analysis)
        if small is not None and small.are_parts:
            return None
    count = mean_per_step(step.analysis, len(messages.gathers) * len(sizes.graph.ranks))
    are_units = units > UNITS_PER_BLOCK
    return Observation(
        changed=merged,
        words={
            "parts": f"split into {units:g} units" if are_units else f"gathered in {gathers:g} messages",
            "part": "unit" if are_units else "message",
        },
        facts=[
            make_fact("units_per_block", units),
            make_fact("gathers_per_block", gathers),
            make_fact("all_gathers_per_step", count),
            make_fact("latency_of_one", sizes.max_latency_ns),
        ],
        numbers=measure_sizes(step.analysis, max(units, gathers)),
    )


@CAUSE.edit
def merge_units(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step with one message per block."""
    sizes = ResizedMessages(analysis, graph)
    return sizes.merge() if graph.has_kernels and sizes.has_parts else []


@CAUSE.reschedule
def wrap_larger_units(analysis: RunAnalysis, finding: Finding) -> Sequence[Change]:
    """Return the unit sizes to play, for ranks whose kernels were not recorded."""
    small = find_small_messages(analysis)
    sizes = small.sizes if small is not None else ()
    return [Change(units_merged=size) for size in sorted({max(2, round(each)) for each in sizes})]
