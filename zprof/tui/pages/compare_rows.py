"""Rows of ``zprof compare`` as lines: both figures, the change, its interval, the verdict."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from zprof.analysis.comparison import NO_INTERVAL
from zprof.model.printable import shorten
from zprof.model.side_by_side import Row, Section, SideBySide
from zprof.reports.shown.compare_presenter import change, figure, label, shown_rows
from zprof.reports.shown.time_presenter import telling_ranks
from zprof.tui.figures import Figure, How, Unit
from zprof.tui.figures import figure as leaf_figure
from zprof.tui.pages.compare_leaves import Compared, Part, interval, part_of, rank_of, side
from zprof.tui.pages.compare_verdict import Doubt, Judgement, doubt_of, judged, verdict_word
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Line, Mark, Opens, Word

_LONGEST_PLACE = 200
_LONGEST_TEXT = 10
_MOST_RANKS, _MOST_KERNELS = 8, 60
_ALL = ", all ranks"
_NO_TIMES = Doubt(times_ns=None, why_not="no interval is known of these times")
_EXPOSED = frozenset({"exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns", "exposed_ns"})
#: Its times are fitted, of clocks, or summed over other ranks: no step time is a measure of their doubt.
_APART = frozenset({Part.LINK, Part.CLOCKS, Part.LATE})


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


def line_of(loaded: Loaded, place: Place, doubt: Doubt) -> Line:
    """A line of figures a step."""
    row = place.row
    own = own_interval(loaded, place)
    judgement = judgement_of(loaded, place, doubt)
    cells: tuple[Cell, ...] = (
        Word(name_of(place)),
        _cell(loaded, place, after=False),
        _cell(loaded, place, after=True),
        _change(row),
        own if own is not None else _exact(row, judgement),
        verdict_word(judgement),
        Word(shorten(f"{place.section.title}: {place.section.note}", _LONGEST_PLACE), Mark.MUTED),
    )
    return Line(
        key=place.key,
        cells=cells,
        opens=Opens.COMPARED,
        mark=Mark.TITLE if row.name == "wall_ns" and part_of(place.section) is Part.STEP else Mark.PLAIN,
    )


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


def own_interval(loaded: Loaded, place: Place) -> Figure | None:
    """Of the step time, and of the step time at equal work; of one step or two it means nothing."""
    comparison = loaded.report.comparison
    few = any(gap.what == NO_INTERVAL for gap in loaded.report.gaps)
    if comparison is None or comparison.step_time is None or few:
        return None
    if part_of(place.section) is Part.STEP and place.row.name == "wall_ns":
        return interval(loaded.tree, "step_time")
    if part_of(place.section) is Part.EQUAL_WORK and place.row.unit == "ns" and comparison.equal_work:
        return interval(loaded.tree, "equal_work")
    return None


def judgement_of(loaded: Loaded, place: Place, doubt: Doubt) -> Judgement:
    """The verdict on a row."""
    comparison, part = loaded.report.comparison, part_of(place.section)
    own = None
    if own_interval(loaded, place) is not None and comparison is not None and comparison.step_time:
        work = comparison.equal_work if part is Part.EQUAL_WORK else None
        own = work.ci95 if work else comparison.step_time.ci95
        doubt = doubt_of(loaded.report, per_token=True) if work else doubt
    row = replace(place.row, name="kernel_ns") if part is Part.KERNELS else place.row
    times = _NO_TIMES if part in _APART else doubt
    found = judged(row, times, own=own, is_bound=_is_bound(loaded, place))
    is_merit = found in (Judgement.BETTER, Judgement.WORSE, Judgement.NOISE)
    return Judgement.DIFFERS if is_merit and _is_of_one_side(place.section) else found


def _is_of_one_side(section: Section) -> bool:
    """A collective that one side does not use: less of it is no merit where another one does its work."""
    if part_of(section) is not Part.COLLECTIVE:
        return False
    return any(row.name == "count" and (not row.a) != (not row.b) for row in section.rows)


def _is_bound(loaded: Loaded, place: Place) -> bool:
    """Whether a figure is the most or the least that it can be."""
    report, comparison = loaded.report, loaded.report.comparison
    before = comparison.baseline_memory if comparison else ()
    if part_of(place.section) is Part.MEMORY:
        return any(rank.upper_bound or rank.lower_bound for rank in (*report.memory.per_rank, *before))
    times = (*report.time.per_rank, *(comparison.baseline_time if comparison else ()))
    return place.row.name in _EXPOSED and any(rank.upper_bound for rank in times)


def _cell(loaded: Loaded, place: Place, *, after: bool) -> Cell:
    value = place.row.b if after else place.row.a
    if place.row.unit != "text":
        return side(loaded, place.section, place.row, after=after)
    if part_of(place.section) is Part.FINDINGS:
        return Word("not tested" if value is None else value if value == "not found" else "found")
    return Word(shorten(figure(value, "text"), _LONGEST_TEXT))


def _change(row: Row) -> Cell:
    """As ``zprof compare`` writes it; it sorts by how much it is of A's value."""
    if not isinstance(row.a, int | float) or not isinstance(row.b, int | float):
        return Word("")
    share = row.b - row.a if row.unit == "ratio" else row.b / row.a - 1 if row.a else None
    return Compared(value=share, unit=Unit.RATIO, leaves=(), words=change(row))


def _exact(row: Row, judgement: Judgement) -> Word:
    is_exact = row.unit in ("bytes", "count") and judgement is not Judgement.UNKNOWN
    return Word("exact" if is_exact else "", Mark.MUTED)


def per_token_line(loaded: Loaded, place: Place, doubt: Doubt) -> Line:
    """A time of a step over the tokens of a step: the time of all ranks, so that jobs of any size compare."""
    row, tree = place.row, loaded.tree
    before = leaf_figure(
        tree,
        Unit.NS,
        f"comparison.baseline_time[*].{row.name}",
        "comparison.equal_work.a_per_step",
        how=How.SHARE,
    )
    after = leaf_figure(
        tree, Unit.NS, f"time.per_rank[*].{row.name}", "comparison.equal_work.b_per_step", how=How.SHARE
    )
    scaled = replace(row, a=before.value, b=after.value)
    own = _whole(place)
    judgement = judged(
        scaled, doubt, own=_work_interval(loaded) if own else None, is_bound=_is_bound(loaded, place)
    )
    cells: Sequence[Cell] = (
        Word(name_of(place)),
        before,
        after,
        _change(scaled),
        interval(tree, "equal_work") if own else Word(""),
        verdict_word(judgement),
        Word("time of all ranks, a token", Mark.MUTED),
    )
    return Line(key=f"{place.key} a token", cells=tuple(cells), mark=Mark.TITLE if own else Mark.PLAIN)


def _whole(place: Place) -> bool:
    return place.row.name == "wall_ns"


def _work_interval(loaded: Loaded) -> tuple[int, int] | None:
    comparison = loaded.report.comparison
    return comparison.equal_work.ci95 if comparison and comparison.equal_work else None
