"""Which leaves of the report a row of ``zprof compare`` shows; rows that have none say so."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zprof.model.report import Comparison, Report
from zprof.model.side_by_side import Row, Section
from zprof.model.tenants import Tenant
from zprof.tui.figures import UNKNOWN, Figure, How, Range, Unit, figure
from zprof.tui.session import Loaded


class Part(StrEnum):
    """What a section of ``zprof compare`` is about, in the order in which rows are shown."""

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


_LATE = re.compile(r"rank (\d+) as the late one")
_RANK = re.compile(r"rank (\d+)")
_LINK = "link of "
_WHOLE_PERCENT = 10
#: Means of times and bytes are whole numbers there; shares and counts are as they are.
_ROUNDING = 1e-9
_TENANTS = {f"{tenant.value}_bytes": tenant.value for tenant in Tenant}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Figure):
    """A number of ``zprof compare``'s own report, or of two of its numbers: no leaf of this run's report.

    ``words``: how that report writes it, where not in the unit.
    """

    words: str | None = None

    @property
    def text(self) -> str:
        """As ``zprof compare`` shows it."""
        return str(Figure.text.fget(self)) if self.words is None else self.words  # type: ignore[attr-defined]

    def in_report(self) -> tuple[Figure, ...]:
        """None: a test of its own holds it against ``zprof compare -f json``."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Range):
    """Two shares, as few digits as they need: ``+53..+69 %``, ``+1.2..+2.3 %``."""

    @property
    def text(self) -> str:
        """Whole percents where an end is ten or more."""
        if self.value is None or self.low.value is None:
            return UNKNOWN
        ends = (self.low.value * 100, self.value * 100)
        digits = 0 if max(map(abs, ends)) >= _WHOLE_PERCENT else 1
        return "{:+.{digits}f}..{:+.{digits}f} %".format(*ends, digits=digits)


def part_of(section: Section) -> Part:
    """By its title."""
    title = section.title
    if _LATE.fullmatch(title):
        return Part.LATE
    if _RANK.fullmatch(title):
        return Part.RANK
    if title.startswith(_LINK):
        return Part.LINK
    return Part(title) if title in set(Part) else Part.COLLECTIVE


def rank_of(section: Section) -> int | None:
    """The rank that it is about."""
    found = _RANK.match(section.title)
    return int(found[1]) if found and part_of(section) in (Part.RANK, Part.LATE) else None


def side(loaded: Loaded, section: Section, row: Row, *, after: bool) -> Figure:
    """The figure of a side: by its leaves where those make the very number, else as that of ``compare``."""
    value = row.b if after else row.a
    assert not isinstance(value, str)
    unit = Unit(row.unit)
    found = _leaves(loaded.report, section, row, after=after)
    if found is not None:
        how, leaf = found
        made = figure(loaded.tree, unit, leaf, how=how)
        rounding = 1.0 if unit in (Unit.NS, Unit.BYTES) else _ROUNDING
        if made.value is not None and value is not None and abs(made.value - value) <= rounding:
            return made
    return Compared(value=value, unit=unit, leaves=())


def _leaves(report: Report, section: Section, row: Row, *, after: bool) -> tuple[How, str] | None:
    part, comparison = part_of(section), report.comparison
    if comparison is None:
        return None
    times = "time.per_rank" if after else "comparison.baseline_time"
    if part is Part.STEP:
        return How.MEAN, f"{times}[*].{row.name}"
    if part is Part.RANK:
        return _of_rank(report, comparison, section, f"{times}[{{}}].{row.name}", after=after)
    if part is Part.MEMORY:
        ranks = "memory.per_rank" if after else "comparison.baseline_memory"
        tenant = _TENANTS.get(row.name)
        return How.LARGEST, f"{ranks}[*].{f'tenants.{tenant}' if tenant else row.name}"
    if part is Part.EQUAL_WORK:
        return How.LEAF, _of_work(row, after=after)
    return (How.LEAF, f"volume.{row.name}") if part is Part.VOLUME and after else None


def _of_work(row: Row, *, after: bool) -> str:
    if row.unit == "ns":
        return "comparison.equal_work.b_ns" if after else "comparison.step_time.a_ns"
    return f"comparison.equal_work.{'b' if after else 'a'}_per_step"


def _of_rank(
    report: Report, comparison: Comparison, section: Section, leaf: str, *, after: bool
) -> tuple[How, str] | None:
    ranks = [entry.rank for entry in (report.time.per_rank if after else comparison.baseline_time)]
    rank = rank_of(section)
    return (How.LEAF, leaf.format(ranks.index(rank))) if rank in ranks else None


def interval(tree: Mapping[str, Any], of: str) -> Figure:
    """The 95 % interval of the change, as shares of A's step time; ``of``: step_time or equal_work."""
    low, high = (
        figure(
            tree,
            Unit.RATIO,
            f"comparison.{of}.ci95[{end}]",
            "comparison.step_time.a_ns",
            how=How.SHARE,
            signed=True,
        )
        for end in (0, 1)
    )
    return Interval(value=high.value, unit=high.unit, leaves=high.leaves, how=high.how, signed=True, low=low)
