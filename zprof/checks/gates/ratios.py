"""Gates of ratios of time: the exposed share of a step, and the share of communication that is hidden.

    exposed_ratio = sum(exposed) / sum(wall)        overlap_ratio = 1 - sum(exposed) / sum(collective)

over the steps, each the mean over its ranks.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from zprof.checks.gates.figure import Figure, Samples, ratio_samples
from zprof.checks.gates.reading import Asked, Reading
from zprof.checks.gates.steps import RECORD, STEPS, sides
from zprof.checks.gates.words import shown_ratio
from zprof.model.baseline import TimeBaseline

_NOTHING = "no collective ran in the timed steps, so that nothing could be hidden"


def exposed_ratio(asked: Asked) -> Reading:
    """How much of a step waits for communication with nothing beside it."""
    (now, before), missing = sides(asked)
    return Reading(
        now=_exposed(now),
        before=_exposed(before),
        missing=missing,
        remedy=RECORD,
        shown=shown_ratio,
        leaf=STEPS,
        where=" of a step",
        samples=(_exposed_samples(now), _exposed_samples(before)),
    )


def overlap_ratio(asked: Asked) -> Reading:
    """How much of the communication runs beside compute."""
    (now, before), missing = sides(asked)
    return Reading(
        now=_overlap(now),
        before=_overlap(before),
        missing=missing or _NOTHING,
        remedy=RECORD,
        shown=shown_ratio,
        leaf=STEPS,
        where=" of the communication hidden",
        samples=(_overlap_samples(now), _overlap_samples(before)),
    )


def _exposed(side: TimeBaseline | None) -> Figure | None:
    if side is None or sum(side.wall_ns) <= 0:
        return None
    value = Fraction(sum(side.exposed_ns), sum(side.wall_ns))
    return Figure(value=value, can_be_lower=side.upper_bound)


def _overlap(side: TimeBaseline | None) -> Figure | None:
    if side is None or sum(side.collective_ns) <= 0:
        return None
    value = 1 - Fraction(sum(side.exposed_ns), sum(side.collective_ns))
    return Figure(value=value, can_be_higher=side.upper_bound)


def _exposed_samples(side: TimeBaseline | None) -> Samples | None:
    if side is None or _exposed(side) is None:
        return None
    return ratio_samples(_array(side.exposed_ns), _array(side.wall_ns))


def _overlap_samples(side: TimeBaseline | None) -> Samples | None:
    if side is None or _overlap(side) is None:
        return None
    collective = _array(side.collective_ns)
    return ratio_samples(collective - _array(side.exposed_ns), collective)


def _array(values: Sequence[int]) -> Samples:
    return np.asarray(values, dtype=np.float64)
