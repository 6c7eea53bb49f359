"""ZP212: autocast keeps a copy of each weight in a smaller type.

Autocast converts an fp32 weight when an operator needs it in 16 bit, and caches the copy until the outermost
autocast ends; in training, autograd keeps it for the backward pass. The copies are half of the weights. A
copy is recognized by an autocast frame in its stack, and by half the size of a parameter. Reported if they
are at least 3 % of the peak.
"""

from collections.abc import Mapping

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.analysis.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    measure_uncertain_ratio,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.model.findings import Confidence
from zprof.model.memory import WindowKind
from zprof.model.quantities import Unit
from zprof.model.tenants import WEIGHT_COPY, Tenant

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

CAUSE = Cause(
    id="ZP212",
    name="weight_copies",
    meaning="Autocast keeps a copy of each weight in 16 bit beside the fp32 weights.",
    needs=(Need.MEMORY,),
    sentence="autocast's copies of weights are {share:percent} of rank {rank}'s peak ({size:bytes} of "
    "{peak:bytes}), beside the fp32 weights ({weights:bytes})",
    evidence={
        "weight_copies": ("copies of weights", Unit.BYTES),
        "weights": ("weights that they are made of", Unit.BYTES),
    },
    action="weights in 16 bit instead of autocast's copies",
    disprove="run once without autocast: exactly these copies must be gone",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if copies of the weights take a part of the peak."""
    largest = find_largest_rank(analysis)
    if largest is None:
        return None
    parts = [part for part in largest.memory.parts if part.sub == WEIGHT_COPY]
    size = sum(part.bytes for part in parts)
    if size < _SHARE_RATIO * largest.peak_bytes or not is_worth(size, largest):
        return None
    trains = any(part.tenant == Tenant.ACTIVATIONS.value for part in parts)
    is_forward = any(window.kind is WindowKind.INFERENCE for window in analysis.memory.windows)
    weights = largest.of(Tenant.PARAMETERS)
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.HIGH, largest, measure_uncertain_ratio(parts)),
        facts=[
            make_fact("weight_copies", size, rank=largest.rank),
            make_fact("weights", weights, rank=largest.rank),
        ],
        saving_bytes=_estimate_saving(largest, size, weights if is_forward else 0),
        words={"share": size / largest.peak_bytes, "size": size, "weights": weights},
        fix=_TRAINING_FIX if trains else _INFERENCE_FIX,
    )


def _estimate_saving(largest: LargestRank, copy_bytes: int, halved_bytes: int) -> tuple[float, float]:
    """Return the bytes freed: the copies, and at most half of the weights as well."""

    def removable(freed_bytes: float) -> float:
        def remove(_: str, held: Mapping[Tenant, int]) -> float:
            return min(freed_bytes, sum(held.values()))

        return largest.estimate_peak_reduction(remove)

    return (removable(copy_bytes), removable(copy_bytes + halved_bytes / 2))
