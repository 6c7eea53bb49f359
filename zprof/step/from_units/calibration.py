"""Fit the model of a run: passes and their work, message costs, engine policy and link.

Pass boundaries are not always visible, so an interval between two known times may contain several passes. Its
work is split by the median of each pass from the steps in which it was measured alone, or else by the median
of passes of the same kind and size. The remainder goes to passes without a measurement, by bytes (a backward
counts twice).
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import BYTES_PER_ELEMENT
from zprof.model.gaps import Gap, GapKind
from zprof.model.whatif import Calibration
from zprof.step.from_units.engine_policy import detect_policy
from zprof.step.from_units.pass_times import RankTraffic, collect_rank_rows, pass_starts
from zprof.step.from_units.unit_replay import MessageCosts, PassWork, StepPasses, measure_costs
from zprof.step.links import Link, fit_link
from zprof.step.schedule import EnginePolicy, Pass, PassPhase, UnitSize, list_passes
from zprof.step.tasks import Floats
from zprof.step.units import (
    ShardingMessages,
    UnitOrder,
    detect_order,
    launch_times_ns,
    select_messages,
    select_reductions,
)

_GAP_WHAT = "step of a changed run"
#: Name of the reference engine in a run; how it gathers new parameters is known.
_REFERENCE_ENGINE = "reference"
#: Units whose bytes differ by less than this share are assumed to take equal compute.
_SAME_SIZE_RATIO = 0.1


class CalibratedModel(Struct, frozen=True, kw_only=True):
    """Fitted model of a run; ``alone`` counts the passes whose work was measured alone."""

    skeleton: StepPasses
    policy: EnginePolicy
    costs: MessageCosts
    link: Link
    alone: int
    summary: Calibration
    reduced_element_bytes: int | None = None


def calibrate(analysis: RunAnalysis) -> CalibratedModel | Gap:
    """Fit the model of a run; return a gap if the run does not record enough."""
    if analysis.run.world_size < 2:
        return _calibration_gap("a single rank has no communication", "record a run with at least two ranks")
    if not len(analysis.steps) or not analysis.tracks:
        return _calibration_gap("no timed step was recorded", "record with the time window enabled")
    messages = select_messages(analysis)
    if messages is None:
        return _calibration_gap("no gather or reduction was recorded", "record with the time window enabled")
    if not messages.steps:
        return _calibration_gap(
            "no step with gathers or reductions was recorded by all ranks",
            "record the same steps on all ranks: profiler.step()",
        )
    rows = messages.sharding
    rows = rows.with_columns(at=launch_times_ns(rows))
    order = detect_order(rows.at(np.isin(rows.ints("step"), messages.steps)))
    if order is None:
        return _calibration_gap(
            "no gradient reduction was recorded", "record complete steps, including the backward"
        )
    link = fit_link(analysis, messages.all_sharding, messages.group_size)
    if link is None:
        return _calibration_gap("no message was matched across ranks", "record all ranks of a process group")
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


def _calibration_gap(reason: str, remedy: str) -> Gap:
    return Gap(kind=GapKind.PREDICTION, what=_GAP_WHAT, reason=reason, remedy=remedy)


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
        All work, and the number of passes that were measured alone in at least one step.
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
