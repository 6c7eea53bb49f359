"""ZP302: in each step the host of a different rank stalls, and all others wait for it.

Garbage collection, a data loader, Python on shared cores: rare on each rank, but with many ranks one stalls
in every step. No rank is slow over all steps (that would be ZP301), but in each step one rank is busy with
its own work longer than the others (:mod:`zprof.analysis.time.own_time`):

    cost of a step = own time of the latest rank - the median of the others

Some rank is always the latest. To stand out from noise, the cost must exceed the floor (noise, clocks, time
slices of the scheduler) and four times the median deviation among the *others*, in most steps. Meanwhile the
latest rank must be idle or in host calls, because kernel noise is compute. And no rank may have more than
half of the cost (70 % with two ranks: of eight steps one has five by chance), as in docs/thresholds.md, which
has 30 % for many ranks.

With the fix the latest rank of each step takes as long as the others.
"""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import (
    RunAnalysis,
    Untested,
    find_missing_collectives,
    make_fact,
    mean_wall_ns,
    select_steady_rows,
)
from zprof.analysis.time.late_ranks import RankTurns, find_missing_ranks, find_reason, measure_rank_turns
from zprof.causes.cause import Cause, Observation, Signal
from zprof.causes.fix import LOAD_AHEAD, Fix
from zprof.causes.lateness import QUEUE_TEXT, REASON_TEXT, choose_late_fix, locate_late
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.model.time import LateReason
from zprof.step import edits
from zprof.step.play import PlayedStep
from zprof.step.rank_times import find_excess, find_slowest, mark_in_turn, measure_loading_ns, measure_turns
from zprof.step.tasks import NONE, Graph

#: Maximum share of the cost on one rank; with two ranks, one of them has at least half.
_ONE_RANK_RATIO, _ONE_OF_TWO_RATIO = 0.50, 0.70
#: Minimum share of steps with a late rank, and of the cost that is caused by the host.
_STEPS_RATIO, _HOST_RATIO = 0.60, 0.60
#: Share of the cost without a processor above which the machine's load is the reason.
_QUEUED_RATIO = 0.50
#: Minimum cost as a share of the step: for a finding, and for more than low confidence (docs/thresholds.md).
_MIN_STEP_RATIO, _COST_RATIO = 0.02, 0.05
#: For high confidence: minimum steps, and share of steps with a late rank and of the cost caused by the host.
_SURE_STEPS, _SURE_RATIO = 4, 0.75
#: Minimum gain of the played step: the outlier ranks are already known.
_MIN_SEEN_RATIO = 0.01

CAUSE = Cause(
    id="ZP302",
    name="rotating_straggler",
    meaning="In each step another rank's host stalls, and all others wait for it.",
    terms=("exposed_wait_ns", "exposed_transfer_ns"),
    other_rank_terms=("idle_ns", "exposed_memcpy_ns"),
    is_stall=True,
    sentence="in {late} of {steps} steps some rank is late, {turns} of {ranks} in turn, because {why}: by "
    "{lost:ns} in the mean step, {share:percent} of it",
    observed="in {late} of {steps} steps a different rank is slow by itself: at the pace of the others "
    "{step_is} shorter",
    evidence={
        "latest_rank_delay_per_step": ("latest rank behind the others {per_step}", Unit.NS),
        "noise_floor": ("delay that noise and clocks can make", Unit.NS),
        "delay_without_compute": ("of it without compute on the late rank", Unit.RATIO),
        "delay_on_main_rank": ("of it on the rank that has most", Unit.RATIO),
        "steps_with_late_rank": ("steps with a late rank", Unit.RATIO),
        "late_ranks": ("ranks that are late in some step", Unit.COUNT),
        "delay_without_processor": ("of it, ready but without a processor", Unit.RATIO),
        "steps_with_slow_rank": ("steps with a slow rank", Unit.COUNT),
    },
    fix=Fix(
        forms={},
        general="gc.collect(); gc.freeze(); gc.disable()          # before the loop\n"
        "if step % 500 == 0: gc.collect()                 # in it: on all ranks in the same step\n"
        "give each rank its own cores: numactl --physcpubind=..., OMP_NUM_THREADS below cores per rank",
    ),
    disprove="turn the collector off (gc.disable()) and give each rank its own cores, then record again: "
    "if other ranks are late in turn all the same, it is not their hosts",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if each step has a different late rank because its host stalls."""
    if (missing := find_missing_collectives(analysis)) is not None:
        return missing
    if (select_steady_rows(analysis).ints("group_size") == 1).all():
        return None
    if (missing := find_missing_ranks(analysis)) is not None:
        return missing
    turns, wall_ns = measure_rank_turns(analysis), mean_wall_ns(analysis)
    max_main_ratio = _ONE_OF_TWO_RATIO if turns.ranks == 2 else _ONE_RANK_RATIO
    are_hosts_late = turns.late_ratio >= _STEPS_RATIO and turns.idle_ratio >= _HOST_RATIO
    is_costly = turns.cost_ns >= _MIN_STEP_RATIO * wall_ns
    if not is_costly or not are_hosts_late or turns.main_ratio > max_main_ratio:
        return None
    return _make_signal(analysis, turns, wall_ns)


def _make_signal(analysis: RunAnalysis, turns: RankTurns, wall_ns: float) -> Signal:
    reason = find_reason(analysis, turns.late, compute_ns=0.0, copies_ns=0.0, idle_ns=turns.cost_ns)
    is_queued = turns.queued_ratio > _QUEUED_RATIO
    is_note = is_queued or turns.cost_ns < _COST_RATIO * wall_ns
    is_sure = min(turns.late_ratio, turns.idle_ratio) >= _SURE_RATIO and turns.steps >= _SURE_STEPS
    without = [make_fact("delay_without_processor", turns.queued_ratio)] if turns.queued_ratio else []
    return Signal(
        confidence=Confidence.LOW if is_note else Confidence.HIGH if is_sure else Confidence.MEDIUM,
        words={
            "late": round(turns.late_ratio * turns.steps),
            "steps": turns.steps,
            "turns": len(turns.late),
            "ranks": turns.ranks,
            "why": QUEUE_TEXT if is_queued else REASON_TEXT[reason],
            "lost": turns.cost_ns,
            "share": turns.cost_ns / wall_ns,
        },
        facts=[
            make_fact("latest_rank_delay_per_step", turns.cost_ns),
            make_fact("noise_floor", turns.floor_ns),
            make_fact("delay_without_compute", turns.idle_ratio),
            make_fact("delay_on_main_rank", turns.main_ratio),
            make_fact("steps_with_late_rank", turns.late_ratio),
            make_fact("late_ranks", len(turns.late)),
            *without,
        ],
        lost_ns=turns.cost_ns,
        fix=_choose_fix(analysis, reason),
        locate=lambda: locate_late(analysis, reason, turns.late),
    )


def _choose_fix(analysis: RunAnalysis, reason: LateReason) -> Fix | str | None:
    if reason is LateReason.DATA:
        return LOAD_AHEAD
    if reason is LateReason.ALLOCATOR:
        return choose_late_fix(analysis, reason)
    return "log every N steps, and no .item() in between" if reason is LateReason.SYNC else None


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the steps in which one of several ranks is itself slow."""
    assert step.graph is not None
    turns = measure_turns(step.analysis, step.graph)
    if not turns.any():
        return None
    cells = mark_in_turn(turns)
    slowest = find_slowest(np.where(cells, turns, 0.0))
    late = slowest != NONE
    if late.mean() < _STEPS_RATIO or len(set(slowest[late].tolist())) < 2:
        return None
    return Observation(
        changed=[edits.even_out_steps(step.graph, cells)],
        words={"late": int(late.sum()), "steps": len(late)},
        facts=[make_fact("steps_with_slow_rank", float(late.sum()))],
        min_ratio=_MIN_SEEN_RATIO,
    )


@CAUSE.edit
def even_out_turns(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which ranks that take turns being slow take as long as the others."""
    excess = find_excess(graph, measure_loading_ns(analysis, graph), in_turn=True)
    return [edits.even_out_steps(graph, mark_in_turn(excess))]
