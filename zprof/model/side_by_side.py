"""Define the comparison of two runs: the same leaves of both, and the differences in their settings.

Schema ``zprof.compare/1``. ``None`` is unknown. Leaves may be added, but never removed or renamed.
"""

from enum import StrEnum

from msgspec import Struct, field

from zprof.model.quantities import Bound
from zprof.model.report import Comparison, RunFacts, Verdict

COMPARE_SCHEMA = "zprof.compare/1"
ComparedValue = int | float | str | None


class ComparedRow(Struct, frozen=True, kw_only=True):
    """One number of both runs; ``unit`` is ns, bytes, ratio, count, bytes_per_s or text.

    ``leaf``: the entry of the catalogue of numbers that describes it, empty if there is none.
    """

    name: str
    unit: str
    a: ComparedValue
    b: ComparedValue
    leaf: str = ""


class SectionKind(StrEnum):
    """Subject of a section, in display order."""

    STEP = "step"
    EQUAL_WORK = "equal work"
    MEMORY = "memory"
    VOLUME = "volume"
    COLLECTIVE = "collective"
    FINDINGS = "findings"
    RANK = "rank"
    LATE = "late"
    LINK = "link"
    CLOCKS = "clocks"
    KERNELS = "kernels"


class ComparedSection(Struct, frozen=True, kw_only=True):
    """A group of rows; ``note`` describes what their figures refer to."""

    title: str
    note: str
    rows: tuple[ComparedRow, ...]

    @property
    def kind(self) -> SectionKind:
        """What it is about."""
        if self.rank is not None:
            return SectionKind.LATE if self.title.endswith(" as the late one") else SectionKind.RANK
        if self.title.startswith("link of "):
            return SectionKind.LINK
        return SectionKind(self.title) if self.title in set(SectionKind) else SectionKind.COLLECTIVE

    @property
    def rank(self) -> int | None:
        """The rank that it is about, or None."""
        word, _, rest = self.title.partition(" ")
        number = rest.removesuffix(" as the late one")
        return int(number) if word == "rank" and number.isdecimal() else None


class RowPlace(Struct, frozen=True, kw_only=True):
    """A row and its position in the report of ``zprof compare``: ``sections[i].rows[j]``."""

    section: ComparedSection
    row: ComparedRow
    at: tuple[int, int]

    @property
    def key(self) -> str:
        """The path of the row in that report's JSON."""
        return f"sections[{self.at[0]}].rows[{self.at[1]}]"

    @property
    def is_step_time(self) -> bool:
        """True for the time of a step or of a part of it, which depends on the work per step."""
        is_time = self.section.kind is SectionKind.STEP and self.row.unit == "ns"
        return is_time and self.row.name not in ("noise_floor_ns", "first_wait_ns")


class Judgement(StrEnum):
    """Verdict on a change.

    ``EXACT`` and ``DIFFERS``: the value changed, but neither side is better. ``UNKNOWN``: one side's value is
    unknown. ``UNJUDGED``: both are known, but it is unknown whether the change is significant.
    """

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    EXACT = "exact"
    DIFFERS = "differs"
    NOISE = "noise"
    UNKNOWN = "unknown"
    UNJUDGED = "not judged"


class JudgedRow(Struct, frozen=True, kw_only=True):
    """The judgement of a row.

    ``row``: the row that was judged, with times per token or sample if it was judged so. ``interval``: the
    95 % interval of b minus a, None if it has none of its own; ``is_term``: it is that of a term of the step.
    ``bounds``: of a and b. ``noise_ns``: what a time without an interval must change by, None if unknown with
    the ``reason``.
    """

    row: ComparedRow
    judgement: Judgement
    interval: tuple[float, float] | None = None
    is_term: bool = False
    bounds: tuple[Bound, Bound] = (Bound.EXACT, Bound.EXACT)
    noise_ns: float | None = None
    reason: str = ""


class Setting(Struct, frozen=True, kw_only=True):
    """A setting of both runs; ``where`` is its source: run, training or environment."""

    where: str
    name: str
    a: str | None
    b: str | None


class SideBySide(Struct, frozen=True, kw_only=True):
    """The comparison of two runs; ``verdict`` and ``comparison`` are for ``b`` against ``a``."""

    schema: str = COMPARE_SCHEMA
    zprof_version: str
    a: RunFacts
    b: RunFacts
    verdict: Verdict
    comparison: Comparison | None
    sections: tuple[ComparedSection, ...] = ()
    settings: tuple[Setting, ...] = field(default=())
