"""Fit a run's model: passes and their work, message costs, engine policy and link.

Pass boundaries are not always visible, so an interval between two known times may contain several passes. Its
work is split in proportion to each pass's median over the steps that measured it in isolation, or else to the
median of passes of the same kind and size. The remainder goes to passes without a measurement, by bytes (a
backward pass counts twice).

A pass starts when the wait for its gather starts. If no wait was recorded, it starts when the gather after
the prefetched gathers is launched (on a device: when that gather starts on an idle link), or when the thread
resumes at the end of the pass's own gather. A backward pass ends when its reduction is launched. Between
known times, all time in which the thread neither waits for nor launches sharding messages counts as work.
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s, Intervals, covered, intervals, subtract, union
from zprof.analysis.time.ledger import RankTracks
from zprof.model.collectives import BYTES_PER_ELEMENT
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.plan import Calibration
from zprof.step.links import Link, fit_link
from zprof.step.schedule import EnginePolicy, Pass, PassPhase, UnitSize, list_passes
from zprof.step.tasks import Floats
from zprof.step.unit_replay import MessageCosts, PassWork, StepPasses, measure_costs
from zprof.step.units import (
    ShardingMessages,
    UnitOrder,
    detect_order,
    detect_policy,
    launch_times_ns,
    select_gathers,
    select_messages,
    select_reductions,
    sort_by_launch,
)

#: Name of the reference engine in a run; its way of gathering new parameters is known.
_REFERENCE_ENGINE = "reference"
#: Units whose bytes differ by less than this share are assumed to take equal compute.
_SAME_SIZE_RATIO = 0.1
#: A thread waiting for a message resumes at most this long after the message ends.
_MAX_RESUME_NS = 200_000
#: A message that starts within this long of another's end was queued behind it.
_QUEUED_NS = 3_000


class CalibratedModel(Struct, frozen=True, kw_only=True):
    """A run's fitted model; ``alone``: number of passes whose work was measured in isolation."""

    skeleton: StepPasses
    policy: EnginePolicy
    costs: MessageCosts
    link: Link
    alone: int
    summary: Calibration
    reduced_element_bytes: int | None = None


class RankTraffic(Struct, frozen=True, kw_only=True):
    """One rank's messages by launch, blocked intervals and steps; ``device``: False for CPU ranks."""

    rows: Columns
    blocked: Intervals
    begins: dict[int, int]
    ends: dict[int, int]
    device: bool

    def work_ns(self, start_ns: Int64s, end_ns: Int64s) -> Floats:
        """Return the time between two moments in which the thread was not blocked."""
        return np.asarray((end_ns - start_ns) - covered(self.blocked, start_ns, end_ns), dtype=np.float64)


def calibrate(analysis: RunAnalysis) -> CalibratedModel | Gap:
    """Fit a run's model; return a gap if the run does not record enough."""
    if analysis.run.world_size < 2:
        return make_gap("model_of_one_rank")
    if not len(analysis.steps) or not analysis.tracks:
        return make_gap("model_without_step")
    messages = select_messages(analysis)
    if messages is None:
        return make_gap("model_without_messages")
    if not messages.steps:
        return make_gap("model_without_common_step")
    rows = messages.sharding
    rows = rows.with_columns(at=launch_times_ns(rows))
    order = detect_order(rows.at(np.isin(rows.ints("step"), messages.steps)))
    if order is None:
        return make_gap("model_without_reductions")
    link = fit_link(analysis, messages.all_sharding, messages.group_size)
    if link is None:
        return make_gap("model_without_matches")
    device = analysis.run.device != "cpu"
    policy = detect_policy(rows, order, analysis.training.stage)
    policy = replace(policy, updates_first=device and analysis.training.engine != _REFERENCE_ENGINE)
    skeleton, alone = _fit_step_passes(analysis, messages, order, policy, device=device)
    return CalibratedModel(
        skeleton=skeleton,
        policy=policy,
        costs=measure_costs(rows, device=device),
        link=link,
        alone=alone,
        summary=_summarize(analysis, skeleton, policy, link),
        reduced_element_bytes=_reduced_element_bytes(analysis, messages),
    )


def _reduced_element_bytes(analysis: RunAnalysis, messages: ShardingMessages) -> int | None:
    """Return the bytes per reduced gradient element, from messages or program settings; None if unknown."""
    types = select_reductions(messages.sharding).texts("dtype")
    sizes = [BYTES_PER_ELEMENT[name] for name in types if "float" in name and name in BYTES_PER_ELEMENT]
    if sizes:
        return int(np.median(sizes))
    return analysis.training.reduction_bytes or analysis.training.communication_bytes


def _fit_step_passes(
    analysis: RunAnalysis, messages: ShardingMessages, order: UnitOrder, policy: EnginePolicy, *, device: bool
) -> tuple[StepPasses, int]:
    passes = list_passes(order.units, order.backward, order.micro_batches, order.reduce_each)
    tracks = {each.rank: each for each in analysis.tracks}
    ranks = tuple(rank for rank in messages.ranks if rank in tracks)
    by_rank = [
        collect_rank_rows(
            tracks[rank],
            messages.sharding.at(messages.sharding.ints("rank") == rank),
            messages.others.at(messages.others.ints("rank") == rank),
            device=device,
        )
        for rank in ranks
    ]
    steps = tuple(step for step in messages.steps if all(step in rank.begins for rank in by_rank))
    shape = (len(steps), len(ranks))
    head, tail, between = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    alone = np.full((len(passes), *shape), np.nan)
    shared: dict[tuple[int, int, int, int], float] = {}
    for column, rank in enumerate(by_rank):
        for row, step in enumerate(steps):
            starts_ns = pass_starts(rank, step, order, passes, policy.prefetch)
            spans = _measure_intervals(rank, step, starts_ns)
            for first, last, work in spans:
                if first < 0:
                    head[row, column] = work
                elif first >= len(passes):
                    tail[row, column] = work
                elif last - first == 1:
                    alone[first, row, column] = work
                else:
                    shared[row, column, first, last] = work
            between[row, column] = max(0, rank.begins.get(step + 1, rank.ends[step]) - rank.ends[step])
    filled, measured_alone = split_shared_work(alone, shared, passes, order.units)
    pass_work = PassWork(head=head, passes=filled, tail=tail, between=between)
    skeleton = StepPasses(
        units=order.units,
        passes=passes,
        work=pass_work,
        ranks=ranks,
        steps=steps,
        micro_batches=order.micro_batches,
    )
    return skeleton, measured_alone


def _measure_intervals(rank: RankTraffic, step: int, starts_ns: Floats) -> list[tuple[int, int, float]]:
    """Return (first pass, pass after the last, work) between known times.

    The head of the step is pass -1, the tail is the number of passes.
    """
    count = len(starts_ns) - 1
    known = np.flatnonzero(~np.isnan(starts_ns))
    edges = [float(rank.begins[step]), *starts_ns[known].tolist(), float(rank.ends[step])]
    starts = [-1 if len(known) and known[0] == 0 else 0, *known.tolist()]
    stops = [*known.tolist(), count + 1]
    instants = np.round(edges).astype(np.int64)
    works = rank.work_ns(instants[:-1], instants[1:]).tolist()
    found = []
    for first, last, work in zip(starts, stops, works, strict=True):
        end_pass = last if last <= count else (count if first < count else count + 1)
        found.append((first, max(end_pass, first + 1), max(0.0, work)))
    return found


def _summarize(analysis: RunAnalysis, skeleton: StepPasses, policy: EnginePolicy, link: Link) -> Calibration:
    typical = np.median(skeleton.work.passes, axis=(1, 2))
    slowest, skew = _measure_skew(skeleton.work.passes.sum(axis=0), skeleton.ranks)
    return Calibration(
        units=len(skeleton.units),
        micro_batches=skeleton.micro_batches,
        passes=len(skeleton.passes),
        forward_ns=_sum_phase_ns(typical, skeleton.passes, PassPhase.FORWARD),
        backward_ns=_sum_phase_ns(typical, skeleton.passes, PassPhase.BACKWARD),
        optimizer_ns=round(float(np.median(skeleton.work.tail))),
        links=link.fitted,
        slowest_rank=slowest,
        skew_ns=skew,
        prefetch=policy.prefetch if policy.stage == 3 else None,
        steps=len(skeleton.steps),
    )


def _sum_phase_ns(typical: Floats, passes: tuple[Pass, ...], phase: PassPhase) -> int:
    return round(float(sum(ns for ns, each in zip(typical, passes, strict=True) if each.phase is phase)))


def _measure_skew(busy: Floats, ranks: tuple[int, ...]) -> tuple[int | None, int]:
    """Return the rank with the most work, and its excess over the median rank."""
    each = np.median(busy, axis=0)
    if len(each) < 2:
        return None, 0
    return ranks[int(each.argmax())], round(float(each.max() - np.median(each)))


def split_shared_work(
    alone: Floats,
    shared: "dict[tuple[int, int, int, int], float]",
    passes: tuple[Pass, ...],
    units: tuple[UnitSize, ...],
) -> tuple[Floats, int]:
    """Split the work of intervals that contain several passes.

    Args:
        alone: Work of [pass, step, rank], NaN if the pass shares an interval.
        shared: Work of an interval by (step, rank, first pass, pass after the last).
        passes: The passes of a step.
        units: Their units.

    Returns:
        All work, and the number of passes measured in isolation in at least one step.
    """
    with np.errstate(all="ignore"):
        known = np.array([np.nanmedian(row) if (~np.isnan(row)).any() else np.nan for row in alone])
    typical_work = np.array([_typical_work(index, known, passes, units) for index in range(len(passes))])
    weights = np.array([units[each.unit].reduce_bytes * _pass_weight(each) for each in passes])
    filled = alone.copy()
    for (step, rank, first, last), work in shared.items():
        filled[first:last, step, rank] = _split_work(typical_work[first:last], weights[first:last], work)
    return filled, int((~np.isnan(known)).sum())


def _pass_weight(each: Pass) -> float:
    if not each.needs:
        return 0.1  # the last pass of the root has only the embedding
    return 1.0 if each.phase is PassPhase.FORWARD else 2.0


def _typical_work(index: int, known: Floats, passes: tuple[Pass, ...], units: tuple[UnitSize, ...]) -> float:
    if not np.isnan(known[index]):
        return float(known[index])
    own, size = passes[index], units[passes[index].unit].reduce_bytes
    similar = [
        known[other]
        for other, each in enumerate(passes)
        if (each.phase, each.needs) == (own.phase, own.needs)
        and units[each.unit].encloses == units[own.unit].encloses
        and abs(units[each.unit].reduce_bytes - size) <= _SAME_SIZE_RATIO * size
        and not np.isnan(known[other])
    ]
    return float(np.median(similar)) if similar else np.nan


def _split_work(typical_work: Floats, weights: Floats, work: float) -> Floats:
    missing = np.isnan(typical_work)
    known_sum = float(np.nansum(typical_work))
    if not missing.any():
        return np.asarray(
            typical_work * (work / known_sum)
            if known_sum > 0
            else np.full(len(typical_work), work / len(typical_work))
        )
    min_work = 0.0
    if known_sum > work:  # known passes alone exceed the interval
        typical_work, known_sum = typical_work * (work / known_sum), work
    weights = np.where(missing, np.maximum(weights, 1e-9), 0.0)
    remainder = max(min_work, work - known_sum)
    return np.asarray(np.where(missing, remainder * weights / weights.sum(), typical_work), dtype=np.float64)


def collect_rank_rows(tracks: RankTracks, sharding: Columns, others: Columns, *, device: bool) -> RankTraffic:
    """Collect one rank's rows; ``sharding``: its sharding messages."""
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
    """Return the start of each pass and, last, the end of the last pass; NaN if not visible."""
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
    """Return when the thread started to wait for each gather, or resumed at its end; NaN if unknown."""
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
    """Mark forward passes of stages 1 and 2, which wait for the previous step's gathers."""
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
