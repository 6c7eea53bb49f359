"""ZP212 weight_copies: autocast keeps a copy of each weight in a smaller type.

Autocast converts an fp32 weight when an operator needs it in 16 bit, and caches the copy until the outermost
autocast ends; in training, autograd keeps it for the backward. The copies are half of the weights. They are
found by the frame of autocast's cast and a size of half a parameter's. Reported from 3 % of the peak.
"""

from collections.abc import Mapping

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.memory_history import WindowKind
from zprof.model.tenants import WEIGHT_COPY, Tenant
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
    uncertain_ratio_of,
)

_SHARE_RATIO = 0.03
_INFERENCE_FIX = (
    "model.to(torch.bfloat16) and no autocast: no copies, and the weights take half\n"
    "or torch.autocast(..., cache_enabled=False): copies are freed at once and made anew for each use"
)
_TRAINING_FIX = (
    "weights in bf16 with fp32 masters in the optimizer, sharded over the ranks:\n"
    "fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))\n"
    "or checkpoint the blocks: the copies of a block then live only while it runs"
)


def weight_copies(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if copies of the weights are a part of the peak."""
    big = find_largest_rank(analysis)
    if big is None:
        return None
    parts = [part for part in big.memory.parts if part.sub == WEIGHT_COPY]
    copy_bytes = sum(part.bytes for part in parts)
    if copy_bytes < _SHARE_RATIO * big.peak_bytes or not is_worth(copy_bytes, big):
        return None
    trains = any(part.tenant == Tenant.ACTIVATIONS.value for part in parts)
    is_forward = any(window.kind is WindowKind.INFERENCE for window in analysis.memory.windows)
    parameter_bytes = big.of(Tenant.PARAMETERS)
    return make_memory_finding(
        analysis,
        Cause.WEIGHT_COPIES,
        big,
        sentence=f"autocast's copies of weights are {format_percent(copy_bytes / big.peak_bytes)} of rank "
        f"{big.rank}'s peak ({format_bytes(copy_bytes)} of {format_bytes(big.peak_bytes)}), beside the fp32 "
        f"weights ({format_bytes(parameter_bytes)})",
        evidence=[
            make_fact("weight_copies", copy_bytes, rank=big.rank),
            make_fact("weights", parameter_bytes, rank=big.rank),
        ],
        saving_bytes=_estimate_saving(big, copy_bytes, parameter_bytes if is_forward else 0),
        confidence=limit_confidence(Confidence.HIGH, big, uncertain_ratio_of(parts)),
        fix=_TRAINING_FIX if trains else _INFERENCE_FIX,
        disprove="run once without autocast: exactly these copies must be gone",
    )


def _estimate_saving(big: LargestRank, copy_bytes: int, halved_bytes: int) -> tuple[float, float]:
    """Return the bytes freed: the copies, and at most half of the weights as well."""

    def removable(freed_bytes: float) -> float:
        def remove(_: str, held: Mapping[Tenant, int]) -> float:
            return min(freed_bytes, sum(held.values()))

        return big.estimate_peak_reduction(remove)

    return (removable(copy_bytes), removable(copy_bytes + halved_bytes / 2))
