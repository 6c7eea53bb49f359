"""Gates of ratios of time: the exposed share of a step, and the share of communication that is hidden.

    exposed_ratio = sum(exposed) / sum(wall)        overlap_ratio = 1 - sum(exposed) / sum(collective)

over the steps, each the mean over its ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from zprof.checks.gates.figure import Figure, Samples, ratio_samples
from zprof.checks.gates.reading import Asked, Reading
from zprof.checks.gates.steps import RECORD, STEPS, sides_that_met
from zprof.checks.gates.words import shown_ratio
from zprof.model.baseline import TimeBaseline

_NOTHING = "no collective ran in the timed steps, so that nothing could be hidden"


def exposed_ratio(asked: Asked) -> Reading:
    """How much of a step waits for communication with nothing beside it."""
    (now, before), missing = sides_that_met(asked)
    mine, theirs = _exposed(now), _exposed(before)
    return Reading(
        now=mine.figure,
        before=theirs.figure,
        missing=missing,
        remedy=RECORD,
        shown=shown_ratio,
        leaf=STEPS,
        where=" of a step",
        samples=(mine.samples, theirs.samples),
    )


def overlap_ratio(asked: Asked) -> Reading:
    """How much of the communication runs beside compute."""
    (now, before), missing = sides_that_met(asked)
    mine, theirs = _overlap(now), _overlap(before)
    return Reading(
        now=mine.figure,
        before=theirs.figure,
        missing=missing or _NOTHING,
        remedy=RECORD,
        shown=shown_ratio,
        leaf=STEPS,
        where=" of the communication hidden",
        samples=(mine.samples, theirs.samples),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """A ratio of sums over the steps, and its samples; None where there is nothing to be a share of."""

    figure: Figure | None = None
    samples: Samples | None = None


def _exposed(side: TimeBaseline | None) -> _Share:
    if side is None:
        return _Share()
    return _share(side.exposed_ns, side.wall_ns, can_be_lower=side.upper_bound)


def _overlap(side: TimeBaseline | None) -> _Share:
    """What is not exposed; where that is the most it can be, this is the least."""
    if side is None:
        return _Share()
    hidden = [all_ns - ns for all_ns, ns in zip(side.collective_ns, side.exposed_ns, strict=False)]
    return _share(hidden, side.collective_ns, can_be_higher=side.upper_bound)


def _share(
    parts: Sequence[int], wholes: Sequence[int], *, can_be_lower: bool = False, can_be_higher: bool = False
) -> _Share:
    if sum(wholes) <= 0:
        return _Share()
    value = Fraction(sum(parts), sum(wholes))
    return _Share(
        figure=Figure(value=value, can_be_lower=can_be_lower, can_be_higher=can_be_higher),
        samples=ratio_samples(np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)),
    )
