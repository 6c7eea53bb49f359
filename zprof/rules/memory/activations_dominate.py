"""ZP203 activations_dominate: tensors saved for the backward are most of the peak.

Reported from half of the peak, excluding the logits (ZP204), if nothing is recomputed yet. With L
checkpointed blocks, the inputs of all blocks remain, and the activations of the block being recomputed:

    frees A (1 - q - 1/L)

q is the input's share of a block's saved activations: 1/17 for a transformer block in 16 bit (2sbh of 34sbh
bytes, arXiv 2205.05198, section 4), a quarter for a block that saves little. The peak is limited by the
phases without activations. If no blocks are seen, L is taken as 2 to 32.
"""

from collections.abc import Mapping

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import ANY, CHECKPOINT_BLOCKS, Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.tenants import Tenant
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    make_memory_finding,
)
from zprof.rules.memory.logits_dominate import find_logits
from zprof.rules.memory.model_structure import count_blocks

_SHARE_RATIO = 0.50
_SURE_SHARE_RATIO = 0.60
#: Minimum share of recomputed bytes for a run to count as checkpointed.
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
_FIXES = Fix(
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


def activations_dominate(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if activations are most of the peak and nothing is recomputed."""
    big = find_largest_rank(analysis)
    if big is None:
        return None
    logits = find_logits(big)
    activation_bytes = big.of(Tenant.ACTIVATIONS) - (logits.activation_bytes if logits else 0)
    if (
        activation_bytes < _SHARE_RATIO * big.peak_bytes
        or not is_worth(activation_bytes, big)
        or _is_checkpointed(analysis, big, activation_bytes)
    ):
        return None
    blocks = count_blocks(analysis)
    saving = _saving(big, activation_bytes, blocks)
    return _finding(analysis, big, activation_bytes, blocks, saving) if is_worth(saving[1], big) else None


def _is_checkpointed(analysis: RunAnalysis, big: LargestRank, activation_bytes: int) -> bool:
    if any(phase.phase == "recompute" for phase in big.phases):
        return True
    recomputed = sum(
        part.bytes
        for part in big.memory.parts
        if part.tenant == Tenant.ACTIVATIONS.value and part.sub in _CHECKPOINT_SUBS
    )
    return recomputed >= _CHECKPOINTED_RATIO * activation_bytes


def _saving(big: LargestRank, activation_bytes: int, blocks: int | None) -> tuple[float, float]:
    few, many = (blocks, blocks) if blocks else _UNKNOWN_BLOCKS
    least, most = _INPUT_RATIOS
    low, high = (max(0.0, 1 - q - 1 / count) for q, count in ((least, few), (most, many)))

    def freed(share: float) -> float:
        def removable(_: str, held: Mapping[Tenant, int]) -> float:
            return share * min(activation_bytes, held.get(Tenant.ACTIVATIONS, 0))

        return big.estimate_peak_reduction(removable)

    return (freed(low), freed(high))


def _finding(
    analysis: RunAnalysis,
    big: LargestRank,
    activation_bytes: int,
    blocks: int | None,
    saving: tuple[float, float],
) -> Finding:
    share = activation_bytes / big.peak_bytes
    sure = Confidence.HIGH if blocks and share >= _SURE_SHARE_RATIO else Confidence.MEDIUM
    if big.memory.lower_bound:
        sure = Confidence.LOW  # the true peak may be higher, and their share smaller
    evidence = [make_fact("activations_without_logits", activation_bytes, rank=big.rank)]
    if blocks:
        evidence.append(make_fact("activations_per_block", activation_bytes / blocks, rank=big.rank))
    return make_memory_finding(
        analysis,
        Cause.ACTIVATIONS_DOMINATE,
        big,
        sentence=f"activations are {format_percent(share)} of rank {big.rank}'s peak "
        f"({format_bytes(activation_bytes)} of {format_bytes(big.peak_bytes)}), and nothing is recomputed",
        evidence=evidence,
        saving_bytes=saving,
        confidence=limit_confidence(sure, big, big.uncertain_ratio(Tenant.ACTIVATIONS)),
        fix=choose_fix(analysis, _FIXES)
        + "\nor halve the micro-batch and accumulate; sharding does not reduce activations",
        disprove="halve the micro-batch and record again: activations must halve as well",
    )
