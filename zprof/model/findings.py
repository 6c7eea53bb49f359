"""A finding: a claim with evidence, a saving range, a confidence, a fix and a way to disprove it."""

from dataclasses import dataclass
from enum import StrEnum

from zprof.model.causes import Cause


class Severity(StrEnum):
    """How much a finding matters."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Confidence(StrEnum):
    """How sure the rule is of its claim."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One measured fact behind a claim.  ``unit``: ns, bytes, bytes_per_s, count, ratio, times (a factor)."""

    what: str
    value: float
    unit: str
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, how we know, what it costs, what to change.

    ``saving_ns`` is a range per step that never exceeds the ledger term which the finding claims.
    ``saving_bytes`` is the range by which the largest rank's memory would shrink; None where the finding
    is not about memory.
    """

    id: str
    cause: Cause
    severity: Severity
    sentence: str
    evidence: tuple[Evidence, ...]
    saving_ns: tuple[int, int]
    confidence: Confidence
    fix: str
    disprove: str
    doc: str
    saving_bytes: tuple[int, int] | None = None
