"""What a gate reads of a run and its baseline, and exact arithmetic to compare it with a limit.

    allowed = baseline * (1 + change ratio)    or    baseline + change points    or    the value itself

A limit is a decimal number that somebody wrote: 0.29 is 29/100, so that 129 passes against 100 and +29 %.
A value equal to the allowed one passes. A figure that is only a bound decides only if its other side
cannot matter.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from zprof.analysis.comparison import difference_interval
from zprof.model.baseline import Baseline, MemoryBaseline, TimeBaseline
from zprof.model.check import Limit, Sense
from zprof.model.report import Report

Samples = npt.NDArray[np.float64]
#: Fewer steps on a side say too little of how much a step varies to fail a build.
MIN_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value, and whether the true one can be lower or higher."""

    value: Fraction
    can_be_lower: bool = False
    can_be_higher: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether it is not the value itself."""
        return self.can_be_lower or self.can_be_higher


def to_fraction(value: float) -> Fraction:
    """A number as the shortest decimal that is written for it."""
    return Fraction(str(value))


def is_relative(limit: Limit) -> bool:
    """Whether it needs a baseline."""
    return limit.value is None


def compute_allowed(limit: Limit, before: Figure | None) -> Figure:
    """What the limit allows: absolute, or of ``before``, which a relative limit must have.

    Raises:
        ValueError: a relative limit without a baseline's figure.
    """
    if limit.value is not None:
        return Figure(value=to_fraction(limit.value))
    if before is None:
        raise ValueError(f"{limit.gate}: a limit that is relative to nothing")
    if limit.change_points is not None:
        value = before.value + to_fraction(limit.change_points)
    else:
        value = before.value * (1 + to_fraction(limit.change_ratio or 0.0))
    return Figure(value=value, can_be_lower=before.can_be_lower, can_be_higher=before.can_be_higher)


def holds(now: Figure, allowed: Figure, sense: Sense) -> bool | None:
    """Whether ``now`` is allowed; None where a bound cannot decide it."""
    return decide_with_bounds(is_beyond(now, allowed, sense), now, allowed, sense)


def is_beyond(now: Figure, allowed: Figure, sense: Sense) -> bool:
    """Whether the values that were seen are beyond the limit, whatever the true ones are."""
    return now.value > allowed.value if sense is Sense.AT_MOST else now.value < allowed.value


def decide_with_bounds(beyond: bool, now: Figure, allowed: Figure, sense: Sense) -> bool | None:
    """Whether it holds where the seen values say ``beyond``; None where the true ones may say otherwise."""
    too_much = beyond == (sense is Sense.AT_MOST)  # the value is on the high side of what is allowed
    doubtful = now.can_be_lower or allowed.can_be_higher
    if not too_much:
        doubtful = now.can_be_higher or allowed.can_be_lower
    return None if doubtful else not beyond


def holds_with_confidence(
    interval: tuple[float, float], now: Figure, before: Fraction, allowed: Figure, sense: Sense
) -> bool | None:
    """The same of a sample: it is beyond the limit only where all of the interval of the change is."""
    low, high = interval
    room = float(allowed.value - before)
    return decide_with_bounds(low > room if sense is Sense.AT_MOST else high < room, now, allowed, sense)


def compute_interval(now: Samples, before: Samples, confidence: float) -> tuple[float, float]:
    """Interval of mean(now) - mean(before); one sample before is a value without a spread."""
    return difference_interval(before, now, confidence)


def ratio_samples(parts: Samples, wholes: Samples) -> Samples:
    """A sample a step whose mean is sum(parts) / sum(wholes), and whose spread is that of this ratio.

    A step's share in the ratio of sums is, to first order, its part beyond the ratio times its whole.
    """
    ratio = parts.sum() / wholes.sum()
    return np.asarray(ratio + (parts - ratio * wholes) / wholes.mean(), dtype=np.float64)


_MAX_RANKS = 4
_Side = MemoryBaseline | TimeBaseline


@dataclass(frozen=True, slots=True, kw_only=True)
class GateInput:
    """A limit, the run that is held against it, and the baseline.

    ``now`` is what the run would be as a baseline: both sides are read by the same code.
    """

    limit: Limit
    report: Report
    now: Baseline
    before: Baseline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """``now`` and ``before`` are None where they are not known; ``missing`` says why not, with a ``remedy``.

    ``samples`` are those of the run and of the baseline, one a step, for a limit with a confidence.
    ``where`` follows the value in the sentence.  ``only_warns``: why going beyond the limit is no failure.
    ``other_sort``: the value is a sum of other things than the baseline's, so that keeping within what it
    allows says too little and warns; ``grew`` names them.
    """

    now: Figure | None = None
    before: Figure | None = None
    missing: str = ""
    remedy: str = ""
    shown: Callable[[float], str]
    leaf: str = ""
    subject: str = ""
    where: str = ""
    grew: str = ""
    samples: tuple[Samples | None, Samples | None] = (None, None)
    only_warns: str = ""
    other_sort: bool = False


def newly_missing_ranks(now: Iterable[int], before: Iterable[int] = ()) -> tuple[int, ...]:
    """Of the ranks that are missing now, those that are not missing before."""
    return tuple(sorted(set(now) - set(before)))


def find_missing_ranks(asked: GateInput, now: _Side, before: _Side | None) -> tuple[int, ...]:
    """The ranks that the run should have and lacks: against a value all that are missing.

    Against a baseline those that it has: without the others both sides are of the same ranks.
    """
    excused = before.missing_ranks if before is not None and is_relative(asked.limit) else ()
    return newly_missing_ranks(now.missing_ranks, excused)


def format_ranks(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2``, ``ranks 1, 2, 3, 4 and 120 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _MAX_RANKS} more" if len(ranks) > _MAX_RANKS else ""
    return f"ranks {', '.join(map(str, ranks[:_MAX_RANKS]))}{more}"
