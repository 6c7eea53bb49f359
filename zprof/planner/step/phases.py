"""Stretches of a step in which compute, collectives and copies run side by side, and what they sum to.

A phase lasts as long as the longest of what runs in it; what is beyond compute is exposed.  All in whole
nanoseconds, so that the terms of a ledger sum to its wall time exactly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """``count`` times after another: compute, and what runs beside it.

    ``model_ns``: collectives between pieces of the compute, which wait for each other: never hidden.
    ``link_ns``: collectives beside both.  ``hidden_ns``: further collectives, known to be hidden.
    ``copy_ns``: to or from the host, beside all of these.
    """

    count: int = 1
    compute_ns: int = 0
    model_ns: int = 0
    link_ns: int = 0
    hidden_ns: int = 0
    copy_ns: int = 0

    @property
    def wall_ns(self) -> int:
        """Of all ``count``."""
        return self.count * max(self.compute_ns + self.model_ns, self.link_ns, self.copy_ns)

    @property
    def collective_ns(self) -> int:
        """Hidden or not, of all ``count``."""
        return self.count * (self.link_ns + self.model_ns + self.hidden_ns)

    @property
    def exposed_transfer_ns(self) -> int:
        """Collectives with no compute beside them, of all ``count``."""
        return self.count * max(self.model_ns, self.link_ns - self.compute_ns)

    @property
    def exposed_memcpy_ns(self) -> int:
        """Copies with neither compute nor collectives beside them, of all ``count``."""
        return self.count * max(0, self.copy_ns - max(self.compute_ns + self.model_ns, self.link_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """wall = compute + exposed_transfer + exposed_memcpy.  ``collective_ns``: hidden or not."""

    wall_ns: int
    compute_ns: int
    exposed_transfer_ns: int
    exposed_memcpy_ns: int
    collective_ns: int


def total(phases: Iterable[Phase]) -> Total:
    """The sum of phases one after another."""
    listed = tuple(phases)
    return Total(
        wall_ns=sum(phase.wall_ns for phase in listed),
        compute_ns=sum(phase.count * phase.compute_ns for phase in listed),
        exposed_transfer_ns=sum(phase.exposed_transfer_ns for phase in listed),
        exposed_memcpy_ns=sum(phase.exposed_memcpy_ns for phase in listed),
        collective_ns=sum(phase.collective_ns for phase in listed),
    )


def repeated(phases: Sequence[Phase], times: int) -> tuple[Phase, ...]:
    """So many times after another."""
    return tuple(replace(phase, count=phase.count * times) for phase in phases) if times else ()
