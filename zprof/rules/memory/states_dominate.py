"""ZP213 states_dominate: parameters, gradients and optimizer state of one device fill it.

Reported for imported histories, which do not tell how many ranks there are, if the three are at least 60 % of
the peak. Recorded runs know their ranks: ZP205 and ZP206 judge them. The fixes, by what they free:

    moments in 8 bit       3/4 of the moments, if those are in fp32
    sharding over N ranks  (1 - 1/N) of all three
"""

from collections.abc import Mapping

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.memory_history import WindowKind
from zprof.model.tenants import Tenant
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
)

_SHARE_RATIO = 0.60
_STATES = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
#: Moments of at least so many bytes per byte of parameters are two in the type of the parameters, or larger.
_FULL_MOMENTS_RATIO = 1.5
_EIGHT_BIT_RATIO = 0.75
#: The ranks that the upper end of the saving assumes.
_RANKS = 8
_SHARD = (
    "from torch.distributed.fsdp import fully_shard\n"
    "for block in model.layers:\n"
    "    fully_shard(block)\n"
    "fully_shard(model)   # before the optimizer is built; N ranks keep 1/N each"
)
_EIGHT_BIT = "or on one device: bitsandbytes.optim.AdamW8bit(model.parameters(), lr=...) instead of AdamW"
_INFERENCE = "model.to(torch.bfloat16) if the weights are in fp32: half of them\nor 8-bit or 4-bit weights"


def states_dominate(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the model states of one device are most of the peak."""
    big = find_largest_rank(analysis)
    if big is None or not analysis.memory.windows:
        return None
    state_bytes = sum(big.of(tenant) for tenant in _STATES)
    saving = _estimate_saving(big)
    if state_bytes < _SHARE_RATIO * big.peak_bytes or not is_worth(saving[1], big):
        return None
    trains = any(window.kind is WindowKind.TRAINING for window in analysis.memory.windows)
    has_moments = _has_full_moments(big)
    fix = [_SHARD, _EIGHT_BIT][: 1 + has_moments] if trains else [_INFERENCE]
    return make_memory_finding(
        analysis,
        Cause.STATES_DOMINATE,
        big,
        sentence=f"the model's states are {format_percent(state_bytes / big.peak_bytes)} of rank "
        f"{big.rank}'s peak ({format_bytes(state_bytes)} of {format_bytes(big.peak_bytes)})",
        evidence=[
            make_fact(
                "{tenant}",
                big.of(tenant),
                rank=big.rank,
                tenant=tenant.value,
                name=tenant.value.replace("_", " "),
            )
            for tenant in _STATES
            if big.of(tenant)
        ],
        saving_bytes=saving,
        confidence=limit_confidence(Confidence.MEDIUM, big, big.uncertain_ratio(*_STATES)),
        fix="\n".join(fix),
        disprove="compare with 16 bytes per parameter of the model (4 each for weights, gradients and two "
        "moments): far fewer bytes mean that the states are sharded already",
    )


def _has_full_moments(big: LargestRank) -> bool:
    return big.of(Tenant.OPTIMIZER_STATE) >= _FULL_MOMENTS_RATIO * max(1, big.of(Tenant.PARAMETERS))


def _estimate_saving(big: LargestRank) -> tuple[float, float]:
    """Return the bytes freed by 8-bit moments, or half of the weights without any, and by sharding over 8."""

    def least(_: str, held: Mapping[Tenant, int]) -> float:
        if _has_full_moments(big):
            return _EIGHT_BIT_RATIO * held.get(Tenant.OPTIMIZER_STATE, 0)
        return held.get(Tenant.PARAMETERS, 0) / 2

    def most(_: str, held: Mapping[Tenant, int]) -> float:
        return (1 - 1 / _RANKS) * sum(held.get(tenant, 0) for tenant in _STATES)

    return (big.estimate_peak_reduction(least), big.estimate_peak_reduction(most))
