"""ZP204 logits_dominate: the output layer's [tokens, vocabulary] tensors are a large part of the peak.

The logits, their softmax or log-softmax, and the gradients of both are alive at once when the backward
starts, often in fp32. They are found among the largest allocations at the peak: activations and temporary
buffers of a module named like an output layer or a loss, and tensors of the same size (or twice that, for an
fp32 copy of 16-bit data) that the root module allocated. Without such a name: two or more tensors of the root
module at least four times as large as any other activation, with low confidence. An imported history has
no modules: there, tensors of the size of the largest that a loss made, by its stack.

Reported from a fifth of the peak. If computed in eight chunks, one chunk of each copy remains, so hi = 7/8.
The largest tensor itself may have to remain, so lo excludes it.
"""

from collections.abc import Mapping

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fix import ANY, Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_percent
from zprof.model.gaps import Gap
from zprof.model.memory import Allocation, Basis
from zprof.model.tenants import Tenant
from zprof.model.training import Framework
from zprof.rules.evidence import make_fact
from zprof.rules.memory.largest_rank import (
    LargestRank,
    cap_confidence,
    find_largest_rank,
    is_worth,
    limit_confidence,
    locate_allocation,
    make_memory_finding,
)
from zprof.rules.memory.model_structure import format_module, is_output, is_root

_SHARE_RATIO = 0.20
_MIN_SIZE_FACTOR = 4
_CHUNKS = 8
_LOSS_OPERATORS = frozenset({"_log_softmax", "nll_loss_backward", "_log_softmax_backward_data"})
_LOSS_FUNCTIONS = frozenset({"cross_entropy", "log_softmax", "nll_loss", "cross_entropy_loss"})
_TENANTS = frozenset({Tenant.ACTIVATIONS.value, Tenant.TEMPORARY_BUFFERS.value})

_FIX = Fix(
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
)


class Logits(Struct, frozen=True, kw_only=True):
    """Tensors at the peak that are as large as the logits; ``named`` if a module's name identifies them."""

    rows: tuple[Allocation, ...]
    named: bool

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(row.held_bytes for row in self.rows)

    @property
    def activation_bytes(self) -> int:
        """Bytes of the activations among the tensors."""
        return sum(row.held_bytes for row in self.rows if row.tenant == Tenant.ACTIVATIONS.value)


def find_logits(big: LargestRank) -> Logits | None:
    """Return the logits at a rank's peak, None if they are not a large part of it."""
    rows = [row for row in big.top if row.tenant in _TENANTS]
    named = [row for row in rows if is_output(row.module)]
    of_loss = [row for row in rows if _is_of_loss(row)]
    if named:
        size = max(row.bytes for row in named)
        found = [
            row
            for row in rows
            if (is_output(row.module) and row.bytes >= size / 4)
            or (is_root(row.module) and size / 2 <= row.bytes <= 2 * size)
        ]
    else:
        found = _select_like_loss(rows, of_loss) if of_loss else _select_far_larger(rows)
    logits = Logits(rows=tuple(found), named=bool(named or of_loss))
    return logits if logits.bytes >= _SHARE_RATIO * big.peak_bytes and is_worth(logits.bytes, big) else None


def logits_dominate(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if tensors of the size of the logits are a large part of the peak."""
    big = find_largest_rank(analysis)
    logits = find_logits(big) if big else None
    return _finding(analysis, big, logits) if big and logits else None


def _is_of_loss(row: Allocation) -> bool:
    """Return True if a loss made the tensor, by the operator or the functions of its stack."""
    names = (frame.replace("\\", "/").rpartition(" ")[2] for frame in row.stack)
    return row.operator in _LOSS_OPERATORS or any(name in _LOSS_FUNCTIONS for name in names)


def _select_like_loss(rows: list[Allocation], of_loss: list[Allocation]) -> list[Allocation]:
    """Select tensors of the size of the largest that a loss made, or of half of it (in 16 bit)."""
    size = max(row.bytes for row in of_loss)
    return [row for row in rows if {row.bytes, row.smallest_bytes or row.bytes} <= {size, size // 2}]


def _select_far_larger(rows: list[Allocation]) -> list[Allocation]:
    own = [row for row in rows if is_root(row.module)]
    rest = max((row.bytes for row in rows if not is_root(row.module)), default=0)
    size = max((row.bytes for row in own), default=0)
    found = [row for row in own if row.bytes >= size / 2 and row.bytes >= _MIN_SIZE_FACTOR * max(1, rest)]
    return found if len(found) >= 2 and rest else []


def _finding(analysis: RunAnalysis, big: LargestRank, logits: Logits) -> Finding | None:
    saving = _saving(big, logits)
    if not is_worth(saving[1], big):
        return None
    first = max(logits.rows, key=lambda row: row.bytes)
    share = logits.bytes / big.peak_bytes
    return make_memory_finding(
        analysis,
        Cause.LOGITS_DOMINATE,
        big,
        sentence=f"{len(logits.rows)} tensors of {format_module(first.module)} with up to "
        f"{format_bytes(first.bytes)} each are {format_percent(share)} of rank {big.rank}'s peak "
        f"({format_bytes(logits.bytes)} of {format_bytes(big.peak_bytes)}): the logits and their copies",
        evidence=[
            make_fact(
                "largest_of_logits",
                row.bytes,
                rank=big.rank,
                tenant=row.tenant,
                part=format_module(row.sub),
                module=format_module(row.module),
            )
            for row in logits.rows
        ],
        saving_bytes=saving,
        confidence=_confidence(big, logits),
        fix=choose_fix(analysis, _FIX),
        disprove="record with half of the vocabulary, or half of the tokens: logits must halve in both cases",
        location=locate_allocation(analysis, logits.rows),
    )


def _saving(big: LargestRank, logits: Logits) -> tuple[float, float]:
    largest = max(row.bytes for row in logits.rows)

    def removable(_: str, held: Mapping[Tenant, int]) -> float:
        there = held.get(Tenant.ACTIVATIONS, 0) + held.get(Tenant.TEMPORARY_BUFFERS, 0)
        return min(there, logits.bytes) * (1 - 1 / _CHUNKS)

    high = big.estimate_peak_reduction(removable)
    return (min(high, logits.bytes - largest), high)


def _confidence(big: LargestRank, logits: Logits) -> Confidence:
    weak = sum(row.bytes for row in logits.rows if row.basis is not Basis.TAGGED) / logits.bytes
    sure = Confidence.HIGH if len(logits.rows) >= 2 else Confidence.MEDIUM
    return cap_confidence(limit_confidence(sure, big, weak), sure if logits.named else Confidence.LOW)
