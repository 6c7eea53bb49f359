"""How a check is written: the order of gates, their figures and marks, the outcome in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from zprof.model.check import Check, GateResult, Limit, Outcome, Sense
from zprof.model.formatting import format_bytes, format_ns, format_percent, format_rate
from zprof.reports.page import UNKNOWN

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
    Outcome.SKIPPED: "had nothing to compare with",
    Outcome.PASSED: "passed",
}
_SIGNS = {Sense.AT_MOST: "≤", Sense.AT_LEAST: "≥"}
_SHOW: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "ns": format_ns,
    "ratio": format_percent,
    "bytes_per_s": format_rate,
    "count": lambda count: f"{count:.10g}",
    "psi": lambda factor: f"{factor:.4g}Ψ",
}
_NOTHING_RATIO = 0.0005


_HELP = {
    "peak_memory": "Highest live bytes in the allocator, of the rank with the highest peak.",
    "untagged_ratio": "Share of the peak that no tenant claims: of the rank where it is largest.",
    "exposed_ratio": "Share of the step during which a collective runs and this rank computes nothing.",
    "overlap_ratio": "Share of the collectives' time that is hidden under compute.",
    "collective_bytes": "Bytes that the collectives of a step move, of the full tensors.",
    "collective_count": "Collectives of a step.",
    "collective_bytes_law": "Bytes a rank moves in a step, as a multiple of the model's parameter bytes.",
    "step_time": "Mean wall time of a step; the interval of its change is held against the limit.",
    "exposed_wait": "Exposed time in which collectives wait for their last rank.",
}
_TENANT = "Bytes of this tenant at the peak of the rank with the highest peak."


def figure(value: float | None, unit: str) -> str:
    """Return a value in its unit; a dash if there is none."""
    if value is None:
        return UNKNOWN
    show = _SHOW.get(unit)
    return show(value) if show else f"{value:g} {unit}".strip()


def sort_by_severity(check: Check) -> tuple[GateResult, ...]:
    """Return the gates that failed first, then what could not be judged, warned, was skipped, passed."""
    order = list(MARKS)
    return tuple(sorted(check.results, key=lambda result: order.index(result.outcome)))


def ended(check: Check, outcome: Outcome) -> tuple[GateResult, ...]:
    """Return the gates that ended so, in the order of the limits."""
    return tuple(result for result in check.results if result.outcome is outcome)


def allowed(result: GateResult) -> str:
    """Return the limit in its unit with its side."""
    if result.allowed is None:
        return UNKNOWN
    return f"{_SIGNS[result.limit.sense]} {figure(result.allowed, result.limit.unit)}"


def change(result: GateResult) -> str:
    """Return the change from the baseline in percent, of shares in points; a tiny one in its unit."""
    value, before = result.value, result.baseline
    if value is None or before is None:
        return UNKNOWN
    if value == before:
        return "0"
    if result.limit.unit == "ratio":
        return f"{(value - before) * 100:+.1f} pt"
    if before == 0 or abs(value / before - 1) < _NOTHING_RATIO:
        return _signed(value - before, result.limit.unit)
    return f"{(value / before - 1) * 100:+.1f} %"


def format_change_with_spread(result: GateResult) -> str:
    """Return the change with half the width of its interval, if there is no room for both ends."""
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
    """Return if a gate did not fail, and would not have for a change as large as its limit."""
    return result.noise is not None and result.outcome in (Outcome.PASSED, Outcome.WITHIN_NOISE)


def interval(result: GateResult) -> str:
    """Return the interval of the change with its confidence; empty if there is none."""
    if result.interval is None:
        return ""
    if result.limit.unit == "ratio":
        low, high = (f"{end * 100:+.1f} pt" for end in result.interval)
    else:
        low, high = (_signed(end, result.limit.unit) for end in result.interval)
    sure = result.limit.confidence
    return f"[{low}, {high}]" if sure is None else f"[{low}, {high}] at {sure * 100:g} %"


def format_limit(limit: Limit) -> str:
    """Return the limit as it was written, and where."""
    return f"{limit.said} ({limit.origin})" if limit.origin else limit.said


def details(result: GateResult) -> tuple[str, ...]:
    """Return the sentence, what grew if the sentence does not say it, and the remedy, a line each."""
    lines = [result.sentence]
    if result.grew and result.grew not in result.sentence:
        lines.append(result.grew)
    if result.remedy:
        lines.append(f"→ {result.remedy}")
    return tuple(lines)


def explained(results: Sequence[GateResult]) -> tuple[tuple[GateResult, tuple[str, ...]], ...]:
    """Return each gate with its lines; a remedy that several in a row share stands after the last.

    On a first run all gates are skipped for one reason: then what is large is no answer to anything.
    """
    found = []
    for at, result in enumerate(results):
        following = results[at + 1].remedy if at + 1 < len(results) else None
        said = replace(result, remedy="") if result.remedy == following else result
        said = replace(said, grew="") if result.outcome is Outcome.SKIPPED else said
        found.append((result, details(said)))
    return tuple(found)


def format_outcome(check: Check) -> str:
    """Return ``FAILED: 1 of 8 gates failed, 1 warned``."""
    count = len(check.results)
    if not count:
        return f"{check.outcome.value.upper()}: no gate was requested"
    gates = "1 gate" if count == 1 else f"{count} gates"
    if check.outcome is Outcome.PASSED and len(ended(check, Outcome.SKIPPED)) == count:
        return f"PASSED, nothing was checked: {gates} {_SAID[Outcome.SKIPPED]}"
    if all(result.outcome is check.outcome for result in check.results):
        return f"{_head(check)}: {'' if count == 1 else 'all '}{gates} {_SAID[check.outcome]}"
    same, others = len(ended(check, check.outcome)), [kind for kind in MARKS if kind is not check.outcome]
    parts = [f"{len(found)} {_SAID[kind]}" for kind in others if (found := ended(check, kind))]
    head = f"{same} of {gates} {_SAID[check.outcome]}" if same else gates
    return ", ".join([f"{_head(check)}: {head}", *parts])


def _head(check: Check) -> str:
    return check.outcome.value.upper().replace("_", " ")


def against(check: Check) -> str:
    """Return what the run was compared with."""
    return f"against baseline {check.baseline}" if check.baseline else "without a baseline"


def _signed(value: float, unit: str) -> str:
    shown = figure(value, unit)
    return f"+{shown}" if value > 0 else shown


def describe_gate(gate: str) -> str:
    """Return what a gate asks, in one sentence; its name if it is none of zprof's."""
    name, _, part = gate.partition(".")
    if part and name == "peak_memory":
        return _TENANT
    return _HELP.get(name, gate)
