"""Hold what a gate reads of a run and its baseline, and compare it with a limit in exact arithmetic.

    allowed = baseline * (1 + change ratio)    or    baseline + change points    or    the value itself

A limit is a decimal number as written: 0.29 is 29/100, so 129 passes against 100 and +29 %. A value equal to
the allowed one passes. A figure that is only a bound decides only if its open side cannot matter.
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
#: Minimum steps on a side: fewer say too little about the variation of steps to fail a build.
MIN_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value, and whether the true one can be lower or higher."""

    value: Fraction
    can_be_lower: bool = False
    can_be_higher: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether the value is only a bound."""
        return self.can_be_lower or self.can_be_higher


def to_fraction(value: float) -> Fraction:
    """Return a number as the fraction of its shortest decimal text."""
    return Fraction(str(value))


def is_relative(limit: Limit) -> bool:
    """Return whether the limit needs a baseline."""
    return limit.value is None


def compute_allowed(limit: Limit, before: Figure | None) -> Figure:
    """Return what the limit allows; a relative limit needs the baseline's figure ``before``.

    Raises:
        ValueError: The limit is relative and there is no figure of a baseline.
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
    """Return whether ``now`` is within the limit, None if a bound cannot decide it."""
    return decide_with_bounds(is_beyond(now, allowed, sense), now, allowed, sense)


def is_beyond(now: Figure, allowed: Figure, sense: Sense) -> bool:
    """Return whether the measured values are beyond the limit, whatever the true ones are."""
    return now.value > allowed.value if sense is Sense.AT_MOST else now.value < allowed.value


def decide_with_bounds(beyond: bool, now: Figure, allowed: Figure, sense: Sense) -> bool | None:
    """Return ``not beyond``, or None if the true values may decide otherwise than the measured ones."""
    too_much = beyond == (sense is Sense.AT_MOST)  # the value is above what is allowed
    doubtful = now.can_be_lower or allowed.can_be_higher
    if not too_much:
        doubtful = now.can_be_higher or allowed.can_be_lower
    return None if doubtful else not beyond


def holds_with_confidence(
    interval: tuple[float, float], now: Figure, before: Fraction, allowed: Figure, sense: Sense
) -> bool | None:
    """Return the same for a sample, which is beyond the limit only if the whole interval of the change is."""
    low, high = interval
    allowed_change = float(allowed.value - before)
    return decide_with_bounds(
        low > allowed_change if sense is Sense.AT_MOST else high < allowed_change, now, allowed, sense
    )


def compute_interval(now: Samples, before: Samples, confidence: float) -> tuple[float, float]:
    """Return the interval of mean(now) - mean(before); one sample before is a value without variation."""
    return difference_interval(before, now, confidence)


def ratio_samples(parts: Samples, wholes: Samples) -> Samples:
    """Return one sample per step, with mean sum(parts) / sum(wholes) and the variation of that ratio.

    To first order, a step contributes to the ratio of sums its part beyond the ratio times its whole.
    """
    ratio = parts.sum() / wholes.sum()
    return np.asarray(ratio + (parts - ratio * wholes) / wholes.mean(), dtype=np.float64)


_MAX_RANKS = 4
_Side = MemoryBaseline | TimeBaseline


@dataclass(frozen=True, slots=True, kw_only=True)
class GateInput:
    """A limit, the run to judge, and the baseline.

    ``now`` is the run as a baseline, so the same code reads both sides.
    """

    limit: Limit
    report: Report
    now: Baseline
    before: Baseline | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The figures of a run and its baseline, None if unknown; ``missing`` says why, with a ``remedy``.

    ``samples`` are those of the run and of the baseline, one per step, for a limit with a confidence.
    ``where`` follows the value in the sentence. ``only_warns`` says why going beyond the limit is not a
    failure. ``other_sort``: the value sums other collectives than the baseline's, so staying within the limit
    says too little and warns; ``grew`` names them.
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
    """Return the ranks that are missing in ``now`` but not in ``before``."""
    return tuple(sorted(set(now) - set(before)))


def find_missing_ranks(asked: GateInput, now: _Side, before: _Side | None) -> tuple[int, ...]:
    """Return the ranks that the run should have and lacks.

    Against an absolute value these are all missing ranks. Against a baseline they are those that the baseline
    has: without the others both sides cover the same ranks.
    """
    excused = before.missing_ranks if before is not None and is_relative(asked.limit) else ()
    return newly_missing_ranks(now.missing_ranks, excused)


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 1``, ``ranks 1, 2`` or ``ranks 1, 2, 3, 4 and 120 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _MAX_RANKS} more" if len(ranks) > _MAX_RANKS else ""
    return f"ranks {', '.join(map(str, ranks[:_MAX_RANKS]))}{more}"
