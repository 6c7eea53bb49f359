"""A figure against a limit, without the error of floats, and knowing what it may be instead.

    allowed = baseline * (1 + change ratio)    or    baseline + change points    or    the value itself

A limit is a decimal number that somebody wrote: 0.29 is 29/100, so that 129 passes against 100 and +29 %.
Equal to what is allowed holds.  A figure that is only a bound decides where its other side cannot matter.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from zprof.analysis.comparison import difference_interval
from zprof.model.check import Limit, Sense

Samples = npt.NDArray[np.float64]
#: Fewer steps on a side say too little of how much a step varies to fail a build.
LEAST_STEPS = 5


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


def exactly(value: float) -> Fraction:
    """A number as the shortest decimal that is written for it."""
    return Fraction(str(value))


def is_relative(limit: Limit) -> bool:
    """Whether it needs a baseline."""
    return limit.value is None


def allowed_of(limit: Limit, before: Figure | None) -> Figure:
    """What the limit allows: absolute, or of ``before``, which a relative limit must have.

    Raises:
        ValueError: a relative limit without a baseline's figure.
    """
    if limit.value is not None:
        return Figure(value=exactly(limit.value))
    if before is None:
        raise ValueError(f"{limit.gate}: a limit that is relative to nothing")
    if limit.change_points is not None:
        value = before.value + exactly(limit.change_points)
    else:
        value = before.value * (1 + exactly(limit.change_ratio or 0.0))
    return Figure(value=value, can_be_lower=before.can_be_lower, can_be_higher=before.can_be_higher)


def holds(now: Figure, allowed: Figure, sense: Sense) -> bool | None:
    """Whether ``now`` is allowed; None where a bound cannot decide it."""
    return decided(is_beyond(now, allowed, sense), now, allowed, sense)


def is_beyond(now: Figure, allowed: Figure, sense: Sense) -> bool:
    """Whether the values that were seen are beyond the limit, whatever the true ones are."""
    return now.value > allowed.value if sense is Sense.AT_MOST else now.value < allowed.value


def decided(beyond: bool, now: Figure, allowed: Figure, sense: Sense) -> bool | None:
    """Whether it holds where the seen values say ``beyond``; None where the true ones may say otherwise."""
    too_much = beyond == (sense is Sense.AT_MOST)  # the value is on the high side of what is allowed
    doubtful = now.can_be_lower or allowed.can_be_higher
    if not too_much:
        doubtful = now.can_be_higher or allowed.can_be_lower
    return None if doubtful else not beyond


def holds_surely(
    interval: tuple[float, float], now: Figure, before: Fraction, allowed: Figure, sense: Sense
) -> bool | None:
    """The same of a sample: it is beyond the limit only where all of the interval of the change is."""
    low, high = interval
    room = float(allowed.value - before)
    return decided(low > room if sense is Sense.AT_MOST else high < room, now, allowed, sense)


def interval_of(now: Samples, before: Samples, confidence: float) -> tuple[float, float]:
    """Interval of mean(now) - mean(before); one sample before is a value without a spread."""
    return difference_interval(before, now, confidence)


def ratio_samples(parts: Samples, wholes: Samples) -> Samples:
    """A sample a step whose mean is sum(parts) / sum(wholes), and whose spread is that of this ratio.

    A step's share in the ratio of sums is, to first order, its part beyond the ratio times its whole.
    """
    ratio = parts.sum() / wholes.sum()
    return np.asarray(ratio + (parts - ratio * wholes) / wholes.mean(), dtype=np.float64)
