"""The answer about a run of which only the memory is known: its peak, who holds most of it, what to free.

``risk`` where a finding of at least medium confidence frees a tenth of the peak or more, or out-of-memory
errors and retries were counted; ``inconclusive`` where no owner is known of a tenth of the peak; else ``ok``.
"""

from collections.abc import Sequence

from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding
from zprof.model.memory import Memory, RankMemory
from zprof.model.report import VerdictStatus
from zprof.model.tenants import SHOWN
from zprof.model.units import format_bytes, format_percent

_RISK_RATIO = 0.10
_UNKNOWN_RATIO = 0.10


def of_memory(memory: Memory, findings: Sequence[Finding]) -> tuple[VerdictStatus, str]:
    """Status and sentence; some rank's memory must be known."""
    rank = max(memory.per_rank, key=lambda entry: (entry.peak_bytes, -entry.rank))
    head = _peak(rank)
    risk = next((entry for entry in findings if _is_risk(entry, rank)), None)
    if risk:
        return VerdictStatus.RISK, f"{head}: {risk.sentence}"
    unknown = rank.untagged_bytes / max(1, rank.peak_bytes)
    if unknown >= _UNKNOWN_RATIO:
        return VerdictStatus.INCONCLUSIVE, f"{head}: {format_percent(unknown)} of it has no known owner"
    return VerdictStatus.OK, f"{head}: {_nothing_sure(rank, findings)}"


def _nothing_sure(rank: RankMemory, findings: Sequence[Finding]) -> str:
    perhaps = next((entry for entry in findings if _frees_much(entry, rank)), None)
    if perhaps:
        return f"nothing sure frees a tenth of it; {perhaps.id} below may"
    return "none of the causes that were tested frees a tenth of it"


def _is_risk(finding: Finding, rank: RankMemory) -> bool:
    if finding.confidence is Confidence.LOW:
        return False
    if finding.cause is Cause.ALLOCATOR_RETRIES:
        return True
    return _frees_much(finding, rank)


def _frees_much(finding: Finding, rank: RankMemory) -> bool:
    return finding.saving_bytes is not None and finding.saving_bytes[1] >= _RISK_RATIO * rank.peak_bytes


def _peak(rank: RankMemory) -> str:
    most = {(True, False): "at most ", (False, True): "at least "}.get(
        (rank.upper_bound, rank.lower_bound), ""
    )
    first = max(SHOWN, key=lambda tenant: rank.tenants.get(tenant, 0))
    held = rank.tenants.get(first, 0)
    share = f" ({first.value.replace('_', ' ')} {format_percent(held / rank.peak_bytes)})" if held else ""
    return f"peak {most}{format_bytes(rank.peak_bytes)} on rank {rank.rank}{share}"
