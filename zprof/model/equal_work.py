"""Two runs held to the same work, and what differs between the jobs that they recorded."""

from dataclasses import dataclass
from enum import StrEnum


class WorkUnit(StrEnum):
    """What a step works off."""

    TOKENS = "tokens"
    SAMPLES = "samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualWork:
    """The step time of b for as much work on a rank as a's step does.

    ``a_per_step`` and ``b_per_step`` are of the whole job, by all its ranks.  ``b_ns``: b's mean step time
    times a's work on a rank over b's; ``ci95``: the 95 % interval of ``b_ns`` minus a's step time.
    """

    unit: WorkUnit
    a_per_step: int
    b_per_step: int
    b_ns: int
    ci95: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What is not the same in both jobs, and therefore may be why a figure differs.

    ``a`` and ``b`` are texts; one of them is ``unknown`` where only the other run says it.
    """

    what: str
    a: str
    b: str
