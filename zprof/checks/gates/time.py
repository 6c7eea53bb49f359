"""Read the gates of time: step time, exposed and overlapped ratio, exposed wait.

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
from zprof.model.findings import STEPS_LATEST_RATIO, Cause, Confidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.report import Report

_NOTHING = "no collective ran in the timed steps, so that nothing could be hidden"


def exposed_ratio(asked: GateInput) -> Reading:
    """Read the share of a step that is exposed communication."""
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
    """Read the share of the communication that is hidden under compute."""
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
    """A ratio of sums over the steps, and its samples; None if the whole is 0."""

    figure: Figure | None = None
    samples: Samples | None = None


def _exposed(side: TimeBaseline | None) -> _Share:
    if side is None:
        return _Share()
    return _share(side.exposed_ns, side.wall_ns, can_be_lower=side.upper_bound)


def _overlap(side: TimeBaseline | None) -> _Share:
    """Return the hidden share; if the exposed time is an upper bound, the share is a lower one."""
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
    """Read the mean step time."""
    (now, before), missing = select_sides(asked)
    return Reading(
        now=_mean(now),
        before=_mean(before),
        missing=missing,
        remedy=RECORD_HINT,
        shown=format_ns,
        leaf=STEPS,
        where=" per step",
        samples=(_samples(now), _samples(before)),
    )


def _mean(side: TimeBaseline | None) -> Figure | None:
    return None if side is None else Figure(value=Fraction(sum(side.wall_ns), len(side.wall_ns)))


def _samples(side: TimeBaseline | None) -> Samples | None:
    return None if side is None else np.asarray(side.wall_ns, dtype=np.float64)


#: Minimum share of the steps in which the rank must be the latest.
_NEARLY_ALL_RATIO = 0.8


def exposed_wait(asked: GateInput) -> Reading:
    """Read the exposed wait per step, the mean over steps and ranks."""
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
        where=" per step",
        grew="" if late is None else f"rank {late} is late in nearly all steps",
        only_warns="no rank is late in nearly all steps, so that it only warns" if late is None else "",
    )


def late_rank(report: Report) -> int | None:
    """Return the rank that the rules found late if it is late in nearly all steps, else None."""
    for finding in report.findings:
        if finding.cause is Cause.STRAGGLER_RANK and finding.confidence is not Confidence.LOW:
            return _rank_if_nearly_always_late(finding)
    return None


def _rank_if_nearly_always_late(finding: Finding) -> int | None:
    share = next((row.value for row in finding.evidence if row.key == STEPS_LATEST_RATIO), 0.0)
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


#: The list of the report that the gates of time sum over.
STEPS = "time.steps"
NO_COLLECTIVES = "no collective was seen"
RECORD_HINT = "record the time window on all ranks (--time-steps 8)"


def select_sides(asked: GateInput) -> tuple[tuple[TimeBaseline | None, TimeBaseline | None], str]:
    """Return both sides, and the reason if the run's side is unknown.

    The run is unknown if it lacks a rank that the baseline has; the baseline, if it lacks one that the run
    has.
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
    """Return the same for the time of collectives: a side without any collective is unknown."""
    (now, before), missing = select_sides(asked)
    if now is not None and asked.now.collectives is None:
        now, missing = None, NO_COLLECTIVES
    if asked.before is not None and asked.before.collectives is None:
        before = None
    return (now, before), missing
