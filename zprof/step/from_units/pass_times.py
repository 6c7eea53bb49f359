"""Find the start and the work of each pass of a rank's step.

A pass starts when the wait for its gather starts. If no wait was recorded, it starts when the gather after
the prefetched gathers is launched (on a device: when that gather starts on an idle link), or when the thread
resumes at the end of the pass's own gather. A backward ends when its reduction is launched. Between two
instants, all time in which the thread neither waits for nor launches sharding messages counts as work.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s, Intervals, covered, intervals, subtract, union
from zprof.analysis.time.ledger import RankTracks
from zprof.step.schedule import Pass, PassPhase
from zprof.step.tasks import Floats
from zprof.step.units import UnitOrder, select_gathers, select_reductions, sort_by_launch

#: A thread that waited for a message resumes within this time after it.
_MAX_RESUME_NS = 200_000
#: A message that starts within this time after another one was queued behind it.
_QUEUED_NS = 3_000


class RankTraffic(Struct, frozen=True, kw_only=True):
    """One rank's messages by launch, blocked intervals and steps; ``device`` is False for CPU ranks."""

    rows: Columns
    blocked: Intervals
    begins: dict[int, int]
    ends: dict[int, int]
    device: bool

    def work_ns(self, start_ns: Int64s, end_ns: Int64s) -> Floats:
        """Return the time between the instants during which the thread was not blocked."""
        return np.asarray((end_ns - start_ns) - covered(self.blocked, start_ns, end_ns), dtype=np.float64)


def collect_rank_rows(tracks: RankTracks, sharding: Columns, others: Columns, *, device: bool) -> RankTraffic:
    """Collect the rows of one rank; ``sharding`` are its sharding messages."""
    waits = sharding.at(sharding.known("wait_start_ns"))
    spans = union(_spans(waits, "wait_start_ns", "wait_end_ns"))
    if len(waits) < len(sharding) / 2:
        other_messages = union(intervals(others.ints("start_ns"), others.ints("end_ns")))
        spans = subtract(union(tracks.waiting, tracks.moving), other_messages)
    launches = sharding.at(sharding.known("launch_end_ns"))
    calls = spans[:0] if device else union(_spans(launches, "launch_start_ns", "launch_end_ns"))
    numbers = [int(number) for number in tracks.steps.number]
    return RankTraffic(
        rows=sort_by_launch(sharding),
        blocked=union(spans, calls),
        begins=dict(zip(numbers, tracks.steps.begin_ns.tolist(), strict=True)),
        ends=dict(zip(numbers, tracks.steps.end_ns.tolist(), strict=True)),
        device=device,
    )


def _spans(rows: Columns, begin: str, end: str) -> Intervals:
    return intervals(rows.ints(begin), rows.ints(end))


def pass_starts(
    rank: RankTraffic, step: int, order: UnitOrder, passes: tuple[Pass, ...], ahead: int
) -> Floats:
    """Return the start of each pass and, last, the end of the last one; NaN if not visible."""
    starts = np.full(len(passes) + 1, np.nan)
    rows = rank.rows.at(rank.rows.ints("step") == step)
    _mark_backward_ends(starts, rank, rows, order, passes)
    if order.gathers_before_passes and order.has_unit_names:
        # Mark stage 3 passes, which start with the wait for their gather.
        gathers = select_gathers(rows)
        is_forward = gathers.texts("phase").equals("forward")
        phases = np.where(is_forward, PassPhase.FORWARD.value, PassPhase.BACKWARD.value)
        ready, awaited = _ready_times(rank, gathers), _wait_times(rank, gathers)
        for phase in PassPhase:
            places: dict[str, list[int]] = {}
            for index, each in enumerate(passes):
                if each.phase is phase and each.needs:
                    places.setdefault(order.units[each.unit].name, []).append(index)
            phase_rows = np.flatnonzero(phases == phase.value)
            names = gathers.texts("unit").at(phase_rows)
            served = [places[name].pop(0) if places.get(name) else -1 for name in names]
            for position, (row, index) in enumerate(zip(phase_rows, served, strict=True)):
                if index < 0:
                    continue
                own = float(awaited[row])
                if np.isnan(own) and position + ahead < len(phase_rows) and position:
                    own = ready[phase_rows[position + ahead]]
                if not np.isnan(own):
                    starts[index] = own
    elif order.has_unit_names:
        _mark_awaited_passes(starts, rank, step, order, passes)
    begin, end = rank.begins[step], rank.ends[step]
    starts[(starts < begin) | (starts > end)] = np.nan
    known = ~np.isnan(starts)
    # a start before the start of an earlier pass is a wrong guess: drop it
    latest = np.maximum.accumulate(np.where(known, starts, -np.inf))
    starts[known & (starts < latest)] = np.nan
    return starts


def _mark_backward_ends(
    starts: Floats, rank: RankTraffic, rows: Columns, order: UnitOrder, passes: tuple[Pass, ...]
) -> None:
    """Mark ends of backward passes: a reduction is launched when its pass ends and the next one starts."""
    reduces = select_reductions(rows)
    at = _ready_times(rank, reduces)
    if order.has_unit_names:
        expected = [(index, order.units[each.unit].name) for index, each in enumerate(passes) if each.reduces]
        counted: dict[tuple[str, int], int] = {}
        queue: dict[str, list[float]] = {}
        batch = reduces.ints("micro_batch", -1).tolist()
        for name, instant, number in zip(reduces.texts("unit"), at, batch, strict=True):
            key = (name, number)
            if key not in counted:  # further pieces of the same unit add nothing
                counted[key] = 1
                queue.setdefault(name, []).append(instant)
        for index, name in expected:
            if queue.get(name):
                starts[index + 1] = queue[name].pop(0)
        return
    ends = [index + 1 for index, each in enumerate(passes) if each.reduces]
    for index, instant in zip(ends, at, strict=False):
        starts[index] = instant


def _ready_times(rank: RankTraffic, rows: Columns) -> list[float]:
    """Return launch times; on a device, start times, with NaN for messages that were queued."""
    if not rank.device:
        return [float(instant) for instant in rows.ints("at").tolist()]
    start = rows.ints("start_ns")
    ends = np.sort(rank.rows.ints("end_ns"))
    place = np.searchsorted(ends, start, side="right") - 1
    before = np.where(place >= 0, ends[np.maximum(place, 0)], np.iinfo(np.int64).min // 2)
    return [float(s) if s - b > _QUEUED_NS else np.nan for s, b in zip(start, before, strict=True)]


def _wait_times(rank: RankTraffic, gathers: Columns) -> Floats:
    """Return when the thread started to wait for each gather, or resumed as it ended; NaN if unknown."""
    known = gathers.floats("wait_start_ns")
    if not len(rank.blocked):
        return known
    end = gathers.ints("end_ns")
    place = np.minimum(np.searchsorted(rank.blocked[:, 1], end - _QUEUED_NS), len(rank.blocked) - 1)
    start, resumed = rank.blocked[place, 0], rank.blocked[place, 1]
    is_match = (resumed >= end - _QUEUED_NS) & (resumed <= end + _MAX_RESUME_NS) & (start < end)
    return np.asarray(np.where(np.isnan(known) & is_match, resumed, known), dtype=np.float64)


def _mark_awaited_passes(
    starts: Floats, rank: RankTraffic, step: int, order: UnitOrder, passes: tuple[Pass, ...]
) -> None:
    """Mark forwards of stages 1 and 2, which wait for the gathers of the previous step."""
    gathers = select_gathers(rank.rows)
    waits = gathers.at(gathers.known("wait_start_ns"))
    begin, end, instants = rank.begins[step], rank.ends[step], waits.ints("wait_start_ns")
    inside = waits.at((instants >= begin) & (instants < end) & (waits.ints("step") < step))
    names = {
        order.units[each.unit].name: index
        for index, each in reversed(list(enumerate(passes)))
        if each.phase is PassPhase.FORWARD
    }
    for name, instant in zip(inside.texts("unit"), inside.ints("wait_start_ns").tolist(), strict=True):
        if name in names:
            starts[names[name]] = float(instant)
