"""From ``@pytest.mark.zprof_limit(peak="24 MiB", …)`` to limits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zprof.checks.limits import parse_limit
from zprof.checks.limits_gates import gate_named, nearest
from zprof.model.check import Limit
from zprof.model.errors import BadInput
from zprof.model.printable import printable, shorten
from zprof.model.tenants import Tenant

MARKER = "zprof_limit"
#: In bytes, or where the limit is in Ψ against the law of the stage.
_BYTES = "bytes"
_LONGEST_KEY = 40

#: Words of the marker, and the gates that they stand for; a gate's own name is one, too.
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
class Stated:
    """One marker as it was written."""

    positional: Sequence[object] = ()
    named: Mapping[str, object] = field(default_factory=dict)


def limits_of(markers: Iterable[Stated]) -> tuple[Limit, ...]:
    """What all markers of a test state, the nearest first: of one gate the nearest counts.

    Raises:
        BadInput: a word or a limit means nothing, or there is no limit at all.
    """
    limits: dict[str, Limit] = {}
    for marker in reversed(list(markers)):
        if marker.positional:
            raise BadInput(f"{MARKER}: every limit has a name", hint=f'{MARKER}(peak="24 MiB")')
        for key, said in marker.named.items():
            gate = _gate(key, said)
            limit = parse_limit(gate, said, origin=MARKER, place=f"{MARKER}, {_shown(key)}")
            limits.pop(gate, None)
            if limit is not None:
                limits[gate] = limit
    if not limits:
        raise BadInput(f"{MARKER}: states no limit", hint=f'{MARKER}(peak="24 MiB")')
    return tuple(limits.values())


def is_of_baseline(limit: Limit) -> bool:
    """Whether it is held against what an earlier run was."""
    return limit.change_ratio is not None or limit.change_points is not None


def _gate(key: str, said: object) -> str:
    if key == _BYTES and _is_of_law(said):
        return "collective_bytes_law"
    if key in KEYS:
        return KEYS[key]
    if gate_named(key) is None:
        raise BadInput(f"{MARKER}: there is no limit {_shown(key)}", hint=nearest(key, KEYS))
    return key


def _is_of_law(said: object) -> bool:
    """Ψ, ψ or psi."""
    texts = said.values() if isinstance(said, Mapping) else (said,)
    return any(isinstance(text, str) and ("ψ" in text.lower() or "psi" in text.lower()) for text in texts)


def _shown(key: str) -> str:
    return shorten(printable(key), _LONGEST_KEY)
