"""ZP213: parameters, gradients and optimizer state fill a device.

Reported for imported histories, which do not contain the number of ranks, if the three are at least 60 % of
the peak. Recorded runs know their ranks: ZP205 and ZP206 judge them. The fixes, by what they free:

    moments in 8 bit       3/4 of the moments, if those are in fp32
    sharding over N ranks  (1 - 1/N) of all three
"""

from collections.abc import Mapping

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.analysis.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.model.findings import Confidence
from zprof.model.memory import WindowKind
from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant

_SHARE_RATIO = 0.60
_STATES = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
#: From this many bytes per byte of parameters, there are two moments in the parameters' type, or larger ones.
_FULL_MOMENTS_RATIO = 1.5
_EIGHT_BIT_RATIO = 0.75
#: Ranks assumed for the upper end of the saving.
_RANKS = 8
_SHARD = (
    "from torch.distributed.fsdp import fully_shard\n"
    "for block in model.layers:\n"
    "    fully_shard(block)\n"
    "fully_shard(model)   # before the optimizer is built; N ranks keep 1/N each"
)
_EIGHT_BIT = "or on one device: bitsandbytes.optim.AdamW8bit(model.parameters(), lr=...) instead of AdamW"
_INFERENCE = "model.to(torch.bfloat16) if the weights are in fp32: half of them\nor 8-bit or 4-bit weights"

CAUSE = Cause(
    id="ZP213",
    name="states_dominate",
    meaning="Parameters, gradients and optimizer state of one device are most of its peak.",
    needs=(Need.MEMORY,),
    sentence="the model's states are {share:percent} of rank {rank}'s peak ({size:bytes} of {peak:bytes})",
    evidence={"{tenant}": ("{name}", Unit.BYTES)},
    action="shard the model's states over the ranks, or states in a smaller type",
    disprove="compare with 16 bytes per parameter of the model (4 each for weights, gradients and two "
    "moments): far fewer bytes mean that the states are sharded already",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if the model states of one device are most of the peak."""
    largest = find_largest_rank(analysis)
    if largest is None or not analysis.memory.windows:
        return None
    size = sum(largest.of(tenant) for tenant in _STATES)
    saving = _estimate_saving(largest)
    if size < _SHARE_RATIO * largest.peak_bytes or not is_worth(saving[1], largest):
        return None
    trains = any(window.kind is WindowKind.TRAINING for window in analysis.memory.windows)
    fixes = [_SHARD, _EIGHT_BIT][: 1 + _has_full_moments(largest)] if trains else [_INFERENCE]
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.MEDIUM, largest, largest.uncertain_ratio(*_STATES)),
        facts=[
            make_fact(
                "{tenant}",
                largest.of(tenant),
                rank=largest.rank,
                tenant=tenant.value,
                name=tenant.value.replace("_", " "),
            )
            for tenant in _STATES
            if largest.of(tenant)
        ],
        saving_bytes=saving,
        words={"share": size / largest.peak_bytes, "size": size},
        fix="\n".join(fixes),
    )


def _has_full_moments(largest: LargestRank) -> bool:
    return largest.of(Tenant.OPTIMIZER_STATE) >= _FULL_MOMENTS_RATIO * max(1, largest.of(Tenant.PARAMETERS))


def _estimate_saving(largest: LargestRank) -> tuple[float, float]:
    """Return the bytes freed: by 8-bit moments, else half of the weights, and by sharding over 8 ranks."""

    def least(_: str, held: Mapping[Tenant, int]) -> float:
        if _has_full_moments(largest):
            return _EIGHT_BIT_RATIO * held.get(Tenant.OPTIMIZER_STATE, 0)
        return held.get(Tenant.PARAMETERS, 0) / 2

    def most(_: str, held: Mapping[Tenant, int]) -> float:
        return (1 - 1 / _RANKS) * sum(held.get(tenant, 0) for tenant in _STATES)

    return (largest.estimate_peak_reduction(least), largest.estimate_peak_reduction(most))
