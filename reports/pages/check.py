"""Build the page of a check: one row per gate, the reason for each gate that did not pass, and the report
sections that explain it. Also the sentences about gates, shared with the CI formats:

peak_memory: 21.4 MiB on rank 1 is 4.2 % above the baseline's 20.5 MiB, allowed +2% (20.9 MiB); …
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from msgspec.structs import replace

from zprof.base.formatting import format_percent, printable, shorten
from zprof.model.comparison import Check, GateResult, Limit, LimitRow, Outcome, Sense
from zprof.model.findings import Confidence, Finding
from zprof.model.metrics import METRICS
from zprof.model.quantities import Unit, Value, format_number, format_signed
from zprof.model.report import Report
from zprof.reports.page import Facts, Item, ItemList, Page, Section, VerdictBlock, make_section
from zprof.reports.pages.compare import build_difference_section
from zprof.reports.pages.findings import build_finding_section, build_gap_section
from zprof.reports.pages.head import build_modelled_notes, list_baseline_runs
from zprof.reports.pages.ledger import build_ledger_section
from zprof.reports.table import (
    MAX_ROWS,
    UNKNOWN,
    Cell,
    Column,
    Kind,
    Table,
    make_number_columns,
    make_table,
    make_text_column,
)

#: Worst first.
MARKS = {
    Outcome.FAILED: "✗",
    Outcome.UNKNOWN: "?",
    Outcome.WARNED: "!",
    Outcome.WITHIN_NOISE: "~",
    Outcome.SKIPPED: "-",
    Outcome.PASSED: "✓",
}
_OUTCOME_TITLES = (
    (Outcome.FAILED, "Failed"),
    (Outcome.UNKNOWN, "Not evaluated"),
    (Outcome.WARNED, "Warned"),
    (Outcome.WITHIN_NOISE, "Within noise"),
    (Outcome.SKIPPED, "Skipped"),
)
_TONES = {
    Outcome.FAILED: "slower",
    Outcome.UNKNOWN: "inconclusive",
    Outcome.WARNED: "risk",
    Outcome.PASSED: "ok",
}
_MAX_GATES = 60
_OUTCOME_VERBS = {
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "could not be evaluated",
    Outcome.WARNED: "warned",
    Outcome.WITHIN_NOISE: "within noise",
    Outcome.SKIPPED: "had nothing to compare with",
    Outcome.PASSED: "passed",
}
_SIGNS = {Sense.AT_MOST: "≤", Sense.AT_LEAST: "≥"}
#: Smaller changes would show as 0.0 %.
_MIN_CHANGE_RATIO = 0.0005
_MAX_NAME_COLUMNS = 60
_MEMORY_GATES = ("peak_memory", "untagged_ratio")


def build_check_page(check: Check, report: Report) -> Page:
    """Build the page of a check; ``report``: the checked report."""
    explanation_sections = (*build_difference_section(report), *build_ledger_section(report))
    explanation_sections += (
        *(build_finding_section(report) if report.findings else ()),
        *build_gap_section(report.gaps),
    )
    items = tuple(Item(text=notice) for notice in check.notices[:_MAX_GATES])
    return Page(
        kind="zprof check",
        subject=check.run,
        head=(
            build_verdict(check),
            Facts(rows=(("run", check.run), ("baseline", check.baseline or "none"))),
            *build_modelled_notes([report.run, *list_baseline_runs(report)]),
        ),
        sections=(
            *make_section("gates", "Gates", "Measured values and their limits.", build_gate_table(check)),
            *_build_reason_sections(check),
            *make_section(
                "notices",
                "Notices",
                "",
                ItemList(items=items, total=len(check.notices), noun="notices") if items else None,
            ),
            *(replace(section, detail=True) for section in explanation_sections),
        ),
        made_by=f"zprof {check.zprof_version}, {check.schema}",
        data_command="zprof check RUN -f json",
        repeat_verdict=True,
    )


def build_verdict(check: Check) -> VerdictBlock:
    """Build the outcome of the check as the verdict of its page."""
    nothing = _has_checked_nothing(check)
    return VerdictBlock(
        tone="inconclusive" if nothing else _TONES.get(check.outcome, "inconclusive"),
        mark=MARKS[Outcome.SKIPPED if nothing else check.outcome],
        text=format_outcome(check),
    )


def build_gate_table(check: Check, max_rows: int = MAX_ROWS) -> Table | None:
    """Build the table of the gates, failures first."""
    return make_table(
        "Gates",
        (
            make_text_column("gate"),
            *make_number_columns("value", "baseline", "allowed", "change"),
            *make_number_columns("interval", wide=True),
            Column(title="limit", kind=Kind.TEXT, wide=True),
            Column(title="outcome", kind=Kind.TEXT, wide=True),
        ),
        [_make_gate_row(result) for result in sort_by_severity(check)],
        max_rows=max_rows,
        note=f"against baseline {check.baseline}" if check.baseline else "without a baseline",
        max_text_rows=_MAX_GATES,
        noun="gates, failures first",
    )


def _make_gate_row(result: GateResult) -> tuple[Cell, ...]:
    unit = result.limit.unit
    allowed = UNKNOWN
    if result.allowed is not None:
        allowed = f"{_SIGNS[result.limit.sense]} {format_number(result.allowed, unit)}"
    return (
        f"{MARKS[result.outcome]} {result.limit.gate}",
        Value(number=result.value, unit=unit),
        Value(number=result.baseline, unit=unit),
        allowed,
        _format_change_with_spread(result),
        format_interval(result),
        format_limit(result.limit),
        result.outcome.value.replace("_", " "),
    )


def _build_reason_sections(check: Check) -> Iterator[Section]:
    """Yield one section per outcome with the reasons."""
    for outcome, title in _OUTCOME_TITLES:
        yield from _build_reason_section(
            title, outcome.value, tuple(result for result in check.results if result.outcome is outcome)
        )
    noisy = [result for result in check.results if is_noisy(result) and result.outcome is Outcome.PASSED]
    yield from _build_reason_section("Passed, too noisy to fail", "noisy", noisy)


def _build_reason_section(title: str, anchor: str, results: Sequence[GateResult]) -> tuple[Section, ...]:
    """Build the section of an outcome; a remedy shared by consecutive gates follows the last of them."""
    items = []
    listed = results[:_MAX_GATES]
    for result, following in zip_longest(listed, listed[1:]):
        is_repeated = following is not None and following.remedy == result.remedy
        # On a first run, all gates are skipped for the same reason, so their largest growth is omitted.
        is_skipped = result.outcome is Outcome.SKIPPED
        shown = replace(
            result, remedy="" if is_repeated else result.remedy, grew="" if is_skipped else result.grew
        )
        first, *rest = describe_result(shown)
        remedy = "".join(line.removeprefix("→ ") for line in rest if line.startswith("→ "))
        growth = [line for line in rest if not line.startswith("→ ")]
        limit = "" if is_skipped else format_limit(result.limit)
        items.append(
            Item(
                mark=MARKS[result.outcome],
                text="; ".join([first, *growth]),
                remedy=remedy,
                details=(("limit", limit),) if limit else (),
            )
        )
    item_list = ItemList(items=tuple(items), total=len(results), noun="gates") if items else None
    return make_section(anchor, f"{title} ({len(results)})", "", item_list)


def sort_by_severity(check: Check) -> tuple[GateResult, ...]:
    """Return the gates sorted by outcome: failed, unknown, warned, within noise, skipped, passed."""
    order = list(MARKS)
    return tuple(sorted(check.results, key=lambda result: order.index(result.outcome)))


def format_change(result: GateResult) -> str:
    """Format the change from the baseline: in percent, in points for ratios, in the unit if tiny."""
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


def _format_change_with_spread(result: GateResult) -> str:
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
    """Return True if a gate passed only because noise would hide a change as large as its limit."""
    return result.noise is not None and result.outcome in (Outcome.PASSED, Outcome.WITHIN_NOISE)


def format_interval(result: GateResult) -> str:
    """Format the confidence interval of the change; empty without one."""
    if result.interval is None:
        return ""
    if result.limit.unit == Unit.RATIO:
        low, high = (f"{end * 100:+.1f} pt" for end in result.interval)
    else:
        low, high = (format_signed(end, result.limit.unit) for end in result.interval)
    confidence = result.limit.confidence
    return f"[{low}, {high}]" if confidence is None else f"[{low}, {high}] at {confidence * 100:g} %"


def format_limit(limit: Limit) -> str:
    """Format the limit as written by the user, with its source file."""
    return f"{limit.text} ({limit.origin})" if limit.origin else limit.text


def describe_result(result: GateResult) -> tuple[str, ...]:
    """Return the sentence, the largest growth (unless in the sentence) and the remedy, one line each."""
    lines = [result.sentence]
    if result.grew and result.grew not in result.sentence:
        lines.append(result.grew)
    if result.remedy:
        lines.append(f"→ {result.remedy}")
    return tuple(lines)


def format_outcome(check: Check) -> str:
    """Summarize the check, such as ``FAILED: 1 of 8 gates failed, 1 warned``."""
    count = len(check.results)
    if not count:
        return f"{check.outcome.value.upper()}: no gate was requested"
    gates = "1 gate" if count == 1 else f"{count} gates"
    verbs = [_choose_verb(check, result) for result in sort_by_severity(check)]
    counts = {verb: verbs.count(verb) for verb in dict.fromkeys(verbs)}
    if _has_checked_nothing(check):
        parts = [f"{number} {verb}" for verb, number in counts.items()]
        return f"NOTHING WAS CHECKED: {', '.join(parts) if len(counts) > 1 else f'{gates} {verbs[0]}'}"
    verb, status = _OUTCOME_VERBS[check.outcome], check.outcome.value.upper().replace("_", " ")
    if list(counts) == [verb]:
        return f"{status}: {'' if count == 1 else 'all '}{gates} {verb}"
    same_count = counts.pop(verb, 0)
    head = f"{same_count} of {gates} {verb}" if same_count else gates
    return ", ".join([f"{status}: {head}", *(f"{number} {other}" for other, number in counts.items())])


def _has_checked_nothing(check: Check) -> bool:
    """Return True if no gate had anything to judge, as without a baseline."""
    has_passed = any(result.outcome is Outcome.PASSED for result in check.results)
    return bool(check.results) and check.outcome is Outcome.PASSED and not has_passed


def _choose_verb(check: Check, result: GateResult) -> str:
    """Return what happened to a gate, which is skipped without a baseline, a value, or an exact value."""
    needs_baseline = check.baseline is None and result.limit.value is None
    if result.outcome is Outcome.SKIPPED and not needs_baseline:
        return "not measured" if result.value is None else "undecided"
    if result.outcome is Outcome.WARNED and result.allowed is None:
        return "not judged"
    return _OUTCOME_VERBS[result.outcome]


def describe_gate(gate: str) -> str:
    """Describe a gate in one sentence; return the name of a gate that is not built in."""
    metric = METRICS.get(f"check.{gate}")
    return metric.help if metric else gate


def describe_unjudged(result: GateResult, row: LimitRow, reason: str) -> str:
    """Describe a limit that was not judged, with the reason."""
    value = (
        "" if result.value is None else f"{format_number(result.value, result.limit.unit)}{row.value_note}, "
    )
    status = "unknown" if result.outcome is Outcome.UNKNOWN else "not judged"
    return f"{result.limit.gate}: {value}{status}: {reason}"


def describe_judged(
    result: GateResult,
    row: LimitRow,
    *,
    within_limit: bool | None,
    interval: tuple[float, float] | None,
    is_range: bool,
) -> str:
    """Describe the result of a judged limit; ``is_range``: the interval covers only a few steps."""
    limit, unit = result.limit, result.limit.unit
    value, allowed = result.value or 0.0, result.allowed or 0.0
    parts = [f"{limit.gate}: {format_number(value, unit)}{row.value_note}{_describe_baseline(result)}"]
    shown, shown_allowed = format_number(value, unit), format_number(allowed, unit)
    if limit.is_relative:
        parts.append(f", allowed {shorten(printable(limit.text), _MAX_NAME_COLUMNS)} ({shown_allowed})")
    else:
        side = "most" if limit.sense is Sense.AT_MOST else "least"
        parts.append(f", allowed at {side} {shown_allowed}")
    if within_limit is False and shown == shown_allowed:
        parts.append(f", {format_number(abs(value - allowed), unit)} beyond the limit")
    if interval is not None:
        parts.append(_describe_interval(limit, interval, is_range=is_range))
    if result.outcome is Outcome.WITHIN_NOISE:
        reason = row.chance_note if within_limit is False else "within the variation between steps"
        parts.append(f"; beyond the limit, but {reason}")
    if result.noise is not None:
        parts.append(
            f"; the noise of ±{_format_amount(result.noise, unit)} is larger than the limit "
            "allows: a regression smaller than both combined cannot fail"
        )
    if within_limit is None:
        parts.append(f"; {_describe_bound(row)}, so the measured values cannot decide it")
        if row.device_note:
            parts.append(f": {row.device_note}")
    elif not within_limit and row.warn_reason:
        parts.append(f"; {row.warn_reason}")
    if row.growth_note:
        parts.append(f"; {row.growth_note}")
    return "".join(parts)


def _describe_baseline(result: GateResult) -> str:
    if result.baseline is None or result.value is None:
        return ""
    change, base, unit = abs(result.value - result.baseline), result.baseline, result.limit.unit
    if change == 0:
        return " is equal to the baseline"
    side = "above" if result.value > base else "below"
    if unit != Unit.RATIO and base > 0 and change / base >= _MIN_CHANGE_RATIO:
        amount = format_percent(change / base)
    else:
        amount = _format_amount(change, unit)
    return f" is {amount} {side} the baseline's {format_number(base, unit)}"


def _format_amount(change: float, unit: Unit) -> str:
    """Format a difference, in percentage points for ratios."""
    if unit != Unit.RATIO:
        return format_number(change, unit)
    return f"{change * 100:.1f} points" if change >= _MIN_CHANGE_RATIO else "less than 0.1 points"


def _describe_interval(limit: Limit, interval: tuple[float, float], *, is_range: bool) -> str:
    quantity = "change" if limit.is_relative else "distance to the limit"
    if limit.unit == Unit.RATIO:
        low, high = (
            "±0.0 points"
            if abs(end) < _MIN_CHANGE_RATIO
            else f"{'-' if end < 0 else '+'}{_format_amount(abs(end), Unit.RATIO)}"
            for end in interval
        )
    else:
        low, high = (format_signed(end, limit.unit) for end in interval)
    if is_range:
        return f", {quantity} between any two steps, with their spread, {low} to {high}"
    return f", {100 * (limit.confidence or 0.0):g} % interval of the {quantity} {low} to {high}"


def _describe_bound(row: LimitRow) -> str:
    """Describe which of the two figures is a bound."""
    for name, figure in (("the value", row.current), ("the baseline", row.baseline)):
        if figure is not None and figure.is_bound:
            if figure.can_be_lower and figure.can_be_higher:
                return f"{name} is only an estimate"
            return f"{name} is {'an upper bound' if figure.can_be_lower else 'a lower bound'}"
    return "the value is not exact"


def select_causes(result: Check, report: Report) -> tuple[Finding, ...]:
    """Return the diagnosed causes of the failed gates: one for time or traffic, one for memory.

    Each is the first finding above low confidence. Empty if no gate failed.
    """
    failed = [entry.limit.gate for entry in result.results if entry.outcome is Outcome.FAILED]
    is_memory = [gate.startswith(_MEMORY_GATES) for gate in failed]
    sure = [finding for finding in report.findings if finding.confidence is not Confidence.LOW]
    of_time = [finding for finding in sure if finding.saving_ns[1] > 0]
    of_memory = [finding for finding in sure if finding.saving_bytes is not None]
    chosen = [*of_time[: not all(is_memory)], *of_memory[: any(is_memory)]]
    return tuple(dict.fromkeys(chosen))


def name_causes(causes: Sequence[Finding]) -> tuple[str, ...]:
    """Return one notice per cause of a failed check."""
    return tuple(f"likely cause: {_describe_cause(finding)}" for finding in causes)


def _describe_cause(finding: Finding) -> str:
    """Describe a finding: name, sentence, and cost or saving."""
    cost = ""
    if finding.change_ns is not None and finding.change_ns[1] > 0:
        cost = f"; costs {_format_range(finding.change_ns, Unit.NS)} per step more than in the baseline"
    elif finding.saving_ns[1] > 0:
        cost = f"; its fix saves {_format_range(finding.saving_ns, Unit.NS)} per step"
    elif finding.saving_bytes is not None:
        cost = f"; its fix frees {_format_range(finding.saving_bytes, Unit.BYTES)}"
    name = f"{finding.cause} ({finding.id}, {finding.confidence.value} confidence)"
    return f"{name}: {printable(finding.sentence)}{cost}"


def _format_range(ends: tuple[int, int], unit: Unit) -> str:
    low, high = (format_number(max(0, end), unit) for end in ends)
    return low if low == high else f"{low} to {high}"
