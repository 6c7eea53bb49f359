"""Give the verdict against a baseline: slower or not, by how much, and why.

``slower`` if the 95 % interval of the change lies above zero and the change is at least 2 %; ``ok`` if the
interval stays below +5 %; else ``inconclusive``. If the runs process different amounts per step, the change
is that at equal work. If jobs differ in size and their work is unknown, the verdict is inconclusive.

A finding is named as the cause only if it can be one: the ledger terms that its saving is taken from hold at
least a tenth of the change. What was as bad before explains nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from zprof.model.findings import Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap, GapKind
from zprof.model.report import WORK_SETTINGS, Comparison, EqualWork, StepTimeChange, VerdictStatus
from zprof.model.time import LEDGER_NAMES
from zprof.rules.rule import Rule

_SLOWER_RATIO = 0.02
_SAME_RATIO = 0.05
#: Minimum share of the change that the terms of a finding hold before it is called the cause.
_CAUSE_RATIO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Change relative to the step of a, as measured or at equal work."""

    ratio: float
    low: float
    high: float


def judge_against_baseline(
    comparison: Comparison,
    sure: Sequence[Finding],
    gaps: Sequence[Gap],
    asked: Sequence[Rule] = (),
    *,
    loaded: str = "",
    of: str = "per step",
) -> tuple[VerdictStatus, str]:
    """Return status and sentence; both runs must be timed.

    ``loaded`` names the loaded ranks if some are missing. ``of`` is the unit of the times.
    """
    times, work = comparison.step_time, comparison.equal_work
    assert times is not None
    scaled = work is not None and work.b_ns != times.b_ns
    change = _equal_work_change(times, work) if scaled and work else _measured_change(times)
    few = any(gap.kind is GapKind.NO_INTERVAL for gap in gaps)
    said = _describe_change(times, work, _format_change(change, with_interval=not few))
    head = f"{format_ns(times.b_ns)} vs {format_ns(times.a_ns)} {of}, {said}{loaded}"
    if few:
        return VerdictStatus.INCONCLUSIVE, f"{head}: too few steps to tell it from noise"
    other = [entry for entry in comparison.differences if entry.key in WORK_SETTINGS]
    if other and work is None:
        jobs = ", ".join(f"{entry.b} vs {entry.a} {entry.what}" for entry in other)
        return VerdictStatus.INCONCLUSIVE, f"{head}: other jobs ({jobs}), their work per step is unknown"
    if change.ratio >= _SLOWER_RATIO and change.low > 0:
        return VerdictStatus.SLOWER, f"{head}{_explain_change(comparison, sure, asked)}"
    if change.high < _SAME_RATIO:
        return VerdictStatus.OK, head
    suspect = f", though {sure[0].sentence}" if sure else ""
    return VerdictStatus.INCONCLUSIVE, f"{head}: the steps vary too much to tell{suspect}"


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
    return f"with {ratio:.3g} times the {work.unit.value} on a rank: {signed} at equal work"


def _measured_change(times: StepTimeChange) -> _Change:
    whole = max(1, times.a_ns)
    low, high = times.ci95
    return _Change(ratio=(times.b_ns - times.a_ns) / whole, low=low / whole, high=high / whole)


def _equal_work_change(times: StepTimeChange, work: EqualWork) -> _Change:
    whole = max(1, times.a_ns)
    low, high = work.ci95
    return _Change(ratio=(work.b_ns - times.a_ns) / whole, low=low / whole, high=high / whole)


def _explain_change(comparison: Comparison, sure: Sequence[Finding], asked: Sequence[Rule]) -> str:
    cause = next((entry for entry in sure if _explains_change(comparison, entry, asked)), None)
    if cause is not None:
        return f", because {cause.sentence}"
    term, change = max(_ledger_delta(comparison).items(), key=lambda item: item[1])
    most = (
        f"most of it is {LEDGER_NAMES[term]} (+{format_ns(change)})" if change > 0 else "no term of it grew"
    )
    return f"; {'no finding explains it' if sure else 'no cause found'}; {most}"


def _explains_change(comparison: Comparison, finding: Finding, asked: Sequence[Rule]) -> bool:
    """Return whether the finding's terms are part of the change; True if its claims are unknown."""
    terms = next((rule.claims for rule in asked if rule.cause is finding.cause), None)
    if terms is None:
        return True
    delta = _ledger_delta(comparison)
    whole = sum(delta.values())
    return sum(max(0, delta.get(term, 0)) for term in terms) >= _CAUSE_RATIO * whole


def _ledger_delta(comparison: Comparison) -> Mapping[str, float]:
    """Return the change of each term, at equal work if the verdict is."""
    times, work, before = comparison.step_time, comparison.equal_work, comparison.baseline_time
    if times is None or work is None or not before:
        return comparison.ledger_delta
    share = work.b_ns / max(1, times.b_ns)
    a = {term: fmean(getattr(rank, term) for rank in before) for term in comparison.ledger_delta}
    return {term: share * (a[term] + delta) - a[term] for term, delta in comparison.ledger_delta.items()}


def _format_signed(ratio: float, digits: int = 0) -> str:
    return f"{ratio * 100:+.{digits}f}"
