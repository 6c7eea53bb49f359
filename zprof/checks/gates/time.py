"""Gates of time: step time, the exposed share of a step, the overlapped share of communication, and exposed
wait.

    exposed_ratio = sum(exposed) / sum(wall)        overlap_ratio = 1 - sum(exposed) / sum(collective)

over the steps, each the mean over its ranks. A busy machine makes ranks wait, so exposed wait only warns
unless the rule straggler_rank found one rank late in nearly all steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from zprof.checks.gates.reading import (
    Figure,
    GateInput,
    Reading,
    Samples,
    find_missing_ranks,
    format_ranks,
    newly_missing_ranks,
    ratio_samples,
)
from zprof.checks.gates.sentences import format_ratio
from zprof.model.baseline import TimeBaseline
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.report import Report

_NOTHING = "no collective ran in the timed steps, so that nothing could be hidden"


def exposed_ratio(asked: GateInput) -> Reading:
    """How much of a step waits for communication with nothing beside it."""
    (now, before), missing = select_communicating_sides(asked)
    mine, theirs = _exposed(now), _exposed(before)
    return Reading(
        now=mine.figure,
        before=theirs.figure,
        missing=missing,
        remedy=RECORD_HINT,
        shown=format_ratio,
        leaf=STEPS,
        where=" of a step",
        samples=(mine.samples, theirs.samples),
    )


def overlap_ratio(asked: GateInput) -> Reading:
    """How much of the communication runs beside compute."""
    (now, before), missing = select_communicating_sides(asked)
    mine, theirs = _overlap(now), _overlap(before)
    return Reading(
        now=mine.figure,
        before=theirs.figure,
        missing=missing or _NOTHING,
        remedy=RECORD_HINT,
        shown=format_ratio,
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


def step_time(asked: GateInput) -> Reading:
    """The mean step."""
    (now, before), missing = select_sides(asked)
    return Reading(
        now=_mean(now),
        before=_mean(before),
        missing=missing,
        remedy=RECORD_HINT,
        shown=format_ns,
        leaf=STEPS,
        where=" a step",
        samples=(_samples(now), _samples(before)),
    )


def _mean(side: TimeBaseline | None) -> Figure | None:
    return None if side is None else Figure(value=Fraction(sum(side.wall_ns), len(side.wall_ns)))


def _samples(side: TimeBaseline | None) -> Samples | None:
    return None if side is None else np.asarray(side.wall_ns, dtype=np.float64)


#: Of the steps, in how many the rank must be the latest.
_NEARLY_ALL_RATIO = 0.8
_LATEST = "steps in which it is the latest"


def exposed_wait(asked: GateInput) -> Reading:
    """Exposed wait of a step, the mean over steps and ranks."""
    (now, before), missing = select_communicating_sides(asked)
    late = late_rank(asked.report)
    return Reading(
        now=_wait(now),
        before=_wait(before),
        missing=missing,
        remedy=RECORD_HINT,
        shown=format_ns,
        leaf=STEPS,
        subject="" if late is None else f"rank {late}",
        where=" a step",
        grew="" if late is None else f"rank {late} is late in nearly all steps",
        only_warns="no rank is late in nearly all steps, so that it only warns" if late is None else "",
    )


def late_rank(report: Report) -> int | None:
    """The rank that the rules found late, and that is so in nearly all steps."""
    for finding in report.findings:
        if finding.cause is Cause.STRAGGLER_RANK and finding.confidence is not Confidence.LOW:
            return _rank_if_nearly_always_late(finding)
    return None


def _rank_if_nearly_always_late(finding: Finding) -> int | None:
    share = next((row.value for row in finding.evidence if row.what == _LATEST), 0.0)
    rank = next((row.rank for row in finding.evidence if row.rank is not None), None)
    return rank if share >= _NEARLY_ALL_RATIO else None


def _wait(side: TimeBaseline | None) -> Figure | None:
    if side is None or side.exposed_wait_ns is None:
        return None
    return Figure(
        value=Fraction(side.exposed_wait_ns),
        can_be_lower=side.upper_bound,
        can_be_higher=side.wait_lower_bound,
    )


#: The list of the report that the gates of time sum.
STEPS = "time.steps"
NO_COLLECTIVES = "no collective was seen"
RECORD_HINT = "record the time window on all ranks (--time-steps 8)"


def select_sides(asked: GateInput) -> tuple[tuple[TimeBaseline | None, TimeBaseline | None], str]:
    """Both sides, and why there is none of the run.

    A run without a rank that the baseline has is not known; nor is a baseline without one that the run has.
    """
    now, before = asked.now.time, None if asked.before is None else asked.before.time
    if now is None:
        return (None, before), "no step was timed"
    ranks = find_missing_ranks(asked, now, before)
    if ranks:
        return (None, before), f"{format_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} not timed"
    if before is not None and newly_missing_ranks(before.missing_ranks, now.missing_ranks):
        before = None
    return (now, before), ""


def select_communicating_sides(
    asked: GateInput,
) -> tuple[tuple[TimeBaseline | None, TimeBaseline | None], str]:
    """The same for what collectives take: ranks that must have met, and none was seen, are not known."""
    (now, before), missing = select_sides(asked)
    if now is not None and asked.now.collectives is None:
        now, missing = None, NO_COLLECTIVES
    if asked.before is not None and asked.before.collectives is None:
        before = None
    return (now, before), missing
