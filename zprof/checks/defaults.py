"""What is held where nobody says anything, and how hard the clock of a machine is held to it.

Bytes and counts are exact, so they are compared as they are.  Times have a spread: they fail only where the
interval of the difference is beyond the limit.  Waiting warns unless one rank is late in nearly all steps:
that is the gate's own rule, and no word of the limit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from zprof.checks.limits import parse_limit
from zprof.checks.limits_gates import gate_named
from zprof.model.check import DEFAULT, Check, Limit, Outcome

#: As they would stand in ``[tool.zprof.check]``.
DEFAULTS: Mapping[str, object] = {
    "peak_memory": "+2%",
    "exposed_ratio": {"max": "+5pt", "confidence": 0.95},
    "overlap_ratio": {"min": "-5pt", "confidence": 0.95},
    "collective_bytes": "+0%",
    "collective_count": "+0%",
    "step_time": {"max": "+5%", "confidence": 0.95},
    "exposed_wait": "+10%",
}


def default_limits() -> tuple[Limit, ...]:
    """The limits of :data:`DEFAULTS`, each of origin ``default``."""
    limits = (parse_limit(gate, said, origin=DEFAULT) for gate, said in DEFAULTS.items())
    return tuple(limit for limit in limits if limit is not None)


def for_device(limits: Iterable[Limit], device: str) -> tuple[Limit, ...]:
    """``limits`` as they are held on ``device`` (``cpu``, or a GPU's).

    On CPU ranks a limit of time that stands only in the defaults warns and does not fail: such ranks share
    their cores with whatever else a CI machine runs, so their times say as much of that as of the program.
    A limit that somebody stated fails on any device, and so does every limit of bytes and counts.
    """
    return tuple(replace(limit, warns=True) if _softens(limit, device) else limit for limit in limits)


def softened(limits: Iterable[Limit], found: Check) -> tuple[str, ...]:
    """The gates that would have failed in ``found``, were they not softened by :func:`for_device`."""
    fail = {limit.gate for limit in limits if not limit.warns}
    return tuple(
        result.limit.gate
        for result in found.results
        if result.outcome is Outcome.WARNED
        and result.limit.warns
        and result.limit.gate in fail
        and not result.remedy  # with one it was not judged
        and (result.limit.gate != "exposed_wait" or result.subject)  # of nobody: it warns anyway
    )


def _softens(limit: Limit, device: str) -> bool:
    gate = gate_named(limit.gate)
    return device == "cpu" and limit.origin == DEFAULT and gate is not None and gate.is_timed
