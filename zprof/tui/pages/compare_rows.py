"""Rows of ``zprof compare`` as lines: both figures, the change, its interval, the verdict."""

from collections.abc import Sequence
from dataclasses import replace

from zprof.model.printable import shorten
from zprof.model.side_by_side import Row
from zprof.model.units import format_ns
from zprof.reports.presenters.side_by_side import change, figure
from zprof.tui.figures import Figure, How, Unit
from zprof.tui.figures import figure as leaf_figure
from zprof.tui.pages.bounds import marked
from zprof.tui.pages.compare_judged import is_bound, judgement_of, own_interval, sign_of
from zprof.tui.pages.compare_leaves import Compared, Part, interval, part_of, side
from zprof.tui.pages.compare_places import Place, name_of
from zprof.tui.pages.compare_verdict import Doubt, Judgement, judged, verdict_word
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Line, Mark, Opens, Word

_LONGEST_PLACE = 200
_LONGEST_TEXT = 10


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
        own if own is not None else _limit(row, judgement, doubt),
        verdict_word(judgement),
        Word(shorten(f"{place.section.title}: {place.section.note}", _LONGEST_PLACE), Mark.MUTED),
    )
    return Line(
        key=place.key,
        cells=cells,
        opens=Opens.COMPARED,
        mark=Mark.TITLE if row.name == "wall_ns" and part_of(place.section) is Part.STEP else Mark.PLAIN,
    )


def _cell(loaded: Loaded, place: Place, *, after: bool) -> Cell:
    value = place.row.b if after else place.row.a
    if place.row.unit != "text":
        found = side(loaded, place.section, place.row, after=after)
        return _marked(found, sign_of(loaded, place, after=after))
    if part_of(place.section) is Part.FINDINGS:
        return Word("not tested" if value is None else value if value == "not found" else "found")
    return Word(shorten(figure(value, "text"), _LONGEST_TEXT))


def _marked(found: Figure, sign: str) -> Figure:
    if isinstance(found, Compared):
        return replace(found, words=f"{sign}{found.text}") if sign and found.value is not None else found
    return marked(found, sign)


def _change(row: Row) -> Cell:
    """As ``zprof compare`` writes it; it sorts by how much it is of A's value."""
    if not isinstance(row.a, int | float) or not isinstance(row.b, int | float):
        return Word("")
    share = row.b - row.a if row.unit == "ratio" else row.b / row.a - 1 if row.a else None
    return Compared(value=share, unit=Unit.RATIO, leaves=(), words=change(row))


def _exact(row: Row, judgement: Judgement) -> Word:
    is_known = judgement not in (Judgement.UNKNOWN, Judgement.UNJUDGED)
    return Word("exact" if row.unit in ("bytes", "count") and is_known else "", Mark.MUTED)


def _limit(row: Row, judgement: Judgement, doubt: Doubt) -> Cell:
    """How much a time must change by to be more than chance, where it was judged by that."""
    is_judged = judgement in (Judgement.BETTER, Judgement.WORSE, Judgement.NOISE, Judgement.DIFFERS)
    if row.unit != "ns" or not is_judged or doubt.times_ns is None:
        return _exact(row, judgement)
    limit = format_ns(doubt.times_ns)
    return Compared(value=doubt.times_ns, unit=Unit.NS, leaves=(), words=f"± {limit}")


def per_token_line(loaded: Loaded, place: Place, doubt: Doubt) -> Line:
    """A time of a step over the tokens of a step: the time of all ranks, so that jobs of any size compare."""
    row, tree = place.row, loaded.tree
    before = leaf_figure(
        tree,
        Unit.NS,
        f"comparison.baseline_time[*].{row.name}",
        "comparison.equal_work.a_per_step",
        how=How.PER_WORK,
    )
    after = leaf_figure(
        tree, Unit.NS, f"time.per_rank[*].{row.name}", "comparison.equal_work.b_per_step", how=How.PER_WORK
    )
    scaled = replace(row, a=before.value, b=after.value)
    own = _whole(place)
    judgement = judged(
        scaled, doubt, own=_work_interval(loaded) if own else None, is_bound=is_bound(loaded, place)
    )
    cells: Sequence[Cell] = (
        Word("rank time" if own else name_of(place)),
        marked(before, sign_of(loaded, place, after=False)),
        marked(after, sign_of(loaded, place, after=True)),
        _change(scaled),
        interval(tree, "equal_work") if own else _limit(scaled, judgement, doubt),
        verdict_word(judgement),
        Word("step times of all ranks, over the work of all", Mark.MUTED),
    )
    return Line(key=f"{place.key} a token", cells=tuple(cells), mark=Mark.TITLE if own else Mark.PLAIN)


def _whole(place: Place) -> bool:
    return place.row.name == "wall_ns"


def _work_interval(loaded: Loaded) -> tuple[int, int] | None:
    comparison = loaded.report.comparison
    return comparison.equal_work.ci95 if comparison and comparison.equal_work else None
