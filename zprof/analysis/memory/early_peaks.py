"""Find ranks that hold more before their first step than in any."""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.model.tenants import DISPLAY_ORDER

_ABOVE_RATIO = 0.10
_WORTH_BYTES = 1 << 20


class EarlyPeak(Struct, frozen=True, kw_only=True):
    """A peak before the first step, or outside of the recorded ones; ``tenant``: the largest."""

    rank: int
    before_bytes: int
    steady_bytes: int
    tenant: str = ""


def find_early_peaks(analysis: RunAnalysis) -> list[EarlyPeak]:
    """Return the peaks above those of the steps, by the allocator's counters if the start is unknown."""
    return _list_recorded_peaks(analysis) if analysis.memory.init else _list_counted_peaks(analysis)


def _list_recorded_peaks(analysis: RunAnalysis) -> list[EarlyPeak]:
    steady = {(entry.rank, entry.device): entry.peak_bytes for entry in analysis.memory.per_rank}
    above = [
        entry
        for entry in analysis.memory.init
        if _is_above(entry.peak_bytes, steady.get((entry.rank, entry.device), 0))
    ]
    return [
        EarlyPeak(
            rank=entry.rank,
            before_bytes=entry.peak_bytes,
            steady_bytes=steady[entry.rank, entry.device],
            tenant=max(DISPLAY_ORDER, key=lambda tenant: entry.tenants.get(tenant, 0)).value,
        )
        for entry in above
    ]


def _list_counted_peaks(analysis: RunAnalysis) -> list[EarlyPeak]:
    """Return peaks by the allocator's counters, without ranks whose recorded peak is a lower bound.

    For these the maximum may belong to the steps.
    """
    known = [entry for entry in analysis.memory.per_rank if not entry.lower_bound]
    steady = {(entry.rank, entry.device): entry.peak_bytes for entry in known}
    above = [
        (entry.rank, entry.peak_allocated_bytes, steady[entry.rank, entry.device])
        for entry in analysis.memory.counters
        if entry.peak_allocated_bytes
        and _is_above(entry.peak_allocated_bytes, steady.get((entry.rank, entry.device), 0))
    ]
    return [EarlyPeak(rank=rank, before_bytes=before, steady_bytes=after) for rank, before, after in above]


def _is_above(before_bytes: int, steady_bytes: int) -> bool:
    more = before_bytes - steady_bytes
    return steady_bytes > 0 and more >= max(_WORTH_BYTES, _ABOVE_RATIO * steady_bytes)
