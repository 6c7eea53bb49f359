"""Gaps: something that could not be measured, why, and what would make it measurable."""

from dataclasses import dataclass

#: Values of ``Gap.what`` that other code compares with.
MEMORY = "memory"
RANK_MISSING = "rank missing"
RANK_CUT_SHORT = "rank cut short"
DISK_FULL = "disk full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One thing that is unknown. Unknown is never 0 and never "OK"."""

    what: str
    reason: str
    remedy: str
    rank: int | None = None
