"""Judge the change of one number between two runs: better, worse, noise, or not judged.

A change counts if its whole interval lies on one side of a threshold: of 0 in a comparison, of the allowed
change for a limit. Bytes and counts are exact, so a difference of one byte counts. Times vary from step to
step: the step time has its own interval; any other time must change by more than the uncertainty of the step
time (half its interval, or the noise floor if that is larger). The hidden share has its own bootstrap
interval. Fits, samples, bounds and rates have no interval and are not judged.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from zprof.analysis.compare.intervals import Interval, find_side
from zprof.model.check import Figure, Sense
from zprof.model.gaps import Gap, GapKind
from zprof.model.metrics.catalogue import find_metric
from zprof.model.metrics.metric import Better
from zprof.model.paths import parse_path
from zprof.model.quantities import Unit
from zprof.model.report import WORK_SETTINGS, Comparison, Report
from zprof.model.side_by_side import ComparedRow

#: A step is slower from this change on, if its interval lies above zero.
MIN_SLOWER_RATIO = 0.02
#: A step is as fast as before if the interval of its change stays below this.
MAX_UNCHANGED_RATIO = 0.05


class Judgement(StrEnum):
    """Verdict on a change.

    ``EXACT`` and ``DIFFERS``: the value changed, but neither side is better. ``UNKNOWN``: one side's value is
    unknown. ``UNJUDGED``: both are known, but it is unknown whether the change is significant.
    """

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    EXACT = "exact"
    DIFFERS = "differs"
    NOISE = "noise"
    UNKNOWN = "unknown"
    UNJUDGED = "not judged"


class Uncertainty(Struct, frozen=True, kw_only=True):
    """Uncertainty of step times: the largest difference that noise explains.

    ``times_ns``: None if unknown, with the reason in ``reason``.
    """

    times_ns: float | None
    reason: str = ""


def judge_row(
    row: ComparedRow, uncertainty: Uncertainty, *, own: Interval | None = None, is_bound: bool = False
) -> Judgement:
    """Judge a row: b compared with a.

    Args:
        row: The row with both values.
        uncertainty: Uncertainty of the step times.
        own: The 95 % interval of b minus a, if this row has its own.
        is_bound: True if one of the values is a lower or upper bound.
    """
    if row.a is None or row.b is None:
        return Judgement.UNKNOWN
    if isinstance(row.a, str) or isinstance(row.b, str):
        return Judgement.SAME if row.a == row.b else Judgement.DIFFERS
    # A row without a leaf is a kernel's time.
    metric = find_metric(parse_path(row.leaf))
    better = metric.better if metric else Better.NEITHER if row.leaf else Better.LESS
    change = row.b - row.a
    if own is None:
        if row.unit not in (Unit.NS, Unit.BYTES, Unit.COUNT) or not has_interval(row) or is_bound:
            return Judgement.UNJUDGED
        if not change:
            return Judgement.SAME
        if row.unit != Unit.NS:
            return Judgement.EXACT if better is Better.NEITHER else _rank_change(change > 0, better)
    if uncertainty.times_ns is None:
        return Judgement.UNJUDGED
    side = find_side(own or (change - uncertainty.times_ns, change + uncertainty.times_ns))
    return _rank_change(side > 0, better) if side else Judgement.NOISE


def _rank_change(is_more: bool, better: Better) -> Judgement:
    if better is Better.NEITHER:
        return Judgement.DIFFERS
    return Judgement.BETTER if is_more == (better is Better.MORE) else Judgement.WORSE


def has_interval(row: ComparedRow) -> bool:
    """Return False if a change of this number cannot be told from noise."""
    metric = find_metric(parse_path(row.leaf))
    return metric is None or metric.has_interval


class Obstacle(StrEnum):
    """Why the step times of two runs cannot be judged."""

    FEW_STEPS = "few steps"
    UNKNOWN_WORK = "unknown work"


def find_obstacle(comparison: Comparison, gaps: Sequence[Gap]) -> Obstacle | None:
    """Return why the step times cannot be judged, None if they can."""
    if any(gap.kind is GapKind.NO_INTERVAL for gap in gaps):
        return Obstacle.FEW_STEPS
    if comparison.equal_work is None and any(entry.key in WORK_SETTINGS for entry in comparison.differences):
        return Obstacle.UNKNOWN_WORK
    return None


def find_uncertainty(report: Report, *, per_token: bool = False) -> Uncertainty:
    """Return the uncertainty of the step times of this report and its baseline.

    ``per_token``: return the uncertainty of times at equal work instead.
    """
    comparison = report.comparison
    if comparison is None or comparison.step_time is None:
        return Uncertainty(times_ns=None, reason="the step times of both runs are not known")
    obstacle = find_obstacle(comparison, report.gaps)
    if obstacle is Obstacle.FEW_STEPS:
        reason = next(gap.reason for gap in report.gaps if gap.kind is GapKind.NO_INTERVAL)
        return Uncertainty(times_ns=None, reason=reason)
    if obstacle is Obstacle.UNKNOWN_WORK:
        return Uncertainty(times_ns=None, reason="the jobs differ, and their work per step is unknown")
    work, times = comparison.equal_work, comparison.step_time
    if work is not None and not per_token and work.b_ns != times.b_ns:
        return Uncertainty(
            times_ns=None,
            reason=f"work per step differs; press n for rank times per {work.unit.value.removesuffix('s')}",
        )
    if any(finding.invalidates_times for finding in report.findings):
        return Uncertainty(times_ns=None, reason="the recordings of the ranks are inconsistent")
    low, high = work.ci95 if work is not None and per_token else times.ci95
    noise_ns = [rank.noise_floor_ns for rank in (*report.time.per_rank, *comparison.baseline_time)]
    return Uncertainty(times_ns=max((high - low) / 2, *noise_ns))


class StepChange(Struct, frozen=True, kw_only=True):
    """Change of the step time relative to a's, as measured or at equal work, and the ends of its interval."""

    ratio: float
    low: float
    high: float


def judge_step_time(comparison: Comparison) -> tuple[Judgement, StepChange]:
    """Judge the step time of b, at equal work if that differs; both runs must be timed.

    ``WORSE``: at least 2 % longer, and the interval lies above zero. ``SAME``: the interval stays below +5 %,
    which includes a shorter step. Else ``NOISE``.
    """
    times, work = comparison.step_time, comparison.equal_work
    assert times is not None
    after = work if work is not None and work.b_ns != times.b_ns else times
    total = max(1, times.a_ns)
    low, high = (end / total for end in after.ci95)
    change = StepChange(ratio=(after.b_ns - times.a_ns) / total, low=low, high=high)
    if change.ratio >= MIN_SLOWER_RATIO and find_side((low, high)) > 0:
        return Judgement.WORSE, change
    is_unchanged = find_side((low, high), MAX_UNCHANGED_RATIO) < 0
    return Judgement.SAME if is_unchanged else Judgement.NOISE, change


def is_beyond(current: Figure, allowed: Figure, sense: Sense) -> bool:
    """Return True if the measured value is beyond what is allowed, ignoring uncertainty."""
    return current.value > allowed.value if sense is Sense.AT_MOST else current.value < allowed.value


def is_within(
    current: Figure,
    allowed: Figure,
    sense: Sense,
    *,
    interval: Interval | None = None,
    allowed_change: float = 0.0,
) -> bool | None:
    """Return True if ``current`` is within what is allowed, None if a bound leaves it undecided.

    ``interval``: of the change of a sample, which is beyond ``allowed_change`` only if all of it is.
    """
    is_upper = sense is Sense.AT_MOST
    if interval is None:
        beyond = is_beyond(current, allowed, sense)
    else:
        beyond = find_side(interval, allowed_change) == (1 if is_upper else -1)
    if beyond == is_upper:  # above what is allowed
        is_uncertain = current.can_be_lower or allowed.can_be_higher
    else:
        is_uncertain = current.can_be_higher or allowed.can_be_lower
    return None if is_uncertain else not beyond
