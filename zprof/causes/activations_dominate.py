"""ZP203: tensors saved for the backward pass are most of the peak.

Reported from half of the peak, excluding the logits (ZP204), if nothing is recomputed yet. With L
checkpointed blocks, the inputs of all blocks remain, and the activations of the block being recomputed:

    frees A (1 - q - 1/L)

q is the input's share of a block's saved activations: 1/17 for a transformer block in 16 bit (2sbh of 34sbh
bytes, arXiv 2205.05198, section 4), a quarter for a block that saves little. The peak is limited by the
phases without activations. If no blocks are seen, L is taken as 2 to 32.
"""

from collections.abc import Mapping

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.analysis.memory.largest_rank import (
    LargestRank,
    count_blocks,
    find_largest_rank,
    find_logits,
    is_worth,
    limit_confidence,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.causes.fix import ANY, CHECKPOINT_BLOCKS, Fix, choose_fix
from zprof.model.findings import Confidence
from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, Framework

#: Minimum share of the peak: for a finding, and for high confidence.
_SHARE_RATIO, _SURE_SHARE_RATIO = 0.50, 0.60
#: A run counts as checkpointed from this share of recomputed bytes.
_CHECKPOINTED_RATIO = 0.05
_INPUT_RATIOS = (1 / 4, 1 / 17)
_UNKNOWN_BLOCKS = (2, 32)
_CHECKPOINT_SUBS = frozenset({"recomputed", "ckpt_input", "checkpoint", "pa_shard", "offload"})

_CHECKPOINT = (
    "model.gradient_checkpointing_enable()    # Hugging Face and peft, before sharding\n"
    "# else each block in the model's forward:\n"
    "from torch.utils.checkpoint import checkpoint\n"
    "x = checkpoint(block, x, use_reentrant=False)"
)
_FIX = Fix(
    forms={
        Engine.DEEPSPEED: "model.gradient_checkpointing_enable()\n"
        '"activation_checkpointing": {"partition_activations": true}  (with tensor parallelism)',
        Engine.REFERENCE: "ActivationConfig(checkpoint=True); with tensor parallelism partition=True too\n"
        "zprof train --checkpoint",
        Engine.FSDP2: _CHECKPOINT,
    },
    settings={
        **CHECKPOINT_BLOCKS,
        (Framework.TRANSFORMERS, ANY): "TrainingArguments(gradient_checkpointing=True)",
    },
    general=_CHECKPOINT,
)

CAUSE = Cause(
    id="ZP203",
    name="activations_dominate",
    meaning="What autograd keeps for the backward is most of the peak, and none of it is recomputed.",
    needs=(Need.MEMORY,),
    sentence="activations are {share:percent} of rank {rank}'s peak ({size:bytes} of {peak:bytes}), "
    "and nothing is recomputed",
    evidence={
        "activations_without_logits": ("activations at the peak, without logits", Unit.BYTES),
        "activations_per_block": ("one block, on average", Unit.BYTES),
    },
    fix=_FIX,
    action="checkpoint the blocks, or a smaller micro-batch",
    disprove="halve the micro-batch and record again: activations must halve as well",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if activations are most of the peak and nothing is recomputed."""
    largest = find_largest_rank(analysis)
    if largest is None:
        return None
    logits = find_logits(largest)
    size = largest.of(Tenant.ACTIVATIONS) - (logits.activation_bytes if logits else 0)
    share = size / largest.peak_bytes
    if share < _SHARE_RATIO or not is_worth(size, largest) or _is_checkpointed(largest, size):
        return None
    blocks = count_blocks(analysis)
    saving = _estimate_saving(largest, size, blocks)
    if not is_worth(saving[1], largest):
        return None
    confidence = Confidence.HIGH if blocks and share >= _SURE_SHARE_RATIO else Confidence.MEDIUM
    if largest.memory.lower_bound:
        confidence = Confidence.LOW  # the true peak may be higher, so their share smaller
    facts = [make_fact("activations_without_logits", size, rank=largest.rank)]
    if blocks:
        facts.append(make_fact("activations_per_block", size / blocks, rank=largest.rank))
    return make_memory_signal(
        largest,
        confidence=limit_confidence(confidence, largest, largest.uncertain_ratio(Tenant.ACTIVATIONS)),
        facts=facts,
        saving_bytes=saving,
        words={"share": share, "size": size},
        fix=choose_fix(analysis, _FIX)
        + "\nor halve the micro-batch and accumulate; sharding does not reduce activations",
    )


def _is_checkpointed(largest: LargestRank, activation_bytes: int) -> bool:
    if any(phase.phase == "recompute" for phase in largest.phases):
        return True
    recomputed = sum(
        part.bytes
        for part in largest.memory.parts
        if part.tenant == Tenant.ACTIVATIONS.value and part.sub in _CHECKPOINT_SUBS
    )
    return recomputed >= _CHECKPOINTED_RATIO * activation_bytes


def _estimate_saving(largest: LargestRank, activation_bytes: int, blocks: int | None) -> tuple[float, float]:
    few, many = (blocks, blocks) if blocks else _UNKNOWN_BLOCKS
    least, most = _INPUT_RATIOS
    low, high = (max(0.0, 1 - q - 1 / count) for q, count in ((least, few), (most, many)))

    def measure_freed(share: float) -> float:
        def removable(_: str, held: Mapping[Tenant, int]) -> float:
            return share * min(activation_bytes, held.get(Tenant.ACTIVATIONS, 0))

        return largest.estimate_peak_reduction(removable)

    return (measure_freed(low), measure_freed(high))
