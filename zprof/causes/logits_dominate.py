"""ZP204: the output layer's [tokens, vocabulary] tensors are a large part of the peak.

The logits, their softmax or log-softmax, and the gradients of both are alive at once when the backward pass
starts, often in fp32. They are found among the largest allocations at the peak: activations and temporary
buffers of a module named like an output layer or a loss, and tensors of the same size (or twice that, for an
fp32 copy of 16-bit data) that the root module allocated. Without such a name: two or more tensors of the root
module at least four times as large as any other activation, with low confidence. An imported history has no
modules: there, tensors as large as the largest one whose stack shows a loss.

Reported if they hold at least a fifth of the peak. With the loss computed in eight chunks, one chunk of each
copy remains, so hi = 7/8. The largest tensor itself may have to remain, so lo excludes it.
"""

from collections.abc import Mapping

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.analysis.memory.largest_rank import (
    LargestRank,
    Logits,
    find_largest_rank,
    find_logits,
    format_module,
    is_worth,
    limit_confidence,
    locate_allocation,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.causes.fix import ANY, Fix
from zprof.model.findings import Confidence, cap_confidence
from zprof.model.memory import Basis
from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant
from zprof.model.training import Framework

_CHUNKS = 8

CAUSE = Cause(
    id="ZP204",
    name="logits_dominate",
    meaning="Tensors of [tokens, vocabulary] are a large part of the peak.",
    needs=(Need.MEMORY,),
    sentence="{count} tensors of {module} with up to {each:bytes} each are {share:percent} of rank {rank}'s "
    "peak ({size:bytes} of {peak:bytes}): the logits and their copies",
    evidence={"largest_of_logits": ("{tenant} {part} of {module}", Unit.BYTES)},
    fix=Fix(
        forms={},
        settings={
            (
                Framework.TRANSFORMERS,
                ANY,
            ): "TrainingArguments(use_liger_kernel=True)  # a fused linear cross entropy,\n"
            "which never materializes the logits",
        },
        general="compute the loss in chunks of the sequence, each recomputed in the backward:\n"
        "    for h, y in zip(hidden.chunk(8, 1), labels.chunk(8, 1)):\n"
        "        loss += checkpoint(of_head, h, y, use_reentrant=False)\n"
        "or a fused linear cross entropy (Liger: LigerFusedLinearCrossEntropyLoss), which never materializes "
        "the logits",
    ),
    action="compute the loss in chunks, or with a fused linear cross entropy",
    disprove="record with half of the vocabulary, or half of the tokens: logits must halve in both cases",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if tensors of the size of the logits are a large part of the peak."""
    largest = find_largest_rank(analysis)
    logits = find_logits(largest) if largest else None
    if largest is None or logits is None:
        return None
    saving = _estimate_saving(largest, logits)
    if not is_worth(saving[1], largest):
        return None
    rows = logits.rows
    first = max(rows, key=lambda row: row.bytes)
    weak_ratio = sum(row.bytes for row in rows if row.basis is not Basis.TAGGED) / logits.bytes
    confidence = Confidence.HIGH if len(rows) >= 2 else Confidence.MEDIUM
    return make_memory_signal(
        largest,
        confidence=cap_confidence(
            limit_confidence(confidence, largest, weak_ratio), confidence if logits.named else Confidence.LOW
        ),
        facts=[
            make_fact(
                "largest_of_logits",
                row.bytes,
                rank=largest.rank,
                tenant=row.tenant,
                part=format_module(row.sub),
                module=format_module(row.module),
            )
            for row in rows
        ],
        saving_bytes=saving,
        words={
            "count": len(rows),
            "module": format_module(first.module),
            "each": first.bytes,
            "share": logits.bytes / largest.peak_bytes,
            "size": logits.bytes,
        },
        locate=lambda: locate_allocation(analysis, rows),
    )


def _estimate_saving(largest: LargestRank, logits: Logits) -> tuple[float, float]:
    def removable(_: str, held: Mapping[Tenant, int]) -> float:
        there = held.get(Tenant.ACTIVATIONS, 0) + held.get(Tenant.TEMPORARY_BUFFERS, 0)
        return min(there, logits.bytes) * (1 - 1 / _CHUNKS)

    high = largest.estimate_peak_reduction(removable)
    return (min(high, logits.bytes - max(row.bytes for row in logits.rows)), high)
