"""What the model of a run takes from it: passes and their work, costs and habits, and the link."""

from dataclasses import dataclass, replace

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.model.gaps import Gap
from zprof.model.planning.whatif import Calibration
from zprof.planner.whatif.costs import Costs, costs_of
from zprof.planner.whatif.habits import Habits, habits_of
from zprof.planner.whatif.links import Link, link_of
from zprof.planner.whatif.messages import GATHER, Messages, messages_of
from zprof.planner.whatif.order import Order, launched_ns, order_of
from zprof.planner.whatif.skeleton import Floats, Pass, Phase, Skeleton, Work, passes_of
from zprof.planner.whatif.timeline import RankRows, begins_of, rank_rows
from zprof.planner.whatif.works import spread

_WHAT = "step of a changed run"
#: What the reference engine calls itself: how it gathers new parameters is known.
_REFERENCE = "reference"
_ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A run as the model knows it.  ``alone``: passes whose work was seen by itself."""

    skeleton: Skeleton
    habits: Habits
    costs: Costs
    link: Link
    alone: int
    summary: Calibration
    reduced_element_bytes: int | None = None


def calibrated(analysis: RunAnalysis) -> Calibrated | Gap:
    """Take the model of a run from it; a gap where that cannot be done."""
    if analysis.run.world_size < 2:
        return _gap("one rank sends nothing", "record a run of two ranks or more")
    if not len(analysis.steps) or not analysis.tracks:
        return _gap("no step was recorded for time", "record with the time window on")
    messages = messages_of(analysis)
    if messages is None:
        return _gap("no gather and no reduction was recorded", "record with the time window on")
    rows = messages.sharding
    rows = rows.assign(at=launched_ns(rows))
    order = order_of(rows[rows["step"].isin(messages.steps)])
    if order is None:
        return _gap("no reduction of gradients was recorded", "record whole steps with their backward")
    link = link_of(analysis, messages)
    if link is None:
        return _gap("no message was matched across ranks", "record all ranks of one group")
    device = analysis.run.device != "cpu"
    habits = habits_of(rows, order, analysis.training.stage)
    habits = replace(habits, updates_first=device and analysis.training.engine != _REFERENCE)
    skeleton, alone = _skeleton(analysis, messages, order, habits, device=device)
    return Calibrated(
        skeleton=skeleton,
        habits=habits,
        costs=costs_of(rows, device=device),
        link=link,
        alone=alone,
        summary=_summary(analysis, skeleton, habits, link),
        reduced_element_bytes=_element_bytes(analysis, messages),
    )


def _element_bytes(analysis: RunAnalysis, messages: Messages) -> int | None:
    """Of a gradient on the wire: as its messages say it, else the program; None where neither does."""
    rows = messages.sharding
    types = rows.loc[rows["kind"] != GATHER, "dtype"].astype(str)
    seen = types.map(_ELEMENT_BYTES).dropna()
    if len(seen):
        return int(seen.median())
    return analysis.training.reduction_bytes or analysis.training.communication_bytes


def _gap(reason: str, remedy: str) -> Gap:
    return Gap(what=_WHAT, reason=reason, remedy=remedy)


def _skeleton(
    analysis: RunAnalysis, messages: Messages, order: Order, habits: Habits, *, device: bool
) -> tuple[Skeleton, int]:
    passes = passes_of(order.units, order.backward, order.micro_batches, order.reduce_each)
    tracks = {each.rank: each for each in analysis.tracks}
    ranks = tuple(rank for rank in messages.ranks if rank in tracks)
    by_rank = [
        rank_rows(
            tracks[rank],
            messages.sharding[messages.sharding["rank"] == rank],
            messages.others[messages.others["rank"] == rank],
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
            begins = begins_of(rank, step, order, passes, habits.prefetch)
            stretches = _stretches(rank, step, begins)
            for first, last, work in stretches:
                if first < 0:
                    head[row, column] = work
                elif first >= len(passes):
                    tail[row, column] = work
                elif last - first == 1:
                    alone[first, row, column] = work
                else:
                    shared[row, column, first, last] = work
            between[row, column] = max(0, rank.begins.get(step + 1, rank.ends[step]) - rank.ends[step])
    filled, counted = spread(alone, shared, passes, order.units)
    made = Work(head=head, passes=filled, tail=tail, between=between)
    skeleton = Skeleton(
        units=order.units,
        passes=passes,
        work=made,
        ranks=ranks,
        steps=steps,
        micro_batches=order.micro_batches,
    )
    return skeleton, counted


def _stretches(rank: RankRows, step: int, begins: Floats) -> list[tuple[int, int, float]]:
    """(first pass, pass after the last, work) between known instants; the head is -1, the tail after all."""
    count = len(begins) - 1
    known = np.flatnonzero(~np.isnan(begins))
    edges = [float(rank.begins[step]), *begins[known].tolist(), float(rank.ends[step])]
    starts = [-1 if len(known) and known[0] == 0 else 0, *known.tolist()]
    stops = [*known.tolist(), count + 1]
    instants = np.round(edges).astype(np.int64)
    works = rank.work_ns(instants[:-1], instants[1:]).tolist()
    found = []
    for first, last, work in zip(starts, stops, works, strict=True):
        until = last if last <= count else (count if first < count else count + 1)
        found.append((first, max(until, first + 1), max(0.0, work)))
    return found


def _summary(analysis: RunAnalysis, skeleton: Skeleton, habits: Habits, link: Link) -> Calibration:
    typical = np.median(skeleton.work.passes, axis=(1, 2))
    slowest, skew = _skew(skeleton.work.passes.sum(axis=0), skeleton.ranks)
    return Calibration(
        units=len(skeleton.units),
        passes=len(skeleton.passes),
        forward_ns=_sum(typical, skeleton.passes, Phase.FORWARD),
        backward_ns=_sum(typical, skeleton.passes, Phase.BACKWARD),
        optimizer_ns=round(float(np.median(skeleton.work.tail))),
        links=link.fitted,
        slowest_rank=slowest,
        skew_ns=skew,
        prefetch=habits.prefetch if habits.stage == 3 else None,
        steps=len(skeleton.steps),
    )


def _sum(typical: Floats, passes: tuple[Pass, ...], phase: Phase) -> int:
    return round(float(sum(ns for ns, each in zip(typical, passes, strict=True) if each.phase is phase)))


def _skew(busy: Floats, ranks: tuple[int, ...]) -> tuple[int | None, int]:
    """The rank that works longest, and how much longer than the median one."""
    each = np.median(busy, axis=0)
    if len(each) < 2:
        return None, 0
    return ranks[int(each.argmax())], round(float(each.max() - np.median(each)))
