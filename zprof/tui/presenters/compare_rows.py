"""Select, order and name the rows of `zprof compare` for the screen, and find their report leaves."""

import re
from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from zprof.model.leaves import read_value
from zprof.model.quantities import Aggregation, Unit, Value
from zprof.model.report import Comparison, Report
from zprof.model.side_by_side import ComparedRow, ComparedSection, SideBySide
from zprof.model.tenants import Tenant
from zprof.reports.pages.compare import format_change, label_row, select_shown_rows
from zprof.reports.presenters.time_figures import select_extreme_ranks
from zprof.tui.session import LoadedRun

_MAX_RANKS, _MAX_KERNELS = 8, 60
_ALL_RANKS_SUFFIX = ", all ranks"


class RowPlace(Struct, frozen=True, kw_only=True):
    """Position of a row in the report of ``zprof compare``: ``sections[i].rows[j]``."""

    section: ComparedSection
    row: ComparedRow
    at: tuple[int, int]

    @property
    def key(self) -> str:
        """Return the path of the row in that report's JSON."""
        return f"sections[{self.at[0]}].rows[{self.at[1]}]"


def select_places(both: SideBySide, *, only_differences: bool) -> list[RowPlace]:
    """Select the informative rows, the step first; only notable ranks and the longest kernels."""
    ranks = _select_ranks(both)
    places = [
        (list(SectionKind).index(classify_section(section)), place)
        for at, section in enumerate(both.sections)
        if parse_rank(section) in ranks
        for place in _select_section_rows(section, at)
    ]
    ordered = [place for _, place in sorted(places, key=lambda entry: (entry[0], entry[1].at))]
    return [place for place in ordered if not only_differences or _differs(place.row)]


def _select_section_rows(section: ComparedSection, at: int) -> Iterator[RowPlace]:
    informative = select_shown_rows(section, everything=False)
    max_rows = _MAX_KERNELS if classify_section(section) is SectionKind.KERNELS else len(section.rows)
    selected = {id(row) for row in informative[:max_rows]}
    for number, row in enumerate(section.rows):
        if id(row) in selected:
            yield RowPlace(section=section, row=row, at=(at, number))


def _select_ranks(both: SideBySide) -> set[int | None]:
    """Return the ranks to show individually; None stands for rows without a rank."""
    ranks = [rank for rank in map(parse_rank, both.sections) if rank is not None]
    times = both.comparison.baseline_time if both.comparison else ()
    notable = [entry.rank for entry in select_extreme_ranks(times, _MAX_RANKS)] or sorted(set(ranks))[
        :_MAX_RANKS
    ]
    return {None, *notable}


def _differs(row: ComparedRow) -> bool:
    return (
        bool(format_change(row))
        or (row.unit == "text" and row.a != row.b)
        or (row.a is None) != (row.b is None)
    )


def name_row(place: RowPlace) -> str:
    """Return a name for the row that is clear without its section."""
    section, name = place.section, label_row(place.row)
    part, rank = classify_section(section), parse_rank(section)
    if part is SectionKind.STEP:
        return "step time" if place.row.name == "wall_ns" else name
    if part is SectionKind.MEMORY:
        return "peak memory" if place.row.name == "peak_bytes" else name
    names = {
        SectionKind.RANK: f"rank {rank} {name}",
        SectionKind.LATE: f"rank {rank} late: {name}",
        SectionKind.COLLECTIVE: f"{section.title.removesuffix(_ALL_RANKS_SUFFIX)} {name}",
        SectionKind.LINK: (
            f"{section.title.removesuffix(_ALL_RANKS_SUFFIX).removeprefix('link of ')} link {name}"
        ),
        SectionKind.CLOCKS: f"clocks {name}",
        SectionKind.VOLUME: f"volume {name}",
    }
    return names.get(part, name)


class SectionKind(StrEnum):
    """Subject of a section of ``zprof compare``, in display order."""

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
_MIN_WHOLE_PERCENT = 10
#: `zprof compare` rounds mean times and bytes to integers (tolerance 1.0), but not shares and counts.
_RATIO_ROUNDING = 1e-9
_TENANTS = {f"{tenant.value}_bytes": tenant.value for tenant in Tenant}


class WordedValue(Value, frozen=True, kw_only=True):
    """A number computed from both runs, with the words for it: ``+3.2 %``, ``± 1.2 ms``."""

    words: str

    @property
    def text(self) -> str:
        """The words."""
        return self.words


def classify_section(section: ComparedSection) -> SectionKind:
    """Return the kind of a section, by its title."""
    title = section.title
    if _LATE.fullmatch(title):
        return SectionKind.LATE
    if _RANK.fullmatch(title):
        return SectionKind.RANK
    if title.startswith(_LINK):
        return SectionKind.LINK
    return SectionKind(title) if title in set(SectionKind) else SectionKind.COLLECTIVE


def parse_rank(section: ComparedSection) -> int | None:
    """Return the rank that a section is about, or None."""
    match = _RANK.match(section.title)
    is_rank = classify_section(section) in (SectionKind.RANK, SectionKind.LATE)
    return int(match[1]) if match and is_rank else None


def make_side_figure(loaded: LoadedRun, section: ComparedSection, row: ComparedRow, *, after: bool) -> Value:
    """Make one side's figure, with its report leaves if they yield exactly this number."""
    value = row.b if after else row.a
    assert not isinstance(value, str)
    unit = Unit(row.unit)
    source = _find_leaves(loaded.report, section, row, after=after)
    if source is not None:
        how, leaf = source
        number = read_value(loaded.report, leaf, how=how)
        tolerance = 1.0 if unit in (Unit.NS, Unit.BYTES) else _RATIO_ROUNDING
        if number.number is not None and value is not None and abs(number.number - value) <= tolerance:
            return number
    return Value(number=value, unit=unit)


def _find_leaves(
    report: Report, section: ComparedSection, row: ComparedRow, *, after: bool
) -> tuple[Aggregation, str] | None:
    part, comparison = classify_section(section), report.comparison
    if comparison is None:
        return None
    times = "time.per_rank" if after else "comparison.baseline_time"
    if part is SectionKind.STEP:
        return Aggregation.MEAN, f"{times}[*].{row.name}"
    if part is SectionKind.RANK:
        return _find_rank_leaf(report, comparison, section, f"{times}[{{}}].{row.name}", after=after)
    if part is SectionKind.MEMORY:
        ranks = "memory.per_rank" if after else "comparison.baseline_memory"
        tenant = _TENANTS.get(row.name)
        return Aggregation.LARGEST, f"{ranks}[*].{f'tenants.{tenant}' if tenant else row.name}"
    if part is SectionKind.EQUAL_WORK:
        return Aggregation.LEAF, _find_work_leaf(row, after=after)
    return (Aggregation.LEAF, f"volume.{row.name}") if part is SectionKind.VOLUME and after else None


def _find_work_leaf(row: ComparedRow, *, after: bool) -> str:
    if row.unit == "ns":
        return "comparison.equal_work.b_ns" if after else "comparison.step_time.a_ns"
    return f"comparison.equal_work.{'b' if after else 'a'}_per_step"


def _find_rank_leaf(
    report: Report, comparison: Comparison, section: ComparedSection, leaf: str, *, after: bool
) -> tuple[Aggregation, str] | None:
    ranks = [entry.rank for entry in (report.time.per_rank if after else comparison.baseline_time)]
    rank = parse_rank(section)
    return (Aggregation.LEAF, leaf.format(ranks.index(rank))) if rank in ranks else None


def make_interval(report: Report, quantity: str) -> Value:
    """Make the 95 % interval of the change, relative to A's step time.

    ``quantity``: ``step_time`` or ``equal_work``. Whole percents if either end is 10 % or more.
    """
    leaves = [(f"comparison.{quantity}.ci95[{end}]", "comparison.step_time.a_ns") for end in (0, 1)]
    low, high = (read_value(report, *pair, how=Aggregation.SHARE, signed=True) for pair in leaves)
    if high.number is None or low.number is None:
        return high
    ends = (low.number * 100, high.number * 100)
    digits = 0 if max(map(abs, ends)) >= _MIN_WHOLE_PERCENT else 1
    words = "{:+.{digits}f}..{:+.{digits}f} %".format(*ends, digits=digits)
    return WordedValue(number=high.number, unit=high.unit, leaves=high.leaves, how=high.how, words=words)
