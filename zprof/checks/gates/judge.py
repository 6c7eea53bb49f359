"""Turn a reading into the result of a gate, by the same rules for all gates.

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
result mentions this, whatever its outcome.
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.compare.intervals import compute_difference_interval, compute_range
from zprof.checks.gates.reading import (
    MIN_STEPS,
    MIN_STEPS_OF_RANGE,
    GateFigure,
    Reading,
    compute_allowed,
    is_beyond,
    is_relative,
    is_within_limit,
    is_within_limit_with_confidence,
)
from zprof.checks.gates.sentences import clean_name, describe_result, describe_unjudged
from zprof.model.check import DEFAULT, GateResult, Limit, Outcome, Sense

SAVE_HINT = "save one: zprof baseline save RUN"
_UPDATE_HINT = "update the baseline from a complete run: zprof baseline update"
_USELESS_LIMIT_HINT = "set a limit that can be exceeded, such as >=0.7 or 10%, or turn the gate off"
_STEPS_HINT = "record more steps (--time-steps) for both the run and the baseline"
_NOISE_HINT = "record more steps, use a less busy machine, or set a limit wider than the noise"
_BOUND_HINT = "see the gaps in the report (zprof report RUN) for what was not measured and how to fix it"


def judge(
    limit: Limit, reading: Reading, *, has_baseline: bool, requires_baseline: bool = False
) -> GateResult:
    """Judge one limit and return its result; ``requires_baseline``: no limit may be left unjudged."""
    is_stated = limit.origin != DEFAULT
    unjudged = Outcome.UNKNOWN if is_stated or (requires_baseline and not limit.warns) else Outcome.WARNED
    if is_relative(limit) and not has_baseline:
        return _leave_unjudged(limit, reading, Outcome.SKIPPED, "there is no baseline yet", SAVE_HINT)
    if reading.current is None:
        outcome = Outcome.UNKNOWN if reading.baseline is not None else unjudged
        if reading.has_nothing and reading.baseline is None and not is_stated:
            outcome = Outcome.SKIPPED
        return _leave_unjudged(limit, reading, outcome, reading.missing, reading.remedy)
    if is_relative(limit) and reading.baseline is None:
        reason = "the baseline does not contain it"
        return _leave_unjudged(limit, reading, unjudged, reason, _UPDATE_HINT)
    useless_reason = _explain_useless(limit, reading)
    if useless_reason:
        return _leave_unjudged(limit, reading, Outcome.WARNED, useless_reason, _USELESS_LIMIT_HINT)
    too_few = _find_too_few_steps(limit, reading)
    if too_few and not _decides_by_range(limit, reading):
        return _leave_unjudged(limit, reading, unjudged, too_few.reason, _STEPS_HINT)
    return _judge_figure(limit, reading, reading.current, unjudged)


def _judge_figure(limit: Limit, reading: Reading, current: GateFigure, unjudged: Outcome) -> GateResult:
    allowed = compute_allowed(limit, reading.baseline)
    is_range = _find_too_few_steps(limit, reading) is not None
    interval, noise, within_limit = None, None, is_within_limit(current, allowed, limit.sense)
    if limit.confidence is not None:
        reference = reading.baseline if is_relative(limit) and reading.baseline is not None else allowed
        interval = _compute_limit_interval(limit, reading, allowed)
        within_limit = is_within_limit_with_confidence(
            interval, current, reference.value, allowed, limit.sense
        )
        allowed_change = float(abs(allowed.value - reference.value))
        if within_limit and is_relative(limit) and not is_range:
            noise = _find_excess_noise(interval, allowed_change)
    is_chance = within_limit is False and _keeps_limit_without_chance(limit, reading)
    outcome = (
        Outcome.WITHIN_NOISE
        if is_chance
        else _choose_outcome(limit, reading, current, allowed, within_limit, unjudged)
    )
    result = replace(
        _make_result(limit, reading, outcome),
        allowed=float(allowed.value),
        interval=interval if reading.baseline is not None and is_relative(limit) else None,
        noise=noise,
    )
    remedy = _BOUND_HINT if within_limit is None else ""
    if noise is not None and outcome in (Outcome.PASSED, Outcome.WITHIN_NOISE):
        remedy = _NOISE_HINT
    sentence = describe_result(
        result,
        reading,
        allowed,
        within_limit=within_limit,
        interval=interval,
        is_range=is_range,
    )
    return replace(result, sentence=sentence, remedy=remedy)


def _keeps_limit_without_chance(limit: Limit, reading: Reading) -> bool:
    """Return True if a relative limit is broken only by the part that differs from run to run by chance."""
    if reading.stable is None or not is_relative(limit):
        return False
    current, baseline = reading.stable
    return is_within_limit(current, compute_allowed(limit, baseline), limit.sense) is True


def _choose_outcome(
    limit: Limit,
    reading: Reading,
    current: GateFigure,
    allowed: GateFigure,
    within_limit: bool | None,
    unjudged: Outcome,
) -> Outcome:
    if within_limit is None:
        return unjudged if allowed.is_bound else Outcome.UNKNOWN
    if within_limit and reading.has_different_parts and is_relative(limit):
        return Outcome.WARNED
    if within_limit:
        return Outcome.WITHIN_NOISE if is_beyond(current, allowed, limit.sense) else Outcome.PASSED
    return Outcome.WARNED if limit.warns or reading.warn_reason else Outcome.FAILED


def _find_excess_noise(interval: tuple[float, float], allowed_change: float) -> float | None:
    """Return half the width of the interval if that is more than the limit allows, else None."""
    half = (interval[1] - interval[0]) / 2
    return half if half > allowed_change else None


def _compute_limit_interval(limit: Limit, reading: Reading, allowed: GateFigure) -> tuple[float, float]:
    current, baseline = reading.samples
    assert limit.confidence is not None
    assert current is not None
    if not is_relative(limit) or baseline is None:
        baseline = np.asarray([float(allowed.value)])
    if _find_too_few_steps(limit, reading):
        return compute_range(baseline, current)
    return compute_difference_interval(baseline, current, limit.confidence)


def _decides_by_range(limit: Limit, reading: Reading) -> bool:
    """Return True if a few steps decide: they lie on one side of the limit, by more than their spread."""
    samples = reading.samples[: 2 if is_relative(limit) else 1]
    if any(steps is None or len(steps) < MIN_STEPS_OF_RANGE for steps in samples):
        return False
    allowed = compute_allowed(limit, reading.baseline)
    reference = reading.baseline if is_relative(limit) and reading.baseline is not None else allowed
    allowed_change = float(allowed.value - reference.value)
    low, high = _compute_limit_interval(limit, reading, allowed)
    return low > allowed_change or high < allowed_change


def _explain_useless(limit: Limit, reading: Reading) -> str:
    """Explain why no value can exceed the limit, "" if one can."""
    allowed = compute_allowed(limit, reading.baseline)
    is_minimum = limit.sense is Sense.AT_LEAST
    allows_all = allowed.value <= 0 if is_minimum else limit.unit == "ratio" and allowed.value >= 1
    if not allows_all or allowed.is_bound:
        return ""
    note = f"; {reading.device_note}" if reading.device_note else ""
    return f"{clean_name(limit.said)} allows every possible value, so it can never fail{note}"


class _TooFewSteps(Struct, frozen=True, kw_only=True):
    """The number of timed steps of the run or the baseline, which is too small for an interval."""

    steps: int
    is_baseline: bool

    @property
    def reason(self) -> str:
        """The reason as text."""
        name = "the baseline" if self.is_baseline else "the run"
        timed = f"{self.steps} timed step{'' if self.steps == 1 else 's'}"
        return f"{name} has {timed}, too few to decide; {MIN_STEPS} or more have an interval"


def _find_too_few_steps(limit: Limit, reading: Reading) -> _TooFewSteps | None:
    """Return what has too few steps for an interval, None if there are enough or none is needed."""
    if limit.confidence is None:
        return None
    counts = [0 if samples is None else len(samples) for samples in reading.samples]
    for is_baseline, steps in enumerate(counts[: 2 if is_relative(limit) else 1]):
        if steps < MIN_STEPS:
            return _TooFewSteps(steps=steps, is_baseline=bool(is_baseline))
    return None


def _leave_unjudged(limit: Limit, reading: Reading, outcome: Outcome, reason: str, remedy: str) -> GateResult:
    result = _make_result(limit, reading, outcome)
    return replace(result, sentence=describe_unjudged(result, reading, reason), remedy=remedy)


def _make_result(limit: Limit, reading: Reading, outcome: Outcome) -> GateResult:
    return GateResult(
        limit=limit,
        outcome=outcome,
        subject=reading.subject,
        value=_to_float(reading.current),
        baseline=_to_float(reading.baseline),
        leaf=reading.report_path,
        grew=reading.growth_note,
        sentence="",
    )


def _to_float(figure: GateFigure | None) -> float | None:
    return None if figure is None else float(figure.value)
