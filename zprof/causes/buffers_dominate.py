"""ZP201: communication buffers are far larger than the units in flight require.

A sharded step needs the parameters of two units (one in use, one prefetched) and the gradients of two (one
reduced, one produced), and FSDP2 holds a gathered unit twice while it copies it out of the flat buffer: six
units U. The minimum is two units, one gathered and one reduced. A module outside of the blocks that is
gathered separately (an embedding) is counted by itself. The program does not control what a backend allocates
in its collectives; that memory shrinks in proportion.

    C = buffers without the backend's      lo = C - 6 U,  hi = C - 2 U + the backend's share of that

Reported if lo is at least 5 % of the peak and the buffers are at least 30 % of the peak or more than what
sharding saves. A finding has medium severity from 5 %. 30 % is slightly above the 25 % that a healthy stage 3
with four units on two ranks has without the backend's part.

DDP keeps gradients in addition to buckets of the same size. There the freed bytes are the smaller of the two
at each phase's peak, because ``gradient_as_bucket_view`` merges them. Gradients that are already alive in the
forward do not count: they belong to ZP207.
"""

from collections.abc import Mapping

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact
from zprof.analysis.memory.largest_rank import (
    MISSING_FACTS,
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    measure_buffers,
    read_sharding,
    saved_bytes,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.causes.fix import WRAP_BLOCKS, Fix, round_up
from zprof.model.findings import Confidence
from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, Framework, Phase

_SHARE_RATIO = 0.30
_EXCESS_RATIO = 0.05
_BUFFERS = Tenant.COMMUNICATION_BUFFERS

_DDP_FIX = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
_FIX = Fix(
    forms={
        Engine.FSDP2: "for block in model.layers:  # one unit per block, not one for the entire model\n"
        "    fully_shard(block, reshard_after_forward=True)\n"
        "fully_shard(model)\n"
        "and prefetch at most one block ahead: set_modules_to_forward_prefetch([next_block])",
        Engine.FSDP1: "FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}),\n"
        "                         limit_all_gathers=True)",
        Engine.DEEPSPEED: '"zero_optimization": {"reduce_bucket_size": $unit_elements,\n'
        '                      "stage3_prefetch_bucket_size": $unit_elements,\n'
        '                      "stage3_max_live_parameters": $live_elements}\n'
        "in elements; the default buckets of 5e8 are 1 GB each in 16 bit, whatever the size of the model",
        Engine.DDP: _DDP_FIX,
        Engine.ZERO1: _DDP_FIX,
        Engine.REFERENCE: "ZeroConfig(constant_buffers=None, reduce_buckets=2, forward_prefetch=1,\n"
        "           backward_prefetch=1, keep_after_forward='none')",
    },
    settings={
        **WRAP_BLOCKS,
        (Framework.ACCELERATE, Engine.DDP): "DistributedDataParallelKwargs(gradient_as_bucket_view=True)",
        (Framework.LIGHTNING, Engine.DDP): "DDPStrategy(gradient_as_bucket_view=True)",
    },
)

CAUSE = Cause(
    id="ZP201",
    name="buffers_dominate",
    meaning="Communication buffers hold far more memory than the units in flight need.",
    needs=(Need.MEMORY,),
    sentence="communication buffers hold {size:bytes} of rank {rank}'s {peak:bytes} ({share:percent}), but "
    "the units in flight need only {needed:bytes}",
    evidence={
        "communication_buffers_at_peak": ("communication buffers at the peak", Unit.BYTES),
        "allocated_inside_backend": ("allocated inside the backend", Unit.BYTES),
        "needed_buffers": ("six units, and twice the separately gathered module", Unit.BYTES),
        "whole_model_on_wire": ("the entire model on the wire", Unit.BYTES),
        "saved_by_sharding": ("saved by sharding", Unit.BYTES),
        "ddp_buckets_at_peak": ("DDP's buckets at the peak, at most", Unit.BYTES),
    },
    fix=_FIX,
    disprove="halve the buffer or unit size and record again: if the communication buffers at the peak "
    "do not shrink, something else holds them",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if communication buffers are larger than the step needs."""
    largest = find_largest_rank(analysis)
    if largest is None or analysis.run.world_size == 1:
        return None
    if analysis.training.engine == "ddp":
        return _find_ddp_buckets(largest)
    buffers = largest.of(_BUFFERS)
    if not is_worth(buffers, largest):
        return None
    is_large = buffers >= _SHARE_RATIO * largest.peak_bytes
    sharding = read_sharding(analysis)
    if sharding is None:
        return MISSING_FACTS if is_large else None
    saved = saved_bytes(largest, sharding)
    scratch, needed, low, high = measure_buffers(largest, sharding)
    is_excess = min(low, high) >= _EXCESS_RATIO * largest.peak_bytes and is_worth(low, largest)
    if not is_excess or not (is_large or (sharding.stage > 0 and buffers > saved)):
        return None
    confidence = Confidence.HIGH if buffers > 2 * sharding.wire_bytes else Confidence.MEDIUM
    return make_memory_signal(
        largest,
        confidence=limit_confidence(confidence, largest, largest.uncertain_ratio(_BUFFERS)),
        facts=[
            make_fact("communication_buffers_at_peak", buffers, rank=largest.rank),
            make_fact("allocated_inside_backend", scratch, rank=largest.rank),
            make_fact("needed_buffers", needed),
            make_fact("whole_model_on_wire", sharding.wire_bytes),
            make_fact("saved_by_sharding", saved, rank=largest.rank),
        ],
        saving_bytes=(low, high),
        words={"size": buffers, "share": buffers / largest.peak_bytes, "needed": needed},
        numbers={
            "unit_elements": round_up(sharding.unit_bytes / (analysis.training.communication_bytes or 2))
        },
    )


def _find_ddp_buckets(largest: LargestRank) -> Signal | None:
    forwards = [phase for phase in largest.phases if phase.phase == Phase.FORWARD.value]
    early = max((phase.tenants.get(Tenant.GRADIENTS, 0) for phase in forwards), default=0)

    def measure_twice(_: str, held: Mapping[Tenant, int]) -> float:
        return min(held.get(_BUFFERS, 0), max(0, held.get(Tenant.GRADIENTS, 0) - early))

    saving = largest.estimate_peak_reduction(measure_twice)
    if saving < _EXCESS_RATIO * largest.peak_bytes or not is_worth(saving, largest):
        return None
    buffers, gradients = largest.of(_BUFFERS), largest.of(Tenant.GRADIENTS)
    # A bucket is as large as its gradients, which are as large as their parameters.
    buckets = min(buffers, largest.of(Tenant.PARAMETERS)) or buffers
    bound, others = (
        ("", "") if buckets == buffers else ("up to ", " ({rest:bytes} of other buffers are not theirs)")
    )
    uncertain_ratio = largest.uncertain_ratio(_BUFFERS, Tenant.GRADIENTS)
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.MEDIUM, largest, uncertain_ratio),
        facts=[
            make_fact("ddp_buckets_at_peak", buckets, rank=largest.rank),
            make_fact("communication_buffers_at_peak", buffers, rank=largest.rank),
            make_fact("gradients_at_peak", gradients, rank=largest.rank),
        ],
        saving_bytes=(saving / 2, saving),
        words={"size": buckets, "gradients": gradients, "rest": buffers - buckets},
        sentence=f"DDP's buckets hold {bound}{{size:bytes}} of rank {{rank}}'s {{peak:bytes}} in addition to "
        f"{{gradients:bytes}} of gradients: the same values are stored twice{others}",
        fix=_DDP_FIX,
        disprove="set gradient_as_bucket_view=True and record again: if the peak does not drop, it occurs "
        "before gradients exist",
    )
