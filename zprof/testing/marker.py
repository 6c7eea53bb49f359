"""Parse ``@pytest.mark.zprof_limit(peak="24 MiB", …)`` into limits."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from zprof.checks.limit_text import parse_limit
from zprof.checks.limits import GATES
from zprof.model.comparison import Limit
from zprof.model.errors import BadInput
from zprof.model.formatting import printable, shorten
from zprof.model.suggestions import suggest_names
from zprof.model.tenants import Tenant

MARKER = "zprof_limit"
#: In bytes or, with a limit in Ψ, relative to the ZeRO formula of the stage.
_BYTES = "bytes"
_MAX_KEY_LENGTH = 40

#: Keywords of the marker, and their gates; the name of a gate is accepted too.
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


class Marker(Struct, frozen=True, kw_only=True):
    """The arguments of one marker."""

    positional: Sequence[object] = ()
    named: Mapping[str, object] = field(default_factory=dict)


def parse_markers(markers: Iterable[Marker]) -> tuple[Limit, ...]:
    """Parse the limits of a test's markers, nearest first; the nearest marker of a gate applies.

    Limits that are turned off are omitted.

    Raises:
        BadInput: a keyword or a limit is unknown, a marker limits a gate twice, or there is no limit at all.
    """
    limits: dict[str, Limit | None] = {}
    for marker in reversed(list(markers)):
        if marker.positional:
            raise BadInput(f"{MARKER}: limits must be keyword arguments", hint=f'{MARKER}(peak="24 MiB")')
        marker_limits = _parse_marker(marker)
        limits = {gate: limit for gate, limit in limits.items() if gate not in marker_limits} | marker_limits
    if not limits:
        raise BadInput(f"{MARKER}: no limit given", hint=f'{MARKER}(peak="24 MiB")')
    return tuple(limit for limit in limits.values() if limit is not None)


def _parse_marker(marker: Marker) -> dict[str, Limit | None]:
    """Return the limits by gate; None if a limit is turned off."""
    keys: dict[str, str] = {}
    limits: dict[str, Limit | None] = {}
    for key, value in marker.named.items():
        gate = _resolve_gate(key, value)
        if gate in keys:
            raise BadInput(f"{MARKER}: {keys[gate]} and {key} are the same limit", hint="keep one of them")
        keys[gate] = key
        limits[gate] = parse_limit(gate, value, origin=MARKER, place=f"{MARKER}, {_format_key(key)}")
    return limits


def _resolve_gate(key: str, value: object) -> str:
    if key == _BYTES:
        texts = value.values() if isinstance(value, Mapping) else (value,)
        if any(isinstance(text, str) and ("ψ" in text.lower() or "psi" in text.lower()) for text in texts):
            return "collective_bytes_law"  # a limit in units of Ψ (also ψ or psi)
    if key in KEYS:
        return KEYS[key]
    if key not in GATES:
        raise BadInput(f"{MARKER}: there is no limit {_format_key(key)}", hint=suggest_names(key, KEYS))
    return key


def _format_key(key: str) -> str:
    return shorten(printable(key), _MAX_KEY_LENGTH)
