"""Judge each limit as a predicate on its row; the worst result is the outcome of the check.

    allowed = baseline * (1 + change ratio)    or    baseline + change points    or    an absolute value

A limit is a decimal number as written: 0.29 is 29/100, so 129 passes against 100 and +29 %. A value equal to
the allowed one passes. A bound decides only if the true value cannot change the decision.

relative limit, no baseline             skipped
a limit that no value can exceed        a warning: it guards nothing
only the run lacks the value            unknown
only the baseline lacks it, both do, or one has too few steps to decide
                                        unknown if it must be judged, else a warning
a bound cannot decide                   unknown; a warning if only the baseline is a bound and the limit need
                                        not be judged
both were measured and have nothing of it
                                        unknown if the user set the limit, skipped if it is a default
within the limit, different collectives a warning
beyond the limit                        failed, or warned if the limit or the gate only warns
beyond it, within the step variation, or only by what differs from run to run by chance
                                        within noise

A limit must be judged if the user set it, or requires a baseline and the limit can fail.

If half of the interval is wider than the change that the limit allows, a change of that size never fails. The
result mentions this regardless of its outcome.

Severity: failed > unknown > warned > within noise > passed. If no limit was judged, the outcome is unknown,
except on a first run without a baseline.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from zprof.analysis.compare.differences import (
    Interval,
    compute_difference_interval,
    compute_range,
    find_side,
)
from zprof.analysis.compare.judgement import is_beyond, is_within
from zprof.base.errors import BadInput
from zprof.checks.baseline import MIN_STEPS, find_condition_differences, make_baseline
from zprof.checks.limits import GATES, LimitInput, clean_name
from zprof.model.baseline import Baseline
from zprof.model.comparison import DEFAULT, Check, Figure, GateResult, Limit, LimitRow, Outcome, Sense
from zprof.model.report import Report
from zprof.reports.pages.check import describe_judged, describe_unjudged
from zprof.version import __version__

#: Minimum number of steps per run for a range; a single step shows no variation.
_MIN_STEPS_OF_RANGE = 2
_WORST_FIRST = (Outcome.FAILED, Outcome.UNKNOWN, Outcome.WARNED, Outcome.WITHIN_NOISE, Outcome.PASSED)
_SAVE_HINT = "save one: zprof baseline save RUN"
_UPDATE_HINT = "update the baseline from a complete run: zprof baseline update"
_USELESS_LIMIT_HINT = "set a limit that can be exceeded, such as >=0.7 or 10%, or turn the gate off"
_STEPS_HINT = "record more steps (--time-steps) for both the run and the baseline"
_NOISE_HINT = "record more steps, use a less busy machine, or set a limit wider than the noise"
_BOUND_HINT = "see the gaps in the report (zprof report RUN) for what was not measured and how to fix it"


def check(
    report: Report,
    limits: Sequence[Limit],
    baseline: Baseline | None,
    *,
    environment: Mapping[str, str],
    any_conditions: bool = False,
    requires_baseline: bool = False,
    baseline_file: Path | None = None,
) -> Check:
    """Judge a run against limits and a baseline.

    Args:
        report: The report on the run.
        limits: The limits, in the order of their results.
        baseline: None on a first run; relative limits are then skipped.
        environment: The environment from the run's manifest, for the torch version.
        any_conditions: Compare even if the recording conditions differ.
        requires_baseline: A limit that the baseline or the run cannot judge is unknown, even a default.
        baseline_file: Where the baseline was read from, for errors.

    Raises:
        BadInput: The conditions differ from those of the baseline, or a gate is unknown.
    """
    current = make_baseline(report, environment, report.run.name)
    notices: tuple[str, ...] = ()
    if baseline is not None:
        differences = "; ".join(find_condition_differences(baseline.conditions, current.conditions))
        if differences and not any_conditions:
            named = f"its baseline {baseline_file}" if baseline_file is not None else "its baseline"
            raise BadInput(
                f"{current.name}: not comparable with {named}: {differences}",
                hint="use zprof baseline update to replace the baseline, "
                "or --any-conditions to compare anyway",
            )
        if differences:
            notices = (f"compared with a baseline recorded under different conditions: {differences}",)
    results = []
    for limit in limits:
        gate = GATES.get(limit.gate)
        if gate is None:
            known = ", ".join(name for name in GATES if "." not in name)
            raise BadInput(f"unknown gate {limit.gate[:60]!r}", hint=f"known: {known}")
        row = gate.read(LimitInput(limit=limit, report=report, current=current, baseline=baseline))
        results.append(
            _judge(limit, row, has_baseline=baseline is not None, requires_baseline=requires_baseline)
        )
    outcome, outcome_notices = _find_worst_outcome(results, current, baseline)
    return Check(
        zprof_version=__version__,
        run=current.name,
        baseline=None if baseline is None else baseline.name,
        outcome=outcome,
        results=tuple(results),
        notices=(*notices, *outcome_notices),
    )


def _find_worst_outcome(
    results: Sequence[GateResult], current: Baseline, baseline: Baseline | None
) -> tuple[Outcome, tuple[str, ...]]:
    outcomes = {result.outcome for result in results}
    is_skipped = any(result.outcome is Outcome.SKIPPED and result.limit.is_relative for result in results)
    notices = (
        (f"no baseline yet: relative limits were skipped; {_SAVE_HINT}",)
        if baseline is None and is_skipped
        else ()
    )
    worst = next((outcome for outcome in _WORST_FIRST if outcome in outcomes), None)
    is_judged = any(result.allowed is not None for result in results)
    if worst is not None and (is_judged or baseline is None):
        return worst, notices
    is_measured = current.memory is not None or current.time is not None
    if baseline is None and results and is_measured:
        return Outcome.PASSED, notices
    reason = "nothing was judged: " + ("no gate could be evaluated" if results else "all limits are off")
    return Outcome.UNKNOWN, (*notices, f"{reason}; record both windows, or set limits (--peak-memory +2%)")


def _judge(limit: Limit, row: LimitRow, *, has_baseline: bool, requires_baseline: bool) -> GateResult:
    """Judge one limit and return its result; with ``requires_baseline`` no limit may remain unjudged."""
    is_stated = limit.origin != DEFAULT
    unjudged = Outcome.UNKNOWN if is_stated or (requires_baseline and not limit.warns) else Outcome.WARNED
    current, baseline = row.current, row.baseline
    outcome, reason, remedy = unjudged, "", ""
    if limit.is_relative and not has_baseline:
        outcome, reason, remedy = Outcome.SKIPPED, "there is no baseline yet", _SAVE_HINT
    elif current is None:
        reason, remedy = row.missing, row.remedy
        if baseline is not None:
            outcome = Outcome.UNKNOWN
        elif row.has_nothing and not is_stated:
            outcome = Outcome.SKIPPED
    elif limit.is_relative and baseline is None:
        reason, remedy = "the baseline does not contain it", _UPDATE_HINT
    elif useless := _explain_useless(limit, row):
        outcome, reason, remedy = Outcome.WARNED, useless, _USELESS_LIMIT_HINT
    elif (too_few := _explain_too_few_steps(limit, row)) and not _is_decided_by_range(limit, row):
        reason, remedy = too_few, _STEPS_HINT
    result = GateResult(
        limit=limit,
        outcome=outcome,
        subject=row.subject,
        value=None if current is None else float(current.value),
        baseline=None if baseline is None else float(baseline.value),
        leaf=row.report_path,
        grew=row.growth_note,
        sentence="",
    )
    if reason or current is None:
        return replace(result, sentence=describe_unjudged(result, row, reason), remedy=remedy)
    return _judge_value(result, row, current, unjudged)


def _judge_value(result: GateResult, row: LimitRow, current: Figure, unjudged: Outcome) -> GateResult:
    limit = result.limit
    allowed, change = compute_allowed(limit, row.baseline)
    interval = _compute_interval(limit, row)
    is_range = bool(_explain_too_few_steps(limit, row))
    within = is_within(current, allowed, limit.sense, interval=interval, allowed_change=change)
    noise = None
    if interval is not None and within and limit.is_relative and not is_range:
        half = (interval[1] - interval[0]) / 2
        noise = half if half > abs(change) else None
    if within is not True and _is_within_without_chance(limit, row):
        outcome, within = Outcome.WITHIN_NOISE, False
    elif within is None:
        outcome = unjudged if allowed.is_bound else Outcome.UNKNOWN
    elif not within:
        outcome = Outcome.WARNED if limit.warns or row.warn_reason else Outcome.FAILED
    elif row.has_different_parts and limit.is_relative:
        outcome = Outcome.WARNED
    else:
        outcome = Outcome.WITHIN_NOISE if is_beyond(current, allowed, limit.sense) else Outcome.PASSED
    remedy = _BOUND_HINT if within is None else ""
    if noise is not None and outcome in (Outcome.PASSED, Outcome.WITHIN_NOISE):
        remedy = _NOISE_HINT
    result = replace(
        result,
        outcome=outcome,
        allowed=float(allowed.value),
        interval=interval if row.baseline is not None and limit.is_relative else None,
        noise=noise,
        remedy=remedy,
    )
    sentence = describe_judged(result, row, within_limit=within, interval=interval, is_range=is_range)
    return replace(result, sentence=sentence)


def compute_allowed(limit: Limit, baseline: Figure | None) -> tuple[Figure, float]:
    """Return the value that the limit allows, and its change from the baseline; 0 for an absolute limit.

    Raises:
        ValueError: The limit is relative and there is no baseline.
    """
    if limit.value is not None:
        return Figure(value=_to_fraction(limit.value)), 0.0
    if baseline is None:
        raise ValueError(f"{limit.gate}: a relative limit without a baseline")
    if limit.change_points is not None:
        value = baseline.value + _to_fraction(limit.change_points)
    else:
        value = baseline.value * (1 + _to_fraction(limit.change_ratio or 0.0))
    return replace(baseline, value=value), float(value - baseline.value)


def _to_fraction(value: float) -> Fraction:
    """Convert a number to the exact fraction of its shortest decimal representation."""
    return Fraction(str(value))


def _is_within_without_chance(limit: Limit, row: LimitRow) -> bool:
    """Return True if only the part that varies by chance between runs breaks a relative limit."""
    if row.stable is None or not limit.is_relative:
        return False
    current, baseline = row.stable
    return is_within(current, compute_allowed(limit, baseline)[0], limit.sense) is True


def _compute_interval(limit: Limit, row: LimitRow) -> Interval | None:
    """Return the interval of the change or the distance to an absolute limit; None without a confidence."""
    if limit.confidence is None:
        return None
    current, baseline = row.samples
    assert current is not None
    if not limit.is_relative or baseline is None:
        baseline = [float(compute_allowed(limit, row.baseline)[0].value)]
    a, b = (np.asarray(samples, dtype=np.float64) for samples in (baseline, current))
    if _explain_too_few_steps(limit, row):
        return compute_range(a, b)
    return compute_difference_interval(a, b, limit.confidence)


def _is_decided_by_range(limit: Limit, row: LimitRow) -> bool:
    """Return True if few steps suffice: all are on one side of the limit, by more than their spread."""
    samples = row.samples[: 2 if limit.is_relative else 1]
    if any(steps is None or len(steps) < _MIN_STEPS_OF_RANGE for steps in samples):
        return False
    interval = _compute_interval(limit, row)
    return interval is not None and find_side(interval, compute_allowed(limit, row.baseline)[1]) != 0


def _explain_useless(limit: Limit, row: LimitRow) -> str:
    """Explain why no value can exceed the limit; "" if a value can."""
    allowed, _ = compute_allowed(limit, row.baseline)
    is_minimum = limit.sense is Sense.AT_LEAST
    allows_all = allowed.value <= 0 if is_minimum else limit.unit == "ratio" and allowed.value >= 1
    if not allows_all or allowed.is_bound:
        return ""
    note = f"; {row.device_note}" if row.device_note else ""
    return f"{clean_name(limit.text)} allows every possible value, so it can never fail{note}"


def _explain_too_few_steps(limit: Limit, row: LimitRow) -> str:
    """Explain which side has too few steps for an interval; "" if none is needed or the steps suffice."""
    if limit.confidence is None:
        return ""
    names = ("the run", "the baseline")[: 2 if limit.is_relative else 1]
    for name, samples in zip(names, row.samples, strict=False):
        steps = 0 if samples is None else len(samples)
        if steps < MIN_STEPS:
            timed = f"{steps} timed step{'' if steps == 1 else 's'}"
            return f"{name} has {timed}, too few to decide; {MIN_STEPS} or more have an interval"
    return ""
