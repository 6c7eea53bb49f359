"""Judge a run against a baseline: if it is slower, by how much, and why.

``slower`` if the 95 % interval of the change lies above zero and the change is at least 2 %; ``ok`` if the
interval stays below +5 %; else ``inconclusive``. If the runs process different amounts per step, the change
is computed at equal work. If jobs differ in size and their work is unknown, the verdict is inconclusive.

A finding is reported as the cause only if it costs at least a tenth of the change more than in the baseline,
and if the ledger terms that its saving is taken from account for as much. What the baseline lost as well
explains nothing.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from zprof.model.findings import Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap, GapKind
from zprof.model.report import WORK_SETTINGS, Comparison, EqualWork, StepTimeChange, VerdictStatus
from zprof.model.time import LEDGER_NAMES, mean_over_ranks
from zprof.rules.change_claims import MIN_CHANGE_RATIO, is_cause_of_change
from zprof.rules.rule import Rule

_MIN_SLOWER_RATIO = 0.02
_MAX_UNCHANGED_RATIO = 0.05


class _Change(Struct, frozen=True, kw_only=True):
    """Change relative to the step time of a, as measured or at equal work."""

    ratio: float
    low: float
    high: float


def judge_against_baseline(
    comparison: Comparison,
    sure: Sequence[Finding],
    gaps: Sequence[Gap],
    rules: Sequence[Rule] = (),
    *,
    loaded_ranks: str = "",
    time_unit: str = "per step",
) -> tuple[VerdictStatus, str]:
    """Return the status and sentence of the verdict; both runs must be timed.

    ``loaded_ranks`` describes the loaded ranks if some are missing. ``time_unit``: the basis of the times.
    """
    times, work = comparison.step_time, comparison.equal_work
    assert times is not None
    scaled = work is not None and work.b_ns != times.b_ns
    change = _compute_equal_work_change(times, work) if scaled and work else _compute_measured_change(times)
    too_few_steps = any(gap.kind is GapKind.NO_INTERVAL for gap in gaps)
    description = _describe_change(times, work, _format_change(change, with_interval=not too_few_steps))
    head = f"{format_ns(times.b_ns)} vs {format_ns(times.a_ns)} {time_unit}, {description}{loaded_ranks}"
    if too_few_steps:
        return VerdictStatus.INCONCLUSIVE, f"{head}: too few steps to distinguish the change from noise"
    different_work = [entry for entry in comparison.differences if entry.key in WORK_SETTINGS]
    if different_work and work is None:
        jobs = ", ".join(f"{entry.b} vs {entry.a} {entry.what}" for entry in different_work)
        return (
            VerdictStatus.INCONCLUSIVE,
            f"{head}: the jobs differ ({jobs}) and their work per step is unknown",
        )
    if change.ratio >= _MIN_SLOWER_RATIO and change.low > 0:
        return VerdictStatus.SLOWER, f"{head}{_explain_change(comparison, sure, rules)}"
    if change.high < _MAX_UNCHANGED_RATIO:
        return VerdictStatus.OK, head
    suspect = f"; possible cause: {sure[0].sentence}" if sure else ""
    return VerdictStatus.INCONCLUSIVE, f"{head}: step times vary too much for a verdict{suspect}"


def _format_change(change: _Change, *, with_interval: bool) -> str:
    """Format the change; the interval is left out if one or two steps make it meaningless."""
    interval = (
        f" [{_format_signed(change.low, 1)}, {_format_signed(change.high, 1)}]" if with_interval else ""
    )
    return f"{_format_signed(change.ratio)} %{interval}"


def _describe_change(times: StepTimeChange, work: EqualWork | None, signed: str) -> str:
    if work is None or work.b_ns == times.b_ns:
        return signed
    ratio = times.b_ns / max(1, work.b_ns)
    return f"with {ratio:.3g} times the {work.unit.value} per rank: {signed} at equal work"


def _compute_measured_change(times: StepTimeChange) -> _Change:
    total = max(1, times.a_ns)
    low, high = times.ci95
    return _Change(ratio=(times.b_ns - times.a_ns) / total, low=low / total, high=high / total)


def _compute_equal_work_change(times: StepTimeChange, work: EqualWork) -> _Change:
    total = max(1, times.a_ns)
    low, high = work.ci95
    return _Change(ratio=(work.b_ns - times.a_ns) / total, low=low / total, high=high / total)


def _explain_change(comparison: Comparison, sure: Sequence[Finding], rules: Sequence[Rule]) -> str:
    cause = next((entry for entry in sure if _explains_change(comparison, entry, rules)), None)
    if cause is not None:
        return f", because {cause.sentence}"
    term, change = max(compute_ledger_delta(comparison).items(), key=lambda item: item[1])
    largest = (
        f"the largest part is {LEDGER_NAMES[term]} (+{format_ns(change)})"
        if change > 0
        else "no ledger term grew"
    )
    return f"; {'no finding explains it' if sure else 'no cause found'}; {largest}"


def _explains_change(comparison: Comparison, finding: Finding, rules: Sequence[Rule]) -> bool:
    """Return True if the finding's terms account for part of the change, or if its claims are unknown."""
    terms = next((rule.claims for rule in rules if rule.cause is finding.cause), None)
    if terms is None:
        return True
    delta = compute_ledger_delta(comparison)
    total = sum(delta.values())
    if finding.change_ns is not None and not is_cause_of_change(finding, total):
        return False
    return sum(max(0, delta.get(term, 0)) for term in terms) >= MIN_CHANGE_RATIO * total


def compute_ledger_delta(comparison: Comparison) -> Mapping[str, float]:
    """Return the change of each ledger term, at equal work if the verdict is at equal work."""
    times, work, before = comparison.step_time, comparison.equal_work, comparison.baseline_time
    if times is None or work is None or not before:
        return comparison.ledger_delta
    work_ratio = work.b_ns / max(1, times.b_ns)
    a = {term: mean_over_ranks(before, term) for term in comparison.ledger_delta}
    return {term: work_ratio * (a[term] + delta) - a[term] for term, delta in comparison.ledger_delta.items()}


def _format_signed(ratio: float, digits: int = 0) -> str:
    return f"{ratio * 100:+.{digits}f}"
