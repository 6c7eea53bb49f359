"""ZP302 rotating_straggler: in each step the host of a different rank stalls, and all others wait for it.

Garbage collection, a data loader, Python on shared cores: rare on each rank, but with many ranks one stalls
in every step. No rank stands out over the steps (that would be ZP301), but in each step one rank is busy by
itself longer than the others (:mod:`zprof.analysis.time.own_time`):

    cost of a step = own time of the latest rank - the median of the others

Some rank is always the latest. To be distinct from noise, the cost must exceed the floor (noise, clocks, time
slices of the scheduler) and four times the median deviation among the *others*, in most steps. The latest
rank must be idle or in host calls meanwhile, because noise of kernels is compute. And no rank may have more
than half of the cost (70 % with two ranks: of eight steps one has five by chance), as docs/thresholds.md has
it with 30 % for many ranks.

With the fix the latest rank of each step takes as long as the others.
"""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import has_no_collectives, mean_wall_ns, select_steady_rows
from zprof.analysis.time.own_time import OwnTime, measure_own_time
from zprof.causes.fix import LOAD_AHEAD, choose_fix
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns, format_percent
from zprof.model.gaps import Gap
from zprof.model.time import LateReason
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.rules.waiting.late_ranks import (
    QUEUE_TEXT,
    choose_late_fix,
    find_reason,
    locate_late,
    noise_floor_of_delay_ns,
)
from zprof.rules.waiting.straggler_rank import missing_ranks_gap

#: Maximum share of the cost on one rank; with two ranks one has at least half of it.
_ONE_RANK_RATIO = 0.50
_ONE_OF_TWO_RATIO = 0.70
#: Minimum share of steps with a late rank, and of the cost that is caused by the host.
STEPS_RATIO = 0.60
_HOST_RATIO = 0.60
#: Share of the cost without a processor above which the machine's load is the reason.
_QUEUED_RATIO = 0.50
#: Median deviations of the others: among equal ranks, the latest of eight deviates by two to three.
_ABOVE_OTHERS = 4
#: Minimum cost as a share of the step: for a finding, and for more than low confidence (docs/thresholds.md).
_MIN_STEP_RATIO = 0.02
_COST_RATIO = 0.05
#: For high confidence: minimum steps, and share of steps with a late rank and of the cost caused by the host.
_MIN_STEPS_FOR_HIGH_CONFIDENCE = 4
_SURE_RATIO = 0.75

_REASON_TEXT = {
    LateReason.DATA: "its data arrives late",
    LateReason.ALLOCATOR: "its allocator blocks it",
    LateReason.SYNC: "its host waits for the device",
}
_SYNC_FIX = "log every N steps, and no .item() in between"
_FIX = (
    "gc.collect(); gc.freeze(); gc.disable()          # before the loop\n"
    "if step % 500 == 0: gc.collect()                 # in it: on all ranks in the same step\n"
    "give each rank its own cores: numactl --physcpubind=..., OMP_NUM_THREADS below cores per rank"
)


class _Turns(Struct, frozen=True, kw_only=True):
    """The latest rank of each step and its cost, as means over the steps.

    ``queued_ratio``: the share of the cost in which its thread was ready but had no processor.
    """

    cost_ns: float
    floor_ns: float
    idle_ratio: float
    largest_share_ratio: float
    late_ratio: float
    latest: tuple[int, ...]
    steps: int
    ranks: int
    queued_ratio: float

    @property
    def lacks_processors(self) -> bool:
        """True if in most of the cost a thread waited for a processor."""
        return self.queued_ratio > _QUEUED_RATIO

    @property
    def most_of_one_ratio(self) -> float:
        """Maximum share of the cost on one rank."""
        return _ONE_OF_TWO_RATIO if self.ranks == 2 else _ONE_RANK_RATIO


def rotating_straggler(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if each step has another late rank because its host stalls."""
    if has_no_collectives(analysis):
        return untested_gap(Cause.ROTATING_STRAGGLER, "no collective was recorded", "record the time window")
    rows = select_steady_rows(analysis)
    if (rows.ints("group_size") == 1).all():
        return None
    missing = missing_ranks_gap(analysis, Cause.ROTATING_STRAGGLER)
    if missing:
        return missing
    own = measure_own_time(analysis)
    floor_ns = noise_floor_of_delay_ns(analysis)
    step, latest = np.arange(own.steps), np.argmax(own.own, axis=1)
    cost = own.longer[step, latest]
    late = cost > np.maximum(floor_ns, _ABOVE_OTHERS * _deviation_of_others(own))
    idle = np.minimum(cost, (own.idle + own.copies)[step, latest])
    queued = np.clip(own.queued[step, latest], 0.0, cost)
    shares = np.bincount(latest, weights=cost * late, minlength=len(own.ranks))
    total = float(cost.sum())
    turns = _Turns(
        cost_ns=float((cost * late).mean()),
        floor_ns=floor_ns,
        idle_ratio=float((idle * late).sum()) / total if total else 0.0,
        largest_share_ratio=float(shares.max()) / total if total else 0.0,
        late_ratio=float(late.mean()),
        latest=tuple(np.unique(latest[late]).tolist()),
        steps=own.steps,
        ranks=len(own.ranks),
        queued_ratio=float((queued * late).sum()) / float((cost * late).sum()) if late.any() else 0.0,
    )
    return (
        _finding(analysis, own, turns)
        if (
            turns.cost_ns >= _MIN_STEP_RATIO * mean_wall_ns(analysis)
            and turns.late_ratio >= STEPS_RATIO
            and turns.idle_ratio >= _HOST_RATIO
            and turns.largest_share_ratio <= turns.most_of_one_ratio
        )
        else None
    )


def _deviation_of_others(own: OwnTime) -> npt.NDArray[np.float64]:
    """Return for each step the median deviation of all ranks but the latest from their median."""
    others = np.sort(own.own, axis=1)[:, :-1]
    middle = np.median(others, axis=1, keepdims=True)
    deviation: npt.NDArray[np.float64] = np.median(np.abs(others - middle), axis=1)
    return deviation


def _finding(analysis: RunAnalysis, own: OwnTime, turns: _Turns) -> Finding:
    wall = mean_wall_ns(analysis)
    ranks = tuple(own.ranks[place] for place in turns.latest)
    reason = find_reason(analysis, ranks, compute_ns=0.0, copies_ns=0.0, idle_ns=turns.cost_ns)
    return make_finding(
        analysis,
        Cause.ROTATING_STRAGGLER,
        sentence=f"in {round(turns.late_ratio * turns.steps)} of {turns.steps} steps some rank is late, "
        f"{len(ranks)} of {turns.ranks} in turn, because {_name_reason(turns, reason)}: by "
        f"{format_ns(turns.cost_ns)} in the mean step, {format_percent(turns.cost_ns / wall)} of it",
        evidence=[
            make_fact("latest_rank_delay_per_step", turns.cost_ns),
            make_fact("noise_floor/turns", turns.floor_ns),
            make_fact("delay_without_compute", turns.idle_ratio),
            make_fact("delay_on_main_rank", turns.largest_share_ratio),
            make_fact("steps_with_late_rank", turns.late_ratio),
            make_fact("late_ranks", len(turns.latest)),
            *([make_fact("delay_without_processor", turns.queued_ratio)] if turns.queued_ratio else []),
        ],
        saving_ns=(0.0, turns.cost_ns),
        severity=rate_severity(turns.cost_ns, wall),
        confidence=_confidence(turns, wall),
        fix=_choose_fix(analysis, reason),
        disprove="turn the collector off (gc.disable()) and give each rank its own cores, then record again: "
        "if other ranks are late in turn all the same, it is not their hosts",
        location=locate_late(analysis, reason, ranks),
    )


def _name_reason(turns: _Turns, reason: LateReason) -> str:
    return QUEUE_TEXT if turns.lacks_processors else _REASON_TEXT.get(reason, "its host stalls")


def _choose_fix(analysis: RunAnalysis, reason: LateReason) -> str:
    if reason is LateReason.DATA:
        return choose_fix(analysis, LOAD_AHEAD)
    if reason is LateReason.ALLOCATOR:
        return choose_late_fix(analysis, reason)
    return _SYNC_FIX if reason is LateReason.SYNC else _FIX


def _confidence(turns: _Turns, wall: float) -> Confidence:
    if turns.lacks_processors or turns.cost_ns < _COST_RATIO * wall:
        return Confidence.LOW
    sure = (
        min(turns.late_ratio, turns.idle_ratio) >= _SURE_RATIO
        and turns.steps >= _MIN_STEPS_FOR_HIGH_CONFIDENCE
    )
    return Confidence.HIGH if sure else Confidence.MEDIUM
