"""Parse ``@pytest.mark.zprof_limit(peak="24 MiB", …)`` to limits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zprof.checks.limits import find_gate, parse_limit, suggest_names
from zprof.model.check import Limit
from zprof.model.errors import BadInput
from zprof.model.formatting import printable, shorten
from zprof.model.tenants import Tenant

MARKER = "zprof_limit"
#: In bytes or, with a limit in Ψ, relative to the ZeRO formula of the stage.
_BYTES = "bytes"
_MAX_KEY_LENGTH = 40

#: Words of the marker, and the gates that they stand for; a gate's own name works too.
KEYS: Mapping[str, str] = {
    "peak": "peak_memory",
    **{tenant.value: f"peak_memory.{tenant.value}" for tenant in Tenant},
    "untagged": "untagged_ratio",
    "exposed": "exposed_ratio",
    "overlap": "overlap_ratio",
    _BYTES: "collective_bytes",
    "count": "collective_count",
    "step": "step_time",
    "wait": "exposed_wait",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One marker as it was written."""

    positional: Sequence[object] = ()
    named: Mapping[str, object] = field(default_factory=dict)


def parse_markers(markers: Iterable[Marker]) -> tuple[Limit, ...]:
    """Return the limits of all markers of a test, the nearest marker first; for one gate the nearest counts.

    Limits that are turned off are left out.

    Raises:
        BadInput: a word or a limit is unknown, a marker limits a gate twice, or none names a limit.
    """
    limits: dict[str, Limit | None] = {}
    for marker in reversed(list(markers)):
        if marker.positional:
            raise BadInput(f"{MARKER}: every limit has a name", hint=f'{MARKER}(peak="24 MiB")')
        stated = _parse_marker(marker)
        limits = {gate: limit for gate, limit in limits.items() if gate not in stated} | stated
    if not limits:
        raise BadInput(f"{MARKER}: states no limit", hint=f'{MARKER}(peak="24 MiB")')
    return tuple(limit for limit in limits.values() if limit is not None)


def _parse_marker(marker: Marker) -> dict[str, Limit | None]:
    """Return the limits by gate; None if turned off."""
    words: dict[str, str] = {}
    limits: dict[str, Limit | None] = {}
    for key, said in marker.named.items():
        gate = _gate(key, said)
        if gate in words:
            raise BadInput(f"{MARKER}: {words[gate]} and {key} are the same limit", hint="keep one of them")
        words[gate] = key
        limits[gate] = parse_limit(gate, said, origin=MARKER, place=f"{MARKER}, {_shown(key)}")
    return limits


def _gate(key: str, said: object) -> str:
    if key == _BYTES and _is_in_psi(said):
        return "collective_bytes_law"
    if key in KEYS:
        return KEYS[key]
    if find_gate(key) is None:
        raise BadInput(f"{MARKER}: there is no limit {_shown(key)}", hint=suggest_names(key, KEYS))
    return key


def _is_in_psi(said: object) -> bool:
    """Return whether a limit is in units of Ψ (also ψ or psi)."""
    texts = said.values() if isinstance(said, Mapping) else (said,)
    return any(isinstance(text, str) and ("ψ" in text.lower() or "psi" in text.lower()) for text in texts)


def _shown(key: str) -> str:
    return shorten(printable(key), _MAX_KEY_LENGTH)
