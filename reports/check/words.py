"""What all faces of a check say alike: the order of gates, their figures and marks, the outcome in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from zprof.model.check import Check, GateResult, Limit, Outcome, Sense
from zprof.model.units import format_bytes, format_ns, format_percent, format_rate

MARKS = {
    Outcome.FAILED: "✗",
    Outcome.UNKNOWN: "?",
    Outcome.WARNED: "!",
    Outcome.WITHIN_NOISE: "~",
    Outcome.SKIPPED: "-",
    Outcome.PASSED: "✓",
}
_SAID = {
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "could not be judged",
    Outcome.WARNED: "warned",
    Outcome.WITHIN_NOISE: "within noise",
    Outcome.SKIPPED: "had nothing to be held against",
    Outcome.PASSED: "passed",
}
_SIGNS = {Sense.AT_MOST: "≤", Sense.AT_LEAST: "≥"}
#: What stands where a value is not known, or there is none.
NONE = "-"
_SHOW: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "ns": format_ns,
    "ratio": format_percent,
    "bytes_per_s": format_rate,
    "count": lambda count: f"{count:.10g}",
    "psi": lambda factor: f"{factor:.4g}Ψ",
}
_NOTHING_RATIO = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLine:
    """A gate as a row of a table: everything as text."""

    mark: str
    gate: str
    value: str
    baseline: str
    allowed: str
    change: str


def figure(value: float | None, unit: str) -> str:
    """A value in its unit, as every face shows it; a dash where there is none."""
    if value is None:
        return NONE
    show = _SHOW.get(unit)
    return show(value) if show else f"{value:g} {unit}".strip()


def by_weight(check: Check) -> tuple[GateResult, ...]:
    """What failed first, then what could not be judged, warnings, what was skipped, what passed."""
    order = list(MARKS)
    return tuple(sorted(check.results, key=lambda result: order.index(result.outcome)))


def ended(check: Check, outcome: Outcome) -> tuple[GateResult, ...]:
    """The gates that ended so, in the order of the limits."""
    return tuple(result for result in check.results if result.outcome is outcome)


def gate_line(result: GateResult) -> GateLine:
    """The row of a gate."""
    unit = result.limit.unit
    return GateLine(
        mark=MARKS[result.outcome],
        gate=result.limit.gate,
        value=figure(result.value, unit),
        baseline=figure(result.baseline, unit),
        allowed=allowed(result),
        change=change(result),
    )


def allowed(result: GateResult) -> str:
    """The limit in its unit with its side; as it was written where it is known of no unit."""
    if result.allowed is None:
        return NONE
    return f"{_SIGNS[result.limit.sense]} {figure(result.allowed, result.limit.unit)}"


def change(result: GateResult) -> str:
    """Against the baseline: in percent, of shares in points; a change too small for that in its unit."""
    value, before = result.value, result.baseline
    if value is None or before is None:
        return NONE
    if value == before:
        return "0"
    if result.limit.unit == "ratio":
        return f"{(value - before) * 100:+.1f} pt"
    if before == 0 or abs(value / before - 1) < _NOTHING_RATIO:
        return _signed(value - before, result.limit.unit)
    return f"{(value / before - 1) * 100:+.1f} %"


def spread_change(result: GateResult) -> str:
    """The change with half the width of its interval, for faces that have no room for both ends."""
    value, before, unit = result.value, result.baseline, result.limit.unit
    if result.interval is None or value is None or before is None:
        return change(result)
    half = (result.interval[1] - result.interval[0]) / 2
    if unit == "ratio":
        return f"{(value - before) * 100:+.1f} ±{half * 100:.1f} pt"
    if before == 0:
        return f"{_signed(value - before, unit)} ±{figure(half, unit)}"
    return f"{(value / before - 1) * 100:+.1f} ±{half / before * 100:.1f} %"


def is_noisy(result: GateResult) -> bool:
    """Whether it passed, or is within noise, and could not have failed for a change as large as its limit."""
    return result.noise is not None and result.outcome in (Outcome.PASSED, Outcome.WITHIN_NOISE)


def interval(result: GateResult) -> str:
    """Of the difference to the baseline, with its confidence; empty where there is none."""
    if result.interval is None:
        return ""
    if result.limit.unit == "ratio":
        low, high = (f"{end * 100:+.1f} pt" for end in result.interval)
    else:
        low, high = (_signed(end, result.limit.unit) for end in result.interval)
    sure = result.limit.confidence
    return f"[{low}, {high}]" if sure is None else f"[{low}, {high}] at {sure * 100:g} %"


def limit_said(limit: Limit) -> str:
    """The limit as it was written, and where."""
    return f"{limit.said} ({limit.origin})" if limit.origin else limit.said


def details(result: GateResult) -> tuple[str, ...]:
    """Sentence, what grew where the sentence does not say it, and the remedy: a line each."""
    lines = [result.sentence]
    if result.grew and result.grew not in result.sentence:
        lines.append(result.grew)
    if result.remedy:
        lines.append(f"→ {result.remedy}")
    return tuple(lines)


def explained(results: Sequence[GateResult]) -> tuple[tuple[GateResult, tuple[str, ...]], ...]:
    """Gates of one part, each with its lines; a remedy that goes for several in a row is said after the last.

    On a first run all gates are skipped for one reason: then what is large is no answer to anything.
    """
    found = []
    for at, result in enumerate(results):
        following = results[at + 1].remedy if at + 1 < len(results) else None
        said = replace(result, remedy="") if result.remedy == following else result
        said = replace(said, grew="") if result.outcome is Outcome.SKIPPED else said
        found.append((result, details(said)))
    return tuple(found)


def outcome_sentence(check: Check) -> str:
    """``FAILED: 1 of 8 gates failed, 1 warned``: how it ended, in one line."""
    count = len(check.results)
    if not count:
        return f"{check.outcome.value.upper()}: no gate was asked for"
    gates = "1 gate" if count == 1 else f"{count} gates"
    if check.outcome is Outcome.PASSED and len(ended(check, Outcome.SKIPPED)) == count:
        return f"PASSED, nothing was held: {gates} {_SAID[Outcome.SKIPPED]}"
    if all(result.outcome is check.outcome for result in check.results):
        return f"{_head(check)}: {'' if count == 1 else 'all '}{gates} {_SAID[check.outcome]}"
    same, others = len(ended(check, check.outcome)), [kind for kind in MARKS if kind is not check.outcome]
    parts = [f"{len(found)} {_SAID[kind]}" for kind in others if (found := ended(check, kind))]
    head = f"{same} of {gates} {_SAID[check.outcome]}" if same else gates
    return ", ".join([f"{_head(check)}: {head}", *parts])


def _head(check: Check) -> str:
    return check.outcome.value.upper().replace("_", " ")


def against(check: Check) -> str:
    """What it was held against."""
    return f"against baseline {check.baseline}" if check.baseline else "without a baseline"


def _signed(value: float, unit: str) -> str:
    shown = figure(value, unit)
    return f"+{shown}" if value > 0 else shown
