"""The verdict on a row in its place: whether times of it have a doubt at all, and whether it is a bound."""

from dataclasses import replace

from zprof.analysis.comparison import NO_INTERVAL
from zprof.model.side_by_side import Section
from zprof.reports.presenters.memory_figures import peak_mark
from zprof.reports.presenters.time_figures import unsplit_ns
from zprof.tui.figures import Figure
from zprof.tui.pages.bounds import AT_LEAST, AT_MOST, EXACT
from zprof.tui.pages.compare_leaves import Part, interval, part_of, rank_of
from zprof.tui.pages.compare_places import Place
from zprof.tui.pages.compare_shares import share_figure, share_interval
from zprof.tui.pages.compare_verdict import Doubt, Interval, Judgement, doubt_of, judged
from zprof.tui.session import Loaded

_NO_TIMES = Doubt(times_ns=None, why_not="no interval is known of these times")
_EXPOSED = frozenset({
    "exposed_wait_ns", "exposed_wait_per_rank_ns", "exposed_transfer_ns", "exposed_memcpy_ns", "exposed_ns",
})  # fmt: skip
#: What waiting and moving take apart: bounds where collectives were not seen on all ranks.
_SPLIT = {
    "exposed_wait_ns": AT_LEAST,
    "exposed_wait_per_rank_ns": AT_LEAST,
    "wait_ns": AT_LEAST,
    "wait_per_rank_ns": AT_LEAST,
    "exposed_transfer_ns": AT_MOST,
    "transfer_ns": AT_MOST,
}
#: Its times are fitted, of clocks, or summed over other ranks: no step time is a measure of their doubt.
_APART = frozenset({Part.LINK, Part.CLOCKS, Part.LATE})


def own_interval(loaded: Loaded, place: Place) -> Figure | None:
    """Of the step time, of that at equal work, of the hidden share; of one step or two it means nothing."""
    comparison = loaded.report.comparison
    few = any(gap.what == NO_INTERVAL for gap in loaded.report.gaps)
    if comparison is None or comparison.step_time is None or few:
        return None
    if part_of(place.section) is Part.STEP and place.row.name == "wall_ns":
        return interval(loaded.tree, "step_time")
    if part_of(place.section) is Part.EQUAL_WORK and place.row.unit == "ns" and comparison.equal_work:
        return interval(loaded.tree, "equal_work")
    share = share_interval(loaded, place)
    return share_figure(share) if share else None


def sign_of(loaded: Loaded, place: Place, *, after: bool) -> str:
    """What stands before a side's figure that is a bound; a rank's own where the row is of one."""
    comparison, name = loaded.report.comparison, place.row.name
    if comparison is None:
        return EXACT
    if part_of(place.section) is Part.MEMORY:
        held = loaded.report.memory.per_rank if after else comparison.baseline_memory
        is_peak = bool(held) and name == "peak_bytes"
        return peak_mark(max(held, key=lambda entry: entry.peak_bytes)) if is_peak else EXACT
    rank = rank_of(place.section)
    times = loaded.report.time.per_rank if after else comparison.baseline_time
    mine = [entry for entry in times if rank in (None, entry.rank)]
    if name in _SPLIT and unsplit_ns(mine):
        return _SPLIT[name]
    return AT_MOST if name in _EXPOSED and any(entry.upper_bound for entry in mine) else EXACT


def judgement_of(loaded: Loaded, place: Place, doubt: Doubt) -> Judgement:
    """The verdict on a row."""
    comparison, part = loaded.report.comparison, part_of(place.section)
    own: Interval | None = share_interval(loaded, place)
    is_time = place.row.unit == "ns" and own_interval(loaded, place) is not None
    if is_time and comparison is not None and comparison.step_time:
        work = comparison.equal_work if part is Part.EQUAL_WORK else None
        own = work.ci95 if work else comparison.step_time.ci95
        doubt = doubt_of(loaded.report, per_token=True) if work else doubt
    row = replace(place.row, name="kernel_ns") if part is Part.KERNELS else place.row
    times = _NO_TIMES if part in _APART else doubt
    found = judged(row, times, own=own, is_bound=is_bound(loaded, place))
    is_merit = found in (Judgement.BETTER, Judgement.WORSE, Judgement.NOISE)
    return Judgement.DIFFERS if is_merit and _is_of_one_side(place.section) else found


def _is_of_one_side(section: Section) -> bool:
    """A collective that one side does not use: less of it is no merit where another one does its work."""
    if part_of(section) is not Part.COLLECTIVE:
        return False
    return any(row.name == "count" and (not row.a) != (not row.b) for row in section.rows)


def is_bound(loaded: Loaded, place: Place) -> bool:
    """Whether a figure is the most or the least that it can be."""
    report, comparison = loaded.report, loaded.report.comparison
    before = comparison.baseline_memory if comparison else ()
    if part_of(place.section) is Part.MEMORY:
        return any(rank.upper_bound or rank.lower_bound for rank in (*report.memory.per_rank, *before))
    sides = (report.time.per_rank, comparison.baseline_time if comparison else ())
    if place.row.name in _SPLIT and any(unsplit_ns(ranks) for ranks in sides):
        return True
    return place.row.name in _EXPOSED and any(rank.upper_bound for ranks in sides for rank in ranks)
