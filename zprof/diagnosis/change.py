"""Account for the difference between two runs: the part that each cause adds, and the part that none claims.

A cause that the baseline also has explains only its additional cost. Causes that changed come first, by their
share of the difference; causes that were as bad before follow.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean

from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.compare.differences import compute_ledger_delta
from zprof.causes.cause import Cause
from zprof.diagnosis.claims import take_from_terms
from zprof.model.findings import Confidence, Finding, SavingNote
from zprof.model.report import Comparison

#: Minimum share of the difference that a cause must explain.
MIN_CHANGE_RATIO = 0.1
#: Growth of an amount that is usual between recordings.
_MAX_GROWTH_RATIO = 1.1


def account_for_change(
    findings: Sequence[Finding],
    before: Sequence[Finding],
    comparison: Comparison,
    causes: Mapping[str, Cause],
    lasting: Collection[str],
) -> tuple[tuple[Finding, ...], Comparison]:
    """Return the findings with the time each adds to the step, and the comparison with the unclaimed rest."""
    delta = compute_ledger_delta(comparison)
    slower_ns = sum(delta.values())
    attributed = attribute_change(findings, before, slower_ns, causes, lasting)
    if slower_ns <= 0:
        return attributed, comparison
    return attributed, replace(comparison, unclaimed_ns=find_unclaimed_change(delta, attributed, causes))


def is_lasting(cause: Cause, analysis: RunAnalysis, baseline: RunAnalysis) -> bool:
    """Return True if the cause reports that the baseline has as much of it, regardless of the cost."""
    return cause.is_lasting is not None and cause.is_lasting(analysis, baseline)


def attribute_change(
    findings: Sequence[Finding],
    before: Sequence[Finding],
    slower_ns: float,
    causes: Mapping[str, Cause],
    lasting: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Return the findings with the time each adds to the step, the causes of the difference first.

    Args:
        findings: The run's findings, ordered.
        before: The baseline's findings.
        slower_ns: Excess of the step time over the baseline's; if it is not positive, the order is kept.
        causes: The records of the causes, by name.
        lasting: Causes of which the baseline has as much, exposed or hidden. Causes with the same amount in
            both runs are added here. The cause of the difference is what makes them cost more.
    """
    lasting = {*lasting, *_find_lasting(findings, before, causes)}
    earlier = {finding.cause: finding.saving_ns for finding in before}
    changed = []
    for finding in findings:
        (low, high), before_ns = finding.saving_ns, earlier.get(finding.cause, (0, 0))
        if high > 0:
            finding = replace(finding, change_ns=(low - before_ns[1], high - before_ns[0]))
        changed.append(finding)
    if slower_ns <= 0:
        return tuple(changed)
    claimed_ns = _claim_difference(changed, slower_ns, causes, lasting)
    return tuple(
        sorted(
            changed,
            key=lambda finding: (not finding.invalidates_times, -claimed_ns.get(finding.cause, 0.0)),
        )
    )


def _find_lasting(
    findings: Sequence[Finding], before: Sequence[Finding], causes: Mapping[str, Cause]
) -> Iterator[str]:
    """Yield the causes whose amount (counts, bytes or own time) hardly grew."""
    amounts = {finding.cause: _read_amount(finding, causes[finding.cause]) for finding in before}
    for finding in findings:
        now, then = _read_amount(finding, causes[finding.cause]), amounts.get(finding.cause)
        if now is not None and then is not None and now <= _MAX_GROWTH_RATIO * then:
            yield finding.cause


def _read_amount(finding: Finding, cause: Cause) -> float | None:
    return next((entry.value for entry in finding.evidence if entry.key in cause.amounts), None)


def _claim_difference(
    findings: Sequence[Finding], slower_ns: float, causes: Mapping[str, Cause], lasting: Collection[str]
) -> dict[str, float]:
    """Return the part of the difference that each cause claims; no part is claimed twice.

    Causes that certainly cost more than before claim first, then causes that may cost as much as before, then
    causes that only expose a stall: a wait that existed before adds what the stall adds.
    """

    old_stalls = [name for name in lasting if causes[name].is_stall]

    def sort_key(finding: Finding) -> tuple[bool, bool, float]:
        low = 0 if finding.change_ns is None else finding.change_ns[0]
        # a cause that certainly costs more than the whole difference existed before, although it was not
        # found
        may_be_unchanged = not 0 < low <= _MAX_GROWTH_RATIO * slower_ns or finding.cause in lasting
        exposes_stall = not old_stalls and SavingNote.EXPOSES_A_STALL in finding.saving_notes
        return exposes_stall, may_be_unchanged, -_estimate_change_ns(finding)

    claimed_ns, left = {}, slower_ns
    for finding in sorted(findings, key=sort_key):
        claim = min(left, _estimate_change_ns(finding))
        if is_cause_of_change(finding, slower_ns) and claim >= MIN_CHANGE_RATIO * slower_ns:
            claimed_ns[finding.cause] = claim
            left -= claim
    return claimed_ns


def is_cause_of_change(finding: Finding, slower_ns: float) -> bool:
    """Return True if a finding above low confidence adds a tenth of the difference or more."""
    is_sure = finding.confidence is not Confidence.LOW
    return is_sure and _estimate_change_ns(finding) >= MIN_CHANGE_RATIO * slower_ns > 0


def find_unclaimed_change(
    delta_ns: Mapping[str, float], findings: Sequence[Finding], causes: Mapping[str, Cause]
) -> dict[str, int]:
    """Return the rest of each term that grew, after the claims of findings above low confidence."""
    remaining = {term: max(0.0, change) for term, change in delta_ns.items()}
    for finding in findings:
        if finding.confidence is not Confidence.LOW:
            cause = causes[finding.cause]
            terms = (*cause.terms, *cause.other_rank_terms)
            take_from_terms(remaining, terms, _estimate_change_ns(finding))
    return {term: round(rest) for term, rest in remaining.items() if rest >= 1}


def _estimate_change_ns(finding: Finding) -> float:
    return fmean(finding.change_ns) if finding.change_ns is not None else 0.0
