"""ZP211: attention scores are kept for each head and each pair of tokens.

A fused attention kernel (FlashAttention, arXiv 2205.14135) computes the softmax in tiles and keeps only its
output and one number per row. The scores are found by their stacks: the output of a softmax within attention,
and everything of the same size that attention allocates. Reported from 5 % of the peak.
"""

import re
from collections.abc import Mapping, Sequence

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.analysis.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    locate_allocation,
    measure_uncertain_ratio,
)
from zprof.causes.cause import Cause, Need, Signal, make_memory_signal
from zprof.causes.fix import ANY, Fix
from zprof.model.findings import Confidence
from zprof.model.memory import Allocation
from zprof.model.quantities import Unit
from zprof.model.tenants import Tenant
from zprof.model.training import Framework

_SHARE_RATIO = 0.05
_TENANTS = (Tenant.ACTIVATIONS.value, Tenant.TEMPORARY_BUFFERS.value)
#: File and function names, the last parts of a frame ``path/file.py:12 function``.
_ATTENTION = re.compile(r"attention|attn|sdpa", re.ASCII | re.IGNORECASE)
#: A softmax, but not a log-softmax, which belongs to a loss. Classifiers have a softmax too, on small
#: tensors.
_SOFTMAX_OPERATORS = frozenset({"_softmax", "softmax", "_safe_softmax"})
_SOFTMAX = re.compile(r"softmax", re.ASCII | re.IGNORECASE)
_MAX_FACTS = 3

CAUSE = Cause(
    id="ZP211",
    name="attention_scores",
    meaning="The matrix of attention scores is kept, for each head and each pair of tokens.",
    needs=(Need.MEMORY,),
    sentence="matrices of attention scores, {each:bytes} each, are {share:percent} of rank {rank}'s peak "
    "({size:bytes} of {peak:bytes})",
    evidence={"scores": ("blocks of {operator}: {blocks}", Unit.BYTES)},
    fix=Fix(
        forms={},
        settings={
            (Framework.TRANSFORMERS, ANY): 'from_pretrained(..., attn_implementation="sdpa")  '
            '(or "flash_attention_2")',
        },
        general="out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        "instead of softmax(q @ k.transpose(-2, -1) / sqrt(d)) @ v: one fused kernel, no matrix of scores",
    ),
    action="a fused attention kernel, scaled_dot_product_attention",
    disprove="halve the sequence length and record again: the scores must fall to a quarter",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if matrices of attention scores are a part of the peak."""
    largest = find_largest_rank(analysis)
    rows = _find_scores(largest.top) if largest else ()
    if largest is None or not rows:
        return None
    score_bytes = sum(row.held_bytes for row in rows)
    saving = _estimate_saving(largest, score_bytes)
    share = score_bytes / largest.peak_bytes
    if share < _SHARE_RATIO or not is_worth(saving[1], largest):
        return None
    return make_memory_signal(
        largest,
        confidence=limit_confidence(Confidence.HIGH, largest, measure_uncertain_ratio(rows)),
        facts=[
            make_fact(
                "scores",
                row.held_bytes,
                rank=largest.rank,
                operator=row.operator or row.tenant,
                blocks=row.count,
            )
            for row in sorted(rows, key=lambda row: -row.held_bytes)[:_MAX_FACTS]
        ],
        saving_bytes=saving,
        words={
            "each": max(rows, key=lambda row: row.held_bytes).bytes,
            "share": share,
            "size": score_bytes,
        },
        locate=lambda: locate_allocation(analysis, rows),
    )


def _find_scores(top: Sequence[Allocation]) -> tuple[Allocation, ...]:
    """Return the allocations that hold attention scores.

    A softmax allocates them. Other allocations of the same function or of attention, with the same size or
    half of it (16 bit), are copies of them. Row maxima and sums are far smaller.
    """
    rows = [row for row in top if row.tenant in _TENANTS]
    softmaxes = [
        row
        for row in rows
        if row.operator in _SOFTMAX_OPERATORS or (_matches(_SOFTMAX, row) and _matches(_ATTENTION, row))
    ]
    size = max((row.bytes for row in softmaxes), default=0)
    places = {_find_function(row) for row in softmaxes}
    return tuple(
        row
        for row in rows
        if {row.bytes, row.smallest_bytes or row.bytes} <= {size, size // 2}
        and (row in softmaxes or _matches(_ATTENTION, row) or _find_function(row) in places)
    )


def _find_function(row: Allocation) -> str:
    """Return the file and function of the user's frame, without the line."""
    file, _, rest = row.where.rpartition(":")
    return f"{file} {rest.partition(' ')[2]}"


def _matches(pattern: re.Pattern[str], row: Allocation) -> bool:
    """Return True if an operator, function or file of the stack has such a name."""
    names = (frame.replace("\\", "/").rsplit("/", 1)[-1] for frame in row.stack)
    return any(pattern.search(name) for name in (row.operator, *names))


def _estimate_saving(largest: LargestRank, score_bytes: int) -> tuple[float, float]:
    """Return the bytes freed: scores have the same share in other phases, or are all there is."""

    def held_bytes(held: Mapping[Tenant, int]) -> int:
        return held.get(Tenant.ACTIVATIONS, 0) + held.get(Tenant.TEMPORARY_BUFFERS, 0)

    share = score_bytes / max(score_bytes, held_bytes(largest.memory.tenants))
    return (
        largest.estimate_peak_reduction(lambda _, held: share * held_bytes(held)),
        largest.estimate_peak_reduction(lambda _, held: min(score_bytes, held_bytes(held))),
    )
