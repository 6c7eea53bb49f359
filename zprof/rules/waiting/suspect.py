"""The rank that arrives latest at collectives, and how far that stands out from noise."""

from dataclasses import dataclass
from math import comb

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.rules.rows import clock_uncertainty_ns, noise_floor_ns
from zprof.rules.waiting.arrivals import Arrivals

_ABOVE_NOISE = 3
_ABOVE_CLOCK = 10
_ABOVE_OTHERS = 2
#: Ranks that share a host's cores are late by turns of its scheduler: 1.3 ms in the median of healthy
#: gloo runs, 4.4 ms at worst.  Three times the median accuses nobody on a CPU.
_SCHEDULER_NS = 4_000_000
#: Three standard errors of a median over n steps are 3 * 1.25 * 1.48 / sqrt(n) deviations (MAD).
_STANDARD_ERRORS = 3 * 1.25 * 1.48


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """The rank with the largest skew.  Ratios are of steps and of late collectives.

    ``excess_ns`` is how much worse than the others it is in a step, with what chance can make of that.
    """

    rank: int
    skew_ns: float
    floor_ns: float
    excess_ns: float
    excess_error_ns: float
    steps_ratio: float
    late_ratio: float
    steps: int
    ranks: int

    @property
    def chance(self) -> float:
        """Probability that equal ranks make any one of them the latest in as many steps (binomial)."""
        blamed, share = round(self.steps_ratio * self.steps), 1 / self.ranks
        tail = sum(
            comb(self.steps, count) * share**count * (1 - share) ** (self.steps - count)
            for count in range(blamed, self.steps + 1)
        )
        return min(1.0, self.ranks * tail)


def suspect_of(analysis: RunAnalysis, seen: Arrivals) -> Suspect:
    """The rank whose median worst lateness is the largest; there must be a collective with two ranks."""
    worst = seen.worst_per_step()
    skews = worst.median(axis=0)
    rank = seen.ranks[int(np.argmax(skews.to_numpy()))]
    others = float(skews.drop(rank).median())
    excess = worst[rank] - worst.drop(columns=rank).median(axis=1)
    deviation = float((excess - excess.median()).abs().median())
    floor = max(
        _ABOVE_NOISE * noise_floor_ns(analysis),
        _ABOVE_CLOCK * clock_uncertainty_ns(analysis),
        _ABOVE_OTHERS * others,
        _SCHEDULER_NS if analysis.run.device == "cpu" else 0,
    )
    late = seen.table[seen.table["late_ns"] > max(floor, skews.max() / 2)]
    blamed_steps = (worst.idxmax(axis=1) == rank) & (worst[rank] > floor)
    return Suspect(
        rank=rank,
        skew_ns=float(skews[rank]),
        floor_ns=floor,
        excess_ns=float(excess.median()),
        excess_error_ns=_STANDARD_ERRORS * deviation / float(np.sqrt(len(worst))),
        steps_ratio=float(blamed_steps.mean()),
        late_ratio=float((late["last_rank"] == rank).mean()) if len(late) else 0.0,
        steps=len(worst),
        ranks=len(seen.ranks),
    )
