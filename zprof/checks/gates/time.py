"""Gate of the step time: the mean over the steps, each the mean over its ranks."""

from fractions import Fraction

import numpy as np

from zprof.checks.gates.figure import Figure, Samples
from zprof.checks.gates.reading import Asked, Reading
from zprof.checks.gates.steps import RECORD, STEPS, sides
from zprof.model.baseline import TimeBaseline
from zprof.model.units import format_ns


def step_time(asked: Asked) -> Reading:
    """The mean step."""
    (now, before), missing = sides(asked)
    return Reading(
        now=_mean(now),
        before=_mean(before),
        missing=missing,
        remedy=RECORD,
        shown=format_ns,
        leaf=STEPS,
        where=" a step",
        samples=(_samples(now), _samples(before)),
    )


def _mean(side: TimeBaseline | None) -> Figure | None:
    return None if side is None else Figure(value=Fraction(sum(side.wall_ns), len(side.wall_ns)))


def _samples(side: TimeBaseline | None) -> Samples | None:
    return None if side is None else np.asarray(side.wall_ns, dtype=np.float64)
