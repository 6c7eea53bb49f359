"""Figures of zprof beside those of another program, for the same trace (schema ``zprof.verify/1``).

Times are integer nanoseconds, the overlap is in percent, as the other program rounds it.
"""

from dataclasses import dataclass
from enum import StrEnum

from zprof.model.gaps import Gap

VERIFY_SCHEMA = "zprof.verify/1"


class FigureStatus(StrEnum):
    """Whether both say the same."""

    EQUAL = "equal"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of one rank.

    ``difference`` is zprof's minus theirs, None where one of them has none.  Where both find that there is
    nothing to measure (no collective: no overlap), both are None and the status is equal.
    """

    name: str
    unit: str
    zprof: float | None
    other: float | None
    difference: float | None
    tolerance: float
    status: FigureStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerification:
    """Both programs on one rank; ``reasons`` say why they differ, as far as that is known."""

    rank: int
    device_rows: int
    figures: tuple[Figure, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was compared: ``source`` is the other program, ``settings`` those it was run with."""

    schema: str = VERIFY_SCHEMA
    zprof_version: str
    source: str
    settings: str
    window: str
    ranks: tuple[RankVerification, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def status(self) -> FigureStatus:
        """Differs where any figure does; unknown where none could be compared."""
        seen = {figure.status for rank in self.ranks for figure in rank.figures}
        for status in (FigureStatus.DIFFERS, FigureStatus.EQUAL):
            if status in seen:
                return status
        return FigureStatus.UNKNOWN
