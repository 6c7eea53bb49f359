"""Turn a reading into the result of a gate, by the same rules for all gates.

relative limit, no baseline             skipped
a limit that no value can break         skipped
the run lacks what the baseline has     unknown
only the baseline lacks it, or steps    unknown if the limit was stated, a warning if it is a default
neither has it, or the run too few steps
                                        unknown if the limit was stated, skipped if it is a default
a bound cannot decide                   unknown; for a default that only the baseline's bound leaves open,
                                        a warning if the measured value is beyond the limit, else skipped
within it, a sum of other collectives   a warning
beyond the limit                        failed, or warned if the limit or the gate says so
beyond it, by no more than steps vary   within noise

If half of the interval is wider than the limit allows, a change as large as the limit never fails. The result
says so, whatever its outcome.
"""

from dataclasses import replace

import numpy as np

from zprof.checks.gates.reading import (
    MIN_STEPS,
    Figure,
    Reading,
    compute_allowed,
    compute_interval,
    holds,
    holds_with_confidence,
    is_beyond,
    is_relative,
)
from zprof.checks.gates.sentences import clean_name, describe_result, describe_unjudged
from zprof.model.check import DEFAULT, GateResult, Limit, Outcome, Sense

SAVE_HINT = "save one: zprof baseline save RUN"
_UPDATE = "save the baseline again from a whole run: zprof baseline update"
_GUARD = "state a limit that a value can break, such as >=0.7 or 10%, or turn the gate off"
_BASELINE = "the baseline"
_MORE_STEPS = "record more steps (--time-steps), and save the baseline from as many"
_QUIETER = "record more steps, on a quieter machine, or state a limit that is wider than the noise"
_EXACT = "see the gaps of the report (zprof report RUN): they say what was not seen, and what helps"


def judge(limit: Limit, reading: Reading, *, has_baseline: bool) -> GateResult:
    """Return the result of the limit."""
    if is_relative(limit) and not has_baseline:
        return _leave_unjudged(limit, reading, Outcome.SKIPPED, "there is no baseline yet", SAVE_HINT)
    if reading.now is None:
        outcome = Outcome.UNKNOWN if reading.before is not None else _skip_if_default(limit)
        return _leave_unjudged(limit, reading, outcome, reading.missing, reading.remedy)
    if is_relative(limit) and reading.before is None:
        return _leave_unjudged(
            limit, reading, _warn_if_default(limit), "the baseline does not have it", _UPDATE
        )
    nothing = _explain_useless(limit, reading)
    if nothing:
        return _leave_unjudged(limit, reading, Outcome.SKIPPED, nothing, _GUARD)
    few = _explain_too_few(limit, reading)
    if few:
        of_baseline = few.startswith(_BASELINE)
        return _leave_unjudged(
            limit,
            reading,
            _warn_if_default(limit) if of_baseline else _skip_if_default(limit),
            few,
            _MORE_STEPS,
        )
    return _judge_figure(limit, reading, reading.now)


def _judge_figure(limit: Limit, reading: Reading, now: Figure) -> GateResult:
    allowed = compute_allowed(limit, reading.before)
    interval, noise, held = None, None, holds(now, allowed, limit.sense)
    if limit.confidence is not None:
        beside = reading.before if is_relative(limit) and reading.before is not None else allowed
        interval = _interval(limit, reading, allowed)
        held = holds_with_confidence(interval, now, beside.value, allowed, limit.sense)
        allowed_change = float(abs(allowed.value - beside.value))
        noise = _too_noisy(interval, allowed_change) if held and is_relative(limit) else None
    outcome = _outcome(limit, reading, now, allowed, held)
    result = replace(
        _make_result(limit, reading, outcome),
        allowed=float(allowed.value),
        interval=interval if reading.before is not None and is_relative(limit) else None,
        noise=noise,
    )
    remedy = _EXACT if held is None else ""
    if noise is not None and outcome in (Outcome.PASSED, Outcome.WITHIN_NOISE):
        remedy = _QUIETER
    said = describe_result(result, reading, allowed, held=held, interval=interval)
    return replace(result, sentence=said, remedy=remedy)


def _outcome(limit: Limit, reading: Reading, now: Figure, allowed: Figure, held: bool | None) -> Outcome:
    if held is None and not allowed.is_bound:
        return Outcome.UNKNOWN
    if held is None:
        return _warn_if_default(limit) if is_beyond(now, allowed, limit.sense) else _skip_if_default(limit)
    if held and reading.other_sort and is_relative(limit):
        return Outcome.WARNED
    if held:
        return Outcome.WITHIN_NOISE if is_beyond(now, allowed, limit.sense) else Outcome.PASSED
    return Outcome.WARNED if limit.warns or reading.only_warns else Outcome.FAILED


def _too_noisy(interval: tuple[float, float], allowed_change: float) -> float | None:
    """Return half the width of the interval if that is more than the limit allows, else None."""
    half = (interval[1] - interval[0]) / 2
    return half if half > allowed_change else None


def _interval(limit: Limit, reading: Reading, allowed: Figure) -> tuple[float, float]:
    now, before = reading.samples
    assert limit.confidence is not None
    assert now is not None
    if not is_relative(limit) or before is None:
        before = np.asarray([float(allowed.value)])
    return compute_interval(now, before, limit.confidence)


def _explain_useless(limit: Limit, reading: Reading) -> str:
    """Return why no value can break the limit, "" if one can."""
    allowed = compute_allowed(limit, reading.before)
    least = limit.sense is Sense.AT_LEAST
    everything = allowed.value <= 0 if least else limit.unit == "ratio" and allowed.value >= 1
    if not everything or allowed.is_bound:
        return ""
    return f"{clean_name(limit.said)} allows every value there can be, so that it guards nothing"


def _explain_too_few(limit: Limit, reading: Reading) -> str:
    """Return why there are too few steps for an interval, "" if there are enough or none is needed."""
    if limit.confidence is None:
        return ""
    sides = zip(("the run", _BASELINE), reading.samples, strict=True)
    for who, samples in list(sides)[: 2 if is_relative(limit) else 1]:
        steps = 0 if samples is None else len(samples)
        if steps < MIN_STEPS:
            timed = f"{steps} timed step{'' if steps == 1 else 's'}"
            return f"{who} has {timed}, an interval needs {MIN_STEPS}"
    return ""


def _warn_if_default(limit: Limit) -> Outcome:
    """Return WARNED for a default: whoever made the baseline must not be able to silence it."""
    return Outcome.WARNED if limit.origin == DEFAULT else Outcome.UNKNOWN


def _skip_if_default(limit: Limit) -> Outcome:
    """Return SKIPPED for a default: nobody requested it, so nobody needs to know that it was not judged."""
    return Outcome.SKIPPED if limit.origin == DEFAULT else Outcome.UNKNOWN


def _leave_unjudged(limit: Limit, reading: Reading, outcome: Outcome, reason: str, remedy: str) -> GateResult:
    result = _make_result(limit, reading, outcome)
    return replace(result, sentence=describe_unjudged(result, reading, reason), remedy=remedy)


def _make_result(limit: Limit, reading: Reading, outcome: Outcome) -> GateResult:
    return GateResult(
        limit=limit,
        outcome=outcome,
        subject=reading.subject,
        value=_to_float(reading.now),
        baseline=_to_float(reading.before),
        leaf=reading.leaf,
        grew=reading.grew,
        sentence="",
    )


def _to_float(figure: Figure | None) -> float | None:
    return None if figure is None else float(figure.value)
