"""ZP201 buffers_dominate: communication buffers are far larger than the units in flight require.

A sharded step needs the parameters of two units (one in use, one prefetched) and the gradients of two (one
reduced, one produced), and FSDP2 holds a gathered unit twice while it copies it out of the flat buffer: six
units U. The minimum is two units, one gathered and one reduced. A module outside of the blocks that is
gathered separately (an embedding) is counted by itself. Memory that a backend allocates in its collectives is
not under the program's control and shrinks in proportion.

    C = buffers without the backend's      lo = C - 6 U,  hi = C - 2 U + the backend's share of that

Reported if lo is at least 5 % of the peak and the buffers are at least 30 % of the peak or more than what
sharding saves. A finding has medium severity from 5 %. 30 % is slightly more than a healthy stage 3 with
four units on two ranks has without the backend's part (25 %).

DDP keeps gradients in addition to buckets of the same size. There the bytes to free are the smaller of the
two at each phase's peak, because ``gradient_as_bucket_view`` merges them. Gradients that are already alive in
the forward do not count: they belong to ZP207.
"""

from collections.abc import Mapping

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import WRAP_BLOCKS, Fix, choose_fix, round_up
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.tenants import BACKEND_SCRATCH, Tenant
from zprof.model.training import Engine, Framework, Phase
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
    missing_facts_gap,
)
from zprof.rules.memory.model_structure import Sharding, is_numbered, read_sharding, saved_bytes

_SHARE_RATIO = 0.30
_EXCESS_RATIO = 0.05
_NEEDED_UNITS = 2
_ALLOWED_UNITS = 6
#: A module gathered separately counts as a unit up to this share of the model; above it, it is the model.
_ALONE_RATIO = 0.5
_BUFFERS = Tenant.COMMUNICATION_BUFFERS
_GATHERED = "gathered_param"

_DDP_FIX = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
_FIXES = Fix(
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


class _Excess(Struct, frozen=True, kw_only=True):
    """Buffers at the peak, the part of the backend, and the range of bytes that could be freed."""

    buffers_bytes: int
    scratch_bytes: int
    needed_bytes: int
    saving_bytes: tuple[float, float]


def buffers_dominate(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if communication buffers are larger than the step needs."""
    big = find_largest_rank(analysis)
    if big is None or analysis.run.world_size == 1:
        return None
    if analysis.training.engine == "ddp":
        return _find_ddp_buckets(analysis, big)
    buffers = big.of(_BUFFERS)
    if not is_worth(buffers, big):
        return None
    sharding = read_sharding(analysis)
    if sharding is None:
        return missing_facts_gap(Cause.BUFFERS_DOMINATE) if buffers >= _SHARE_RATIO * big.peak_bytes else None
    excess = _excess(big, sharding)
    return _finding(analysis, big, sharding, excess) if _is_excessive(big, sharding, excess) else None


def _excess(big: LargestRank, sharding: Sharding) -> _Excess:
    buffers = big.of(_BUFFERS)
    parts = [part for part in big.memory.parts if part.tenant == _BUFFERS.value]
    scratch = sum(part.bytes for part in parts if part.sub == BACKEND_SCRATCH)
    own = max(1, buffers - scratch)
    alone = 2 * _alone_bytes(big, sharding)
    low = max(0, own - _ALLOWED_UNITS * sharding.unit_bytes - alone)
    high = max(0, own - _NEEDED_UNITS * sharding.unit_bytes - alone)
    return _Excess(
        buffers_bytes=buffers,
        scratch_bytes=scratch,
        needed_bytes=_ALLOWED_UNITS * sharding.unit_bytes + alone,
        saving_bytes=(low, _bound_saving(big, high * (1 + scratch / own))),
    )


def _alone_bytes(big: LargestRank, sharding: Sharding) -> int:
    """Return the bytes of the largest gathered unit outside of the blocks."""
    gathered = (
        entry.bytes
        for entry in big.top
        if entry.sub == _GATHERED and not is_numbered(entry.module)
        if entry.bytes < _ALONE_RATIO * sharding.wire_bytes
    )
    return max(gathered, default=0) if sharding.has_blocks else 0


def _bound_saving(big: LargestRank, high: float) -> float:
    return big.estimate_peak_reduction(lambda _, held: min(high, held.get(_BUFFERS, 0)))


def _is_excessive(big: LargestRank, sharding: Sharding, excess: _Excess) -> bool:
    low, high = excess.saving_bytes
    large = excess.buffers_bytes >= _SHARE_RATIO * big.peak_bytes
    more = sharding.stage > 0 and excess.buffers_bytes > saved_bytes(big, sharding)
    return min(low, high) >= _EXCESS_RATIO * big.peak_bytes and is_worth(low, big) and (large or more)


def _finding(analysis: RunAnalysis, big: LargestRank, sharding: Sharding, excess: _Excess) -> Finding:
    sure = Confidence.HIGH if excess.buffers_bytes > 2 * sharding.wire_bytes else Confidence.MEDIUM
    return make_memory_finding(
        analysis,
        Cause.BUFFERS_DOMINATE,
        big,
        sentence=f"communication buffers hold {format_bytes(excess.buffers_bytes)} of rank {big.rank}'s "
        f"{format_bytes(big.peak_bytes)} ({format_percent(excess.buffers_bytes / big.peak_bytes)}), but "
        f"the units in flight need only {format_bytes(excess.needed_bytes)}",
        evidence=[
            make_fact("communication_buffers_at_peak", excess.buffers_bytes, rank=big.rank),
            make_fact("allocated_inside_backend", excess.scratch_bytes, rank=big.rank),
            make_fact("needed_buffers", excess.needed_bytes),
            make_fact("whole_model_on_wire", sharding.wire_bytes),
            make_fact("saved_by_sharding", saved_bytes(big, sharding), rank=big.rank),
        ],
        saving_bytes=excess.saving_bytes,
        confidence=limit_confidence(sure, big, big.uncertain_ratio(_BUFFERS)),
        fix=choose_fix(
            analysis,
            _FIXES,
            {"unit_elements": round_up(sharding.unit_bytes / (analysis.training.communication_bytes or 2))},
        ),
        disprove="halve the buffer or unit size and record again: if the communication buffers at the peak "
        "do not shrink, something else holds them",
    )


def _find_ddp_buckets(analysis: RunAnalysis, big: LargestRank) -> Finding | None:
    early = max(
        (
            phase.tenants.get(Tenant.GRADIENTS, 0)
            for phase in big.phases
            if phase.phase == Phase.FORWARD.value
        ),
        default=0,
    )

    def doubled(_: str, held: Mapping[Tenant, int]) -> float:
        return min(held.get(_BUFFERS, 0), max(0, held.get(Tenant.GRADIENTS, 0) - early))

    saving = big.estimate_peak_reduction(doubled)
    if saving < _EXCESS_RATIO * big.peak_bytes or not is_worth(saving, big):
        return None
    buffers = big.of(_BUFFERS)
    # A bucket is as large as its gradients, which are as large as their parameters.
    buckets = min(buffers, big.of(Tenant.PARAMETERS)) or buffers
    bound = "" if buckets == buffers else "up to "
    others = (
        "" if buckets == buffers else f" ({format_bytes(buffers - buckets)} of other buffers are not theirs)"
    )
    return make_memory_finding(
        analysis,
        Cause.BUFFERS_DOMINATE,
        big,
        sentence=f"DDP's buckets hold {bound}{format_bytes(buckets)} of rank {big.rank}'s "
        f"{format_bytes(big.peak_bytes)} in addition to {format_bytes(big.of(Tenant.GRADIENTS))} of "
        f"gradients: the same values are stored twice{others}",
        evidence=[
            make_fact("ddp_buckets_at_peak", buckets, rank=big.rank),
            make_fact("communication_buffers_at_peak", buffers, rank=big.rank),
            make_fact("gradients_at_peak", big.of(Tenant.GRADIENTS), rank=big.rank),
        ],
        saving_bytes=(saving / 2, saving),
        confidence=limit_confidence(Confidence.MEDIUM, big, big.uncertain_ratio(_BUFFERS, Tenant.GRADIENTS)),
        fix=_DDP_FIX,
        disprove="set gradient_as_bucket_view=True and record again: if the peak does not drop, it occurs "
        "before gradients exist",
    )
