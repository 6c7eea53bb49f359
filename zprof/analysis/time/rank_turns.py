"""Measure how ranks are late in turn: in each step, the one that is busy by itself longer than the others."""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Floats
from zprof.analysis.time.late_ranks import noise_floor_of_delay_ns
from zprof.analysis.time.own_time import OwnTime, measure_own_time

#: Median deviations of the others: among equal ranks, the latest of eight deviates by two to three.
_ABOVE_OTHERS = 4


class RankTurns(Struct, frozen=True, kw_only=True):
    """The latest rank of each step and its cost, as means over the steps.

    ``floor_ns``: the delay that noise can cause. ``late_ratio``: the share of steps with a rank that is
    clearly later than the others; ``late``: these ranks. Shares of the cost: ``idle_ratio`` without compute,
    ``main_ratio`` on the rank that has most, ``queued_ratio`` ready but without a processor.
    """

    cost_ns: float
    floor_ns: float
    late_ratio: float
    idle_ratio: float
    main_ratio: float
    queued_ratio: float
    late: tuple[int, ...]
    ranks: int
    steps: int


def measure_rank_turns(analysis: RunAnalysis) -> RankTurns:
    """Measure the cost of the latest rank of each step; needs two ranks and one step."""
    own = measure_own_time(analysis)
    floor_ns = noise_floor_of_delay_ns(analysis)
    step, latest = np.arange(own.steps), np.argmax(own.own, axis=1)
    cost = own.longer[step, latest]
    is_late = cost > np.maximum(floor_ns, _ABOVE_OTHERS * _measure_deviation_of_others(own))
    idle = np.minimum(cost, (own.idle + own.copies)[step, latest])
    queued = np.clip(own.queued[step, latest], 0.0, cost)
    on_rank = np.bincount(latest, weights=cost * is_late, minlength=len(own.ranks))
    total = float(cost.sum())
    return RankTurns(
        cost_ns=float((cost * is_late).mean()),
        floor_ns=floor_ns,
        late_ratio=float(is_late.mean()),
        idle_ratio=float((idle * is_late).sum()) / total if total else 0.0,
        main_ratio=float(on_rank.max()) / total if total else 0.0,
        queued_ratio=float((queued * is_late).sum()) / float((cost * is_late).sum())
        if is_late.any()
        else 0.0,
        late=tuple(own.ranks[place] for place in np.unique(latest[is_late]).tolist()),
        ranks=len(own.ranks),
        steps=own.steps,
    )


def _measure_deviation_of_others(own: OwnTime) -> Floats:
    """Return for each step the median deviation of all ranks but the latest from their median."""
    others = np.sort(own.own, axis=1)[:, :-1]
    middle = np.median(others, axis=1, keepdims=True)
    deviation: Floats = np.median(np.abs(others - middle), axis=1)
    return deviation
