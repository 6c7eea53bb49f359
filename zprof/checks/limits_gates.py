"""The gates by name: the unit of each, which side of a limit is allowed, and what may be said of it.

Units: ``bytes``, ``ratio``, ``ns``, ``count``, and ``psi`` (Ψ: bytes of all parameters as they are
communicated, the unit of the laws of volume: 2Ψ for stages 0 to 2, 3Ψ for stage 3).
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from zprof.model.check import Sense
from zprof.model.tenants import SHOWN

PEAK_MEMORY = "peak_memory"
UNTAGGED = "untagged"
#: What ``peak_memory.<part>`` may be: the six tenants and what none claims.
MEMORY_PARTS: tuple[str, ...] = (*(tenant.value for tenant in SHOWN), UNTAGGED)
_MOST_NEAR = 2
_LONGEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What may be said of a gate.

    ``exact``: its value is counted and the same in each recording of equal work, so ``exact`` has a meaning.
    ``sampled``: its value has a spread over steps, so ``confidence`` has one.  ``of_baseline``: a change
    against the baseline may be allowed.
    """

    name: str
    unit: str
    sense: Sense = Sense.AT_MOST
    exact: bool = False
    sampled: bool = False
    of_baseline: bool = True

    @property
    def is_timed(self) -> bool:
        """Whether it rests on clocks, and so on what else the machine does."""
        return self.name in _TIMED


_TIMED = ("exposed_ratio", "overlap_ratio", "step_time", "exposed_wait")

#: In the order in which they are judged and shown.
GATES: tuple[Gate, ...] = (
    Gate(name=PEAK_MEMORY, unit="bytes", exact=True),
    *(Gate(name=f"{PEAK_MEMORY}.{part}", unit="bytes", exact=True) for part in MEMORY_PARTS),
    Gate(name="untagged_ratio", unit="ratio"),
    Gate(name="exposed_ratio", unit="ratio", sampled=True),
    Gate(name="overlap_ratio", unit="ratio", sense=Sense.AT_LEAST, sampled=True),
    Gate(name="collective_bytes", unit="bytes", exact=True),
    Gate(name="collective_count", unit="count", exact=True),
    Gate(name="collective_bytes_law", unit="psi", of_baseline=False),
    Gate(name="step_time", unit="ns", sampled=True),
    Gate(name="exposed_wait", unit="ns"),
)

_BY_NAME = {gate.name: gate for gate in GATES}


def gate_named(name: str) -> Gate | None:
    """The gate of exactly that name, None where there is none."""
    return _BY_NAME.get(name)


def nearest(name: str, known: Iterable[str]) -> str:
    """The names that ``name`` may have meant, as a hint: ``did you mean peak_memory?``, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name[:_LONGEST].lower(), names, n=_MOST_NEAR, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
