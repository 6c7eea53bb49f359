"""Which rows of ``zprof compare`` are shown, in which order, and what they are called."""

from collections.abc import Iterator
from dataclasses import dataclass

from zprof.model.side_by_side import Row, Section, SideBySide
from zprof.reports.presenters.side_by_side import change, label, shown_rows
from zprof.reports.presenters.time_figures import telling_ranks
from zprof.tui.pages.compare_leaves import Part, part_of, rank_of

_MOST_RANKS, _MOST_KERNELS = 8, 60
_ALL = ", all ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a row stands in the report of ``zprof compare``: ``sections[i].rows[j]``."""

    section: Section
    row: Row
    at: tuple[int, int]

    @property
    def key(self) -> str:
        """Its path in that report's JSON."""
        return f"sections[{self.at[0]}].rows[{self.at[1]}]"


def places(both: SideBySide, *, only_differences: bool) -> list[Place]:
    """Rows that say something, the step first; of many ranks the telling ones, of kernels the longest."""
    ranks = _ranks(both)
    found = [
        (list(Part).index(part_of(section)), place)
        for at, section in enumerate(both.sections)
        if rank_of(section) in ranks
        for place in _of_section(section, at)
    ]
    ordered = [place for _, place in sorted(found, key=lambda entry: (entry[0], entry[1].at))]
    return [place for place in ordered if not only_differences or _differs(place.row)]


def _of_section(section: Section, at: int) -> Iterator[Place]:
    shown = shown_rows(section, everything=False)
    most = _MOST_KERNELS if part_of(section) is Part.KERNELS else len(section.rows)
    kept = {id(row) for row in shown[:most]}
    for number, row in enumerate(section.rows):
        if id(row) in kept:
            yield Place(section=section, row=row, at=(at, number))


def _ranks(both: SideBySide) -> set[int | None]:
    """The ranks that are shown one by one; None stands for what is of no rank."""
    seen = [rank for rank in map(rank_of, both.sections) if rank is not None]
    times = both.comparison.baseline_time if both.comparison else ()
    telling = [entry.rank for entry in telling_ranks(times, _MOST_RANKS)] or sorted(set(seen))[:_MOST_RANKS]
    return {None, *telling}


def _differs(row: Row) -> bool:
    return bool(change(row)) or (row.unit == "text" and row.a != row.b) or (row.a is None) != (row.b is None)


def name_of(place: Place) -> str:
    """A name that says what it is of without its section."""
    section, name = place.section, label(place.row)
    part, rank = part_of(section), rank_of(section)
    if part is Part.STEP:
        return "step time" if place.row.name == "wall_ns" else name
    if part is Part.MEMORY:
        return "peak memory" if place.row.name == "peak_bytes" else name
    named = {
        Part.RANK: f"rank {rank} {name}",
        Part.LATE: f"rank {rank} late: {name}",
        Part.COLLECTIVE: f"{section.title.removesuffix(_ALL)} {name}",
        Part.LINK: f"{section.title.removesuffix(_ALL).removeprefix('link of ')} link {name}",
        Part.CLOCKS: f"clocks {name}",
        Part.VOLUME: f"volume {name}",
    }
    return named.get(part, name)
