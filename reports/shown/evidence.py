"""How a fact behind a finding reads, and what a finding is worth."""

from collections.abc import Callable

from zprof.model.findings import Evidence, Finding
from zprof.model.units import format_bytes, format_ns, format_percent, format_rate

#: From here on the fraction of a count means nothing.
_WHOLE_FROM = 1e4
_UNITS: dict[str, Callable[[float], str]] = {
    "ns": format_ns,
    "bytes": format_bytes,
    "ratio": format_percent,
    "bytes_per_s": format_rate,
    "times": lambda factor: f"{factor:.2f}x",
    "count": lambda count: f"{count:.4g}" if abs(count) < _WHOLE_FROM else f"{count:.0f}",
}


def evidence_value(fact: Evidence) -> str:
    """The value in its unit; a unit that nobody knows stands behind it as it is."""
    show = _UNITS.get(fact.unit)
    return show(fact.value) if show else f"{fact.value:g} {fact.unit}"


def evidence_name(fact: Evidence) -> str:
    """What was measured, and on which rank."""
    return fact.what if fact.rank is None else f"{fact.what} (rank {fact.rank})"


def worth(entry: Finding) -> str:
    """What a finding saves and frees, and how sure it is."""
    low, high = entry.saving_ns
    saves = f"saves {format_ns(low)} to {format_ns(high)}, " if high > 0 else ""
    return f"{saves}{_frees(entry.saving_bytes)}{entry.confidence.value} confidence"


def _frees(saving_bytes: tuple[int, int] | None) -> str:
    """Bytes of the largest rank; a range only where its ends differ when written."""
    if saving_bytes is None or saving_bytes[1] <= 0:
        return ""
    low, high = (format_bytes(size) for size in saving_bytes)
    return f"frees {high}, " if low == high else f"frees {low} to {high}, "
