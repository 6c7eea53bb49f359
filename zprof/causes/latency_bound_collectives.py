"""ZP403: the time of messages is mostly latency of the link, not transfer of bytes.

T = a + bytes / bandwidth, per kind and group. The latency a is fitted over message sizes, or, if there is
only one size, the time of messages of up to 1 KiB (a norm, the loss) between the same ranks; see
zprof/step/links.py. It is the cause if count * a > 50 % of the messages' time, more than 3 % of the step is
exposed, and a is abnormal or there are no wrapped units (zprof/step/message_sizes.py; the first two
thresholds are from docs/thresholds.md).

Saving: the step with a link of normal latency.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact
from zprof.causes.cause import Cause, Observation, Proof, Sign, Signal
from zprof.causes.fix import BUCKET_SIZE, FEWER_UNITS, Fix, choose_fix, keeps_parameters, measure_sizes
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step.message_sizes import (
    ResizedMessages,
    find_small_messages,
    find_unknown_latency,
    rate_small_messages,
)
from zprof.step.play import PlayedStep
from zprof.step.tasks import Graph

#: Growth factor that makes messages less than half latency, if the best size is unknown.
_LARGER_MESSAGES = 4

#: For programs that gather units, and for programs that only reduce gradients.
_FEWER_UNITS = Fix(
    forms={
        Engine.FSDP2: "for first, second in zip(blocks[::2], blocks[1::2]):\n"
        "    fully_shard([first, second])  # one unit, so one all_gather, for two blocks",
        Engine.FSDP1: "FullyShardedDataParallel(model, auto_wrap_policy=partial(\n"
        "    size_based_auto_wrap_policy, min_num_params=$gather_elements))",
        Engine.DEEPSPEED: '"zero_optimization": {"stage3_prefetch_bucket_size": $gather_elements,\n'
        '                      "stage3_param_persistence_threshold": 1000000,\n'
        '                      "reduce_bucket_size": $reduce_elements}',
        Engine.REFERENCE: "zero(model, config, units=[Stack])  # a module that contains several blocks",
    },
    settings=FEWER_UNITS,
)
_LARGER_BUCKETS = Fix(
    forms={
        Engine.DDP: "DistributedDataParallel(model, bucket_cap_mb=$bucket_mib)",
        Engine.ZERO1: "DistributedDataParallel(model, bucket_cap_mb=$bucket_mib)",
        Engine.DEEPSPEED: '"zero_optimization": {"reduce_bucket_size": $reduce_elements,\n'
        '                      "allgather_bucket_size": $reduce_elements}',
        Engine.REFERENCE: "zero(model, config, units=[Stack])  # a module that contains several blocks",
    },
    settings=BUCKET_SIZE,
)
_REPAIR_LINK = (
    "repair the link (NCCL_DEBUG=INFO shows the transport; NCCL_IB_HCA, NCCL_SOCKET_IFNAME choose it), "
    "or send fewer and larger messages:\n"
)

CAUSE = Cause(
    id="ZP403",
    name="latency_bound_collectives",
    meaning="Messages spend their time on the latency of the link, not on their bytes.",
    # each message also waits for its last rank, so fewer messages wait less
    terms=("exposed_transfer_ns", "idle_ns", "exposed_wait_ns"),
    sign=Sign.SHORT_MESSAGES,
    produces=(Sign.SLOW_MESSAGES, Sign.GATHERS_OF_BACKWARD, Sign.EXPOSED_ROLE),
    proof=Proof.SPEEDS,
    outranks_signs=True,
    sentence="{kind}s of {size:bytes} take {each:ns}, {share:percent} of it is latency "
    "(exposed {exposed:ns} {per_step})",
    observed="a collective takes at least {latency:ns} regardless of its size: with the latency of a normal "
    "link {step_is} shorter",
    evidence={"latency_of_one": ("latency of a collective", Unit.NS)},
    fix=_FEWER_UNITS,
    disprove="time an all_reduce of one element between the same ranks, alone in a loop: if that takes "
    "far less than the reported latency, the messages wait for something else",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if messages wait for a link with high latency."""
    missing = find_unknown_latency(analysis)
    if missing:
        return missing
    small = find_small_messages(analysis)
    if small is None or small.units_are_at_fault or not small.is_worth_it:
        return None
    traffic = small.step.traffic
    slowest = max(traffic.both, key=lambda messages: messages.count * messages.each_ns)
    gathers_units = traffic.before and not keeps_parameters(analysis)
    larger = choose_fix(
        analysis,
        _FEWER_UNITS if gathers_units else _LARGER_BUCKETS,
        measure_sizes(analysis, small.sizes[0]),
    )
    factors = " to ".join(dict.fromkeys(f"{size:g}" for size in (small.sizes[0], small.sizes[-1])))
    return Signal(
        confidence=rate_small_messages(small),
        words={
            "kind": slowest.kind.value,
            "size": slowest.bytes,
            "each": slowest.each_ns,
            "share": small.latency_ratio,
            "exposed": small.step.exposed_ns,
        },
        facts=small.facts,
        saving_ns=small.saving_ns,
        fix=f"make messages {factors} times as large\n{larger}",
    )


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the step on a link of normal latency, if its blocks are known."""
    sizes, analysis = step.sizes, step.analysis
    if not sizes.has_blocks:
        return None
    fix = _FEWER_UNITS if sizes.gathers_for_passes else _LARGER_BUCKETS
    return Observation(
        changed=sizes.reduce_latency(),
        words={"latency": sizes.max_latency_ns},
        facts=[make_fact("latency_of_one", sizes.max_latency_ns)],
        fix=_REPAIR_LINK + choose_fix(analysis, fix, measure_sizes(analysis, _LARGER_MESSAGES)),
    )


@CAUSE.edit
def reduce_latency(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step on a link of normal latency."""
    sizes = ResizedMessages(analysis, graph)
    return sizes.reduce_latency() if sizes.has_blocks or not graph.has_kernels else []
