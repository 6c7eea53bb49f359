"""ZP403 latency_bound_collectives: the time of messages is mostly latency of the link, not transfer of bytes.

T = a + bytes / bandwidth, per kind and group. The latency a is that of the fit over message sizes, or, if
there is only one size, the time of messages of up to 1 KiB (a norm, the loss) between the same ranks; see
zprof/step/links.py. It is the cause if
count * a > 50 % of the messages' time, more than 3 % of the step is exposed, and a is abnormal or
there are no wrapped units (zprof/rules/transfer/small_messages.py; the first two thresholds are from
docs/thresholds.md).

Saving: the step with a link of normal latency.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import BUCKET_SIZE, FEWER_UNITS, Fix, choose_fix, keeps_parameters, measure_sizes
from zprof.model.findings import Cause, Finding
from zprof.model.formatting import format_bytes, format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.model.training import Engine
from zprof.rules.rule import make_finding, rate_severity
from zprof.rules.transfer.small_messages import (
    SmallMessages,
    find_small_messages,
    rate_small_messages,
    unknown_latency_gap,
)

_UNIT_FIXES = Fix(
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
_BUCKET_FIXES = Fix(
    forms={
        Engine.DDP: "DistributedDataParallel(model, bucket_cap_mb=$bucket_mib)",
        Engine.ZERO1: "DistributedDataParallel(model, bucket_cap_mb=$bucket_mib)",
        Engine.DEEPSPEED: '"zero_optimization": {"reduce_bucket_size": $reduce_elements,\n'
        '                      "allgather_bucket_size": $reduce_elements}',
        Engine.REFERENCE: "zero(model, config, units=[Stack])  # a module that contains several blocks",
    },
    settings=BUCKET_SIZE,
)
#: For programs that gather units, and for those that only reduce gradients.
FIXES = (_UNIT_FIXES, _BUCKET_FIXES)


def latency_bound_collectives(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if messages wait for a link with high latency."""
    missing = unknown_latency_gap(analysis, Cause.LATENCY_BOUND_COLLECTIVES)
    if missing:
        return missing
    small = find_small_messages(analysis)
    if small is None or small.units_are_at_fault or not small.sizes:
        return None
    return _finding(analysis, small) if small.is_worth_it else None


def _format_factors(sizes: Sequence[float]) -> str:
    first, last = f"{sizes[0]:g}", f"{sizes[-1]:g}"
    return first if first == last else f"{first} to {last}"


def _finding(analysis: RunAnalysis, small: SmallMessages) -> Finding:
    basis = analysis.time.basis
    saving = small.saving_ns
    traffic = small.step.traffic
    slowest = max(traffic.both, key=lambda messages: messages.count * messages.each_ns)
    fixes = FIXES[0] if traffic.before and not keeps_parameters(analysis) else FIXES[1]
    return make_finding(
        analysis,
        Cause.LATENCY_BOUND_COLLECTIVES,
        sentence=f"{slowest.kind.value}s of {format_bytes(int(slowest.bytes))} take "
        f"{format_ns(slowest.each_ns)}, {format_percent(small.latency_ratio)} of it is latency "
        f"(exposed {format_ns(small.step.exposed_ns)} {basis})",
        evidence=small.evidence,
        saving_ns=saving,
        severity=rate_severity(saving[1], small.wall_ns),
        confidence=rate_small_messages(small),
        fix=f"make messages {_format_factors(small.sizes)} times as large\n"
        + choose_fix(analysis, fixes, measure_sizes(analysis, small.sizes[0])),
        disprove="time an all_reduce of one element between the same ranks, alone in a loop: if that takes "
        "far less than the reported latency, the messages wait for something else",
    )
