"""Find what a late or idle rank does: operators that it runs more often, and lines between operators.

Operators are counted where they are not inside another one, over the steps of each rank. A line is one of the
user's program that more of the samples of the late rank show than of the others.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Mask
from zprof.analysis.intervals import EMPTY, Intervals, subtract, union
from zprof.analysis.time.activity import find_outermost
from zprof.analysis.time.activity_from_events import has_device_work
from zprof.analysis.time.events import CALL_CATEGORIES, EventView, decode_events, is_operator
from zprof.analysis.time.host_calls import read_loader_spans
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.program_lines import choose_line, weigh_lines
from zprof.model.collectives import is_collective_kernel
from zprof.model.errors import BadInput
from zprof.model.findings import SourceLocation
from zprof.model.formatting import printable
from zprof.run.reader import Run

_OPERATORS, _KERNELS = "cpu_op", "kernel"
_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread")
#: Ranks that a late one is compared with, and ranks that are searched for a line.
_MAX_OTHERS, _MAX_LINE_RANKS = 8, 4
#: An operator is extra if it runs this much more often, at least this often per step.
_MIN_COUNT_RATIO, _MIN_COUNT = 1.05, 0.1
#: Share of a delay that extra operators explain, to be its reason.
_MIN_DELAY_RATIO = 0.3
_MAX_NAMED = 3
#: Share of the weight of all lines that one line has, to be named.
_MIN_LINE_RATIO = 0.3
_FindSpans = Callable[[Run, RankTracks], Intervals]


class ExtraOperator(Struct, frozen=True, kw_only=True):
    """An operator that a rank runs more often: times per step, there and in the median of the other ranks."""

    name: str
    count: float
    others_count: float


class LineShare(Struct, frozen=True, kw_only=True):
    """A line of the program, and its share of the time that was looked at."""

    location: SourceLocation
    share: float


def name_place(location: SourceLocation) -> str:
    """Return a line in words, such as ``train.py:65 (main)``."""
    return printable(f"{location.file}:{location.line} ({location.function})")


def find_extra_operators(
    run: Run | None, tracks: Sequence[RankTracks], late: Sequence[int], delay_ns: float
) -> list[ExtraOperator]:
    """Return up to three operators that the first late rank runs more often, those that take longest first.

    Nothing is returned if they explain too little of the delay per step, on the host and on the device, or if
    the run has been moved away.
    """
    mine = [each for each in tracks if each.rank in late[:1]]
    others = [each for each in tracks if each.rank not in late][:_MAX_OTHERS]
    if run is None or not mine or not others:
        return []
    try:
        found = [_compare_uses(run, mine[0], others, category) for category in (_OPERATORS, _KERNELS)]
    except BadInput:
        return []
    extra = found[0] or found[1]
    if max(sum(times.values()) for times in found) < _MIN_DELAY_RATIO * max(1.0, delay_ns):
        return []
    return sorted(extra, key=lambda each: -extra[each])[:_MAX_NAMED]


def _compare_uses(
    run: Run, mine: RankTracks, others: Sequence[RankTracks], category: str
) -> dict[ExtraOperator, float]:
    """Return what ``mine`` runs more often, and how long that takes per step."""
    uses, others_uses = _sum_uses(run, mine, category), [_sum_uses(run, each, category) for each in others]
    extra: dict[ExtraOperator, float] = {}
    for name, (count, duration_ns) in uses.items():
        typical = median([each[name][0] if name in each else 0.0 for each in others_uses])
        if count >= _MIN_COUNT_RATIO * typical and count - typical >= _MIN_COUNT:
            operator = ExtraOperator(name=name, count=count, others_count=typical)
            extra[operator] = (count - typical) * duration_ns / count
    return extra


def _sum_uses(run: Run, tracks: RankTracks, category: str) -> Mapping[str, tuple[float, float]]:
    """Return how often and how long each operator runs per step."""
    view, rows = _select_outermost(run, tracks, category)
    names, codes = view.coded(np.flatnonzero(rows))
    counts = np.bincount(codes, minlength=len(names))
    times = np.bincount(codes, weights=view.spans[rows, 1] - view.spans[rows, 0], minlength=len(names))
    steps = max(1, len(tracks.host_steps))
    return {
        name: (count / steps, duration / steps)
        for name, count, duration in zip(names, counts.tolist(), times.tolist(), strict=True)
    }


def _select_outermost(run: Run, tracks: RankTracks, category: str) -> tuple[EventView, Mask]:
    """Return the events of a category, and mark those in the steps that are not inside another."""
    view = EventView(run.table(tracks.rank, "events", _COLUMNS), {category})
    in_steps = tracks.host_steps.step_at(tracks.clock.common(view.spans[:, 0])) >= 0
    if category == _KERNELS:
        return view, in_steps & ~view.match_names(in_steps, is_collective_kernel)
    operators = view.match_names(in_steps, is_operator)
    rows = np.zeros(len(operators), dtype=np.bool_)
    for thread in np.unique(view.thread[operators]).tolist():
        rows |= find_outermost(view, operators & (view.thread == thread))
    return view, rows


def locate_extra_operators(
    run: Run | None, tracks: Sequence[RankTracks], late: Sequence[int], extra: Sequence[ExtraOperator]
) -> SourceLocation | None:
    """Return the line from which a late rank runs most of what others do not; None if none is known."""
    names = {each.name for each in extra}

    def find_spans(run: Run, each: RankTracks) -> Intervals:
        view, rows = _select_outermost(run, each, _OPERATORS)
        chosen: Intervals = view.spans[view.match_names(rows, names.__contains__)]
        return chosen

    found = _find_line(run, tracks, late, find_spans)
    return found.location if found is not None else None


def locate_idle(run: Run | None, tracks: Sequence[RankTracks], late: Sequence[int] = ()) -> LineShare | None:
    """Return the line on which hosts spend most of the time in no operator, call or wait.

    With ``late`` ranks, it is the one on which they spend more of it than the others.
    """
    return _find_line(run, tracks, late, _find_idle_spans)


def _find_idle_spans(run: Run, tracks: RankTracks) -> Intervals:
    """Return when the host is in no operator, call, batch or wait, on the rank's own clock."""
    events = decode_events(run.table(tracks.rank, "events", _COLUMNS))
    view = EventView(events, CALL_CATEGORIES | {_OPERATORS})
    operators = view.match_categories(_OPERATORS)
    busy = view.spans[~operators | view.match_names(operators, is_operator)]
    waits = EMPTY if has_device_work(events) else union(tracks.waiting, tracks.moving)
    loading = read_loader_spans(run, tracks.rank)
    steps = tracks.clock.local(tracks.host_steps.spans)
    return subtract(union(steps), union(busy, loading, tracks.clock.local(waits)))


def _find_line(
    run: Run | None, tracks: Sequence[RankTracks], late: Sequence[int], find_spans: _FindSpans
) -> LineShare | None:
    chosen = [each for each in tracks if each.rank in late or not late][:_MAX_LINE_RANKS]
    others = [each for each in tracks if late and each.rank not in late][:_MAX_LINE_RANKS]
    if run is None or not chosen:
        return None
    try:
        weights, usual = (_average_weights(run, ranks, find_spans) for ranks in (chosen, others))
    except BadInput:
        return None
    more = {line: weight - usual.get(line, 0.0) for line, weight in weights.items()}
    more = {line: weight for line, weight in more.items() if weight > 0}
    best, total = choose_line(more), sum(more.values())
    if best is None or best[1] < _MIN_LINE_RATIO * total:
        return None
    return LineShare(location=best[0], share=best[1] / total)


def _average_weights(
    run: Run, ranks: Sequence[RankTracks], find_spans: _FindSpans
) -> dict[SourceLocation, float]:
    """Return the mean weight of each line over the ranks."""
    weights: defaultdict[SourceLocation, float] = defaultdict(float)
    for each in ranks:
        for line, weight in weigh_lines(run, each.rank, find_spans(run, each)).items():
            weights[line] += weight / len(ranks)
    return weights
