"""Define the comparison of two runs (``zprof.compare/1``), and the check of limits (``zprof.check/1``).

Values are leaves of the report; times are integer nanoseconds, sizes integer bytes, ratios floats. ``None``
is unknown. Leaves may be added, but never removed or renamed.
"""

from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction

from msgspec import Struct, field

from zprof.model.quantities import Bound, Unit
from zprof.model.report import Comparison, RunFacts, Verdict

CHECK_SCHEMA = "zprof.check/1"
#: Origin of a limit that the user did not set.
DEFAULT = "default"
COMPARE_SCHEMA = "zprof.compare/1"
ComparedValue = int | float | str | None


class Outcome(StrEnum):
    """Outcome of a gate.

    ``skipped``: there was no baseline to compare with, or neither run measured the quantity of a default
    limit, which is not a failure. ``within_noise``: the value exceeds the limit by no more than the variation
    between steps; the check does not fail, but the limit is not confirmed either. ``unknown``: the required
    value was not measured, or not often enough; it never counts as passed.
    """

    PASSED = "passed"
    WITHIN_NOISE = "within_noise"
    WARNED = "warned"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


class Sense(StrEnum):
    """Allowed side of a limit."""

    AT_MOST = "at_most"
    AT_LEAST = "at_least"


class Limit(Struct, frozen=True, kw_only=True):
    """Limit on one quantity.

    ``gate``: peak_memory, peak_memory.<tenant>, untagged_ratio, exposed_ratio, overlap_ratio,
    collective_bytes, collective_count, collective_bytes_law, step_time, exposed_wait. Exactly one is set of
    ``value`` (absolute, in ``unit``), ``change_ratio`` (relative to the baseline: 0.02 is 2 % more) and
    ``change_points`` (added to the baseline's ratio). ``confidence``: the gate fails only if the interval of
    that confidence exceeds the limit; None compares the value itself. ``warns``: exceeding it is a warning,
    not a failure. ``text`` is the limit as the user wrote it, ``origin`` its source ("default",
    "pyproject.toml", "--peak-memory"). ``said`` is the old name of ``text``, with the same value.
    """

    gate: str
    unit: Unit
    sense: Sense = Sense.AT_MOST
    value: float | None = None
    change_ratio: float | None = None
    change_points: float | None = None
    confidence: float | None = None
    warns: bool = False
    text: str
    said: str
    origin: str

    @property
    def is_relative(self) -> bool:
        """True if the limit needs a baseline."""
        return self.value is None


class Figure(Struct, frozen=True, kw_only=True):
    """A value in exact arithmetic; the flags mark that the true value can be lower or higher."""

    value: Fraction
    can_be_lower: bool = False
    can_be_higher: bool = False

    @property
    def is_bound(self) -> bool:
        """True if the value is only a bound."""
        return self.can_be_lower or self.can_be_higher


class LimitRow(Struct, frozen=True, kw_only=True):
    """The input of a limit: one figure of a run and of its baseline, and notes on it.

    The figures are None if unknown; ``missing`` is the reason, with a ``remedy``. ``report_path``: the leaf
    of the run's report. ``samples``: one value per step of the run and of the baseline, for a limit with a
    confidence. ``value_note``: follows the value in the sentence. ``warn_reason``: why exceeding the limit
    only warns. ``has_different_parts``: the value is a sum over different collectives from the baseline's, so
    the gate warns even within the limit; ``growth_note`` lists them. ``stable``: both figures without the
    part that varies by chance between runs (``chance_note`` describes it); a relative limit that holds for
    them is not broken. ``has_nothing``: the run was measured and has nothing of the kind, such as a single
    rank without collectives. ``device_note``: why a gate cannot decide on this device.
    """

    current: Figure | None = None
    baseline: Figure | None = None
    missing: str = ""
    remedy: str = ""
    report_path: str = ""
    subject: str = ""
    samples: tuple[Sequence[float] | None, Sequence[float] | None] = (None, None)
    has_different_parts: bool = False
    has_nothing: bool = False
    stable: tuple[Figure, Figure] | None = None
    value_note: str = ""
    growth_note: str = ""
    warn_reason: str = ""
    chance_note: str = ""
    device_note: str = ""


class GateResult(Struct, frozen=True, kw_only=True):
    """Result of one gate.

    ``value`` is the leaf ``leaf`` of this run's report, ``baseline`` the same leaf of the baseline,
    ``allowed`` the limit in ``unit``; each is None if it is unknown or absent. ``interval``: confidence
    interval of value - baseline. ``subject``: the rank, tenant or collective concerned. ``grew``: a
    description of the part that grew most. ``noise``: half the width of the interval if it exceeds the margin
    of the limit; a change as large as the limit then never fails. ``sentence`` summarizes the result on one
    line; ``remedy`` is what to do if it is unknown or skipped.
    """

    limit: Limit
    outcome: Outcome
    subject: str = ""
    value: float | None = None
    baseline: float | None = None
    allowed: float | None = None
    interval: tuple[float, float] | None = None
    leaf: str = ""
    grew: str = ""
    noise: float | None = None
    sentence: str
    remedy: str = ""


class Check(Struct, frozen=True, kw_only=True):
    """All gates of one run. ``baseline`` is None on a first run; ``notices`` are messages for the log."""

    schema: str = CHECK_SCHEMA
    zprof_version: str
    run: str
    baseline: str | None
    outcome: Outcome
    results: tuple[GateResult, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return 1 if a gate failed, 3 if one is unknown, else 0."""
        return {Outcome.FAILED: 1, Outcome.UNKNOWN: 3}.get(self.outcome, 0)


class ComparedRow(Struct, frozen=True, kw_only=True):
    """One number of both runs; ``unit`` is ns, bytes, ratio, count, bytes_per_s or text.

    ``leaf``: the catalogue entry that describes it, empty if there is none.
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
    """A group of rows; ``note`` describes the basis of their figures."""

    title: str
    note: str
    rows: tuple[ComparedRow, ...]

    @property
    def kind(self) -> SectionKind:
        """Subject of the section."""
        if self.rank is not None:
            return SectionKind.LATE if self.title.endswith(" as the late one") else SectionKind.RANK
        if self.title.startswith("link of "):
            return SectionKind.LINK
        return SectionKind(self.title) if self.title in set(SectionKind) else SectionKind.COLLECTIVE

    @property
    def rank(self) -> int | None:
        """Rank of the section, or None."""
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
        """True for the time of a step or a part of it, which depends on the work per step."""
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

    ``row``: the judged row, with times per token or sample if it was judged at equal work. ``interval``: the
    95 % interval of b minus a, None if the row has none; ``is_term``: the interval is that of a term of the
    step. ``bounds``: of a and b. ``noise_ns``: minimum significant change of a time without an interval, None
    if unknown, with the ``reason``.
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
