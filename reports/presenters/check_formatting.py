"""Format the gates of a check: order, values, limits, marks and the outcome sentence."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from zprof.model.check import Check, GateResult, Limit, Outcome, Sense
from zprof.model.metrics.catalogue import METRICS
from zprof.model.quantities import Unit, format_number, format_signed
from zprof.reports.table import UNKNOWN

MARKS = {
    Outcome.FAILED: "✗",
    Outcome.UNKNOWN: "?",
    Outcome.WARNED: "!",
    Outcome.WITHIN_NOISE: "~",
    Outcome.SKIPPED: "-",
    Outcome.PASSED: "✓",
}
_OUTCOME_VERBS = {
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "could not be evaluated",
    Outcome.WARNED: "warned",
    Outcome.WITHIN_NOISE: "within noise",
    Outcome.SKIPPED: "had nothing to compare with",
    Outcome.PASSED: "passed",
}
_SIGNS = {Sense.AT_MOST: "≤", Sense.AT_LEAST: "≥"}
_MIN_CHANGE_RATIO = 0.0005


def sort_by_severity(check: Check) -> tuple[GateResult, ...]:
    """Return the gates by outcome: failed, unknown, warned, within noise, skipped, passed."""
    order = list(MARKS)
    return tuple(sorted(check.results, key=lambda result: order.index(result.outcome)))


def select_by_outcome(check: Check, outcome: Outcome) -> tuple[GateResult, ...]:
    """Return the gates with this outcome, in the order of the limits."""
    return tuple(result for result in check.results if result.outcome is outcome)


def format_allowed(result: GateResult) -> str:
    """Format the allowed value with ≤ or ≥."""
    if result.allowed is None:
        return UNKNOWN
    return f"{_SIGNS[result.limit.sense]} {format_number(result.allowed, result.limit.unit)}"


def format_change(result: GateResult) -> str:
    """Format the change from the baseline: in percent, in points for ratios, in the unit if it is tiny."""
    value, before = result.value, result.baseline
    if value is None or before is None:
        return UNKNOWN
    if value == before:
        return "0"
    if result.limit.unit == Unit.RATIO:
        return f"{(value - before) * 100:+.1f} pt"
    if before == 0 or abs(value / before - 1) < _MIN_CHANGE_RATIO:
        return format_signed(value - before, result.limit.unit)
    return f"{(value / before - 1) * 100:+.1f} %"


def format_change_with_spread(result: GateResult) -> str:
    """Format the change as ± half the width of its interval."""
    value, before, unit = result.value, result.baseline, result.limit.unit
    if result.interval is None or value is None or before is None:
        return format_change(result)
    half = (result.interval[1] - result.interval[0]) / 2
    if unit == Unit.RATIO:
        return f"{(value - before) * 100:+.1f} ±{half * 100:.1f} pt"
    if before == 0:
        return f"{format_signed(value - before, unit)} ±{format_number(half, unit)}"
    return f"{(value / before - 1) * 100:+.1f} ±{half / before * 100:.1f} %"


def is_noisy(result: GateResult) -> bool:
    """Return True if a gate passed only because noise hides even a change as large as its limit."""
    return result.noise is not None and result.outcome in (Outcome.PASSED, Outcome.WITHIN_NOISE)


def format_interval(result: GateResult) -> str:
    """Format the confidence interval of the change; empty if there is none."""
    if result.interval is None:
        return ""
    if result.limit.unit == Unit.RATIO:
        low, high = (f"{end * 100:+.1f} pt" for end in result.interval)
    else:
        low, high = (format_signed(end, result.limit.unit) for end in result.interval)
    confidence = result.limit.confidence
    return f"[{low}, {high}]" if confidence is None else f"[{low}, {high}] at {confidence * 100:g} %"


def format_limit(limit: Limit) -> str:
    """Format the limit as the user wrote it, with the file it comes from."""
    return f"{limit.said} ({limit.origin})" if limit.origin else limit.said


def describe_result(result: GateResult) -> tuple[str, ...]:
    """Return the sentence, the largest growth (unless the sentence has it) and the remedy, one line each."""
    lines = [result.sentence]
    if result.grew and result.grew not in result.sentence:
        lines.append(result.grew)
    if result.remedy:
        lines.append(f"→ {result.remedy}")
    return tuple(lines)


def explain_results(results: Sequence[GateResult]) -> tuple[tuple[GateResult, tuple[str, ...]], ...]:
    """Return each gate with its lines; a remedy shared by consecutive gates is printed after the last.

    On a first run all gates are skipped for the same reason, so their largest growth is omitted.
    """
    explained = []
    for index, result in enumerate(results):
        following = results[index + 1].remedy if index + 1 < len(results) else None
        shown = replace(result, remedy="") if result.remedy == following else result
        shown = replace(shown, grew="") if result.outcome is Outcome.SKIPPED else shown
        explained.append((result, describe_result(shown)))
    return tuple(explained)


def format_outcome(check: Check) -> str:
    """Summarize the check, such as ``FAILED: 1 of 8 gates failed, 1 warned``."""
    count = len(check.results)
    if not count:
        return f"{check.outcome.value.upper()}: no gate was requested"
    gates = "1 gate" if count == 1 else f"{count} gates"
    counts = _count_by_verb(check)
    if has_checked_nothing(check):
        return f"NOTHING WAS CHECKED: {_join_counts(counts, gates)}"
    verb = _OUTCOME_VERBS[check.outcome]
    if list(counts) == [verb]:
        return f"{_format_status(check)}: {'' if count == 1 else 'all '}{gates} {verb}"
    same_count = counts.pop(verb, 0)
    head = f"{same_count} of {gates} {verb}" if same_count else gates
    return ", ".join(
        [f"{_format_status(check)}: {head}", *(f"{number} {other}" for other, number in counts.items())]
    )


def has_checked_nothing(check: Check) -> bool:
    """Return True if no gate failed because none had anything to judge, as without a baseline."""
    has_passed = bool(select_by_outcome(check, Outcome.PASSED))
    return bool(check.results) and check.outcome is Outcome.PASSED and not has_passed


def _count_by_verb(check: Check) -> dict[str, int]:
    """Count the gates by what happened to them, worst first."""
    verbs = [_choose_verb(check, result) for result in sort_by_severity(check)]
    return {verb: verbs.count(verb) for verb in dict.fromkeys(verbs)}


def _choose_verb(check: Check, result: GateResult) -> str:
    """Return what happened to a gate; one is skipped without a baseline, a value, or an exact value."""
    needs_baseline = check.baseline is None and result.limit.value is None
    if result.outcome is Outcome.SKIPPED and not needs_baseline:
        return "not measured" if result.value is None else "undecided"
    if result.outcome is Outcome.WARNED and result.allowed is None:
        return "not judged"
    return _OUTCOME_VERBS[result.outcome]


def _join_counts(counts: Mapping[str, int], gates: str) -> str:
    """Format the counts; a single one names the gates."""
    if len(counts) == 1:
        return f"{gates} {next(iter(counts))}"
    return ", ".join(f"{number} {verb}" for verb, number in counts.items())


def _format_status(check: Check) -> str:
    return check.outcome.value.upper().replace("_", " ")


def describe_baseline(check: Check) -> str:
    """Name the baseline of the check."""
    return f"against baseline {check.baseline}" if check.baseline else "without a baseline"


def describe_gate(gate: str) -> str:
    """Describe a gate in one sentence; return its name if it is not a built-in gate."""
    metric = METRICS.get(f"check.{gate}")
    return metric.help if metric else gate
