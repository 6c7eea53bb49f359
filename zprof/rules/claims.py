"""Savings share no time: each finding takes what it claims from the ledger, what is surest first.

Two findings can see the same exposed transfer (no prefetch on a slow link); its time can be won once.  One
cause can make the signal of another (a single unit leaves nothing to prefetch): what explains another
finding, and is sure, takes its time before that.  Among the rest those of high confidence claim before those
of medium and low confidence, and among equals the largest saving claims first.
A ledger term holds the largest rank's mean a step, because a wait lies on the ranks that do not cause it;
where single steps are known, the mean of each step's largest rank, for another rank may wait in each.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.time import RankTime, StepTime
from zprof.rules.measurement.measurement_artifact import LOST_A_STEP
from zprof.rules.rule import Rule

#: What is lost: compute is no loss, until a rule says how much of it is.
_LOST = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns", "idle_ns", "unexplained_ns")
_SURENESS = {Confidence.LOW: 0, Confidence.MEDIUM: 1, Confidence.HIGH: 2}


def spoils(finding: Finding) -> bool:
    """Whether the finding says that the times of the run cannot be trusted."""
    return finding.cause is Cause.MEASUREMENT_ARTIFACT and finding.severity is Severity.HIGH


def distorts(finding: Finding) -> bool:
    """Whether the finding says for certain that the recording is part of what it shows."""
    is_sure = finding.confidence is Confidence.HIGH and finding.severity is not Severity.LOW
    return finding.cause is Cause.MEASUREMENT_ARTIFACT and is_sure


def _added_ns(finding: Finding) -> float:
    """Return twice what the start of the recording adds to a step, as the sum of a range; 0 for causes."""
    return 2 * sum(entry.value for entry in finding.evidence if entry.what == LOST_A_STEP)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """What spoils or distorts the measurement first, then by time, then by memory freed; notes last.

    Time is what a fix saves, or what the recording itself adds.

    Those of low confidence come after all others that save time, and after all others that free memory: what
    they win is a guess.
    """

    def key(finding: Finding) -> tuple[bool, bool, bool, bool, float, bool, bool, int, str]:
        low, bytes_freed = finding.confidence is Confidence.LOW, finding.saving_bytes
        time_ns = _added_ns(finding) or sum(finding.saving_ns)
        timed = time_ns > 0
        return (
            not spoils(finding),
            not distorts(finding),
            not timed,
            timed and low,
            -time_ns,
            bytes_freed is None,
            bytes_freed is not None and low,
            -bytes_freed[1] if bytes_freed else 0,
            finding.id,
        )

    return sorted(findings, key=key)


def disjoint(
    findings: Sequence[Finding],
    rules: Sequence[Rule],
    ranks: Sequence[RankTime],
    steps: Sequence[StepTime] = (),
    replayed: Collection[Cause] = (),
) -> tuple[Finding, ...]:
    """Return ``findings`` with no nanosecond of a ledger term claimed twice.

    A finding about time of which others, that explain it, leave nothing is dropped: it is their signal.
    ``replayed``: the ranges of these are what a replay of the step wins by that fix alone, and stay.
    """
    claims = {rule.cause: rule.claims for rule in rules}
    causes = _explained(findings, rules)
    left = _terms({term for rule in rules for term in rule.claims}, ranks, steps)
    kept = []
    for finding in _in_order_of_claims(ordered(findings), causes):
        high = _take(left, claims.get(finding.cause, ()), finding.saving_ns[1])
        nothing_left = finding.saving_ns[1] > 0 and high == 0
        if finding.cause in replayed:
            kept.append(finding)
        elif not (nothing_left and finding.cause in causes):
            kept.append(replace(finding, saving_ns=(min(finding.saving_ns[0], high), high)))
    return tuple(_behind_what_explains(ordered(kept), rules))


def unclaimed(
    findings: Sequence[Finding], rules: Sequence[Rule], ranks: Sequence[RankTime]
) -> Mapping[str, int]:
    """What is lost on the largest rank and no finding claims, by ledger term."""
    asked = {rule.cause: rule for rule in rules}
    left = _terms(_LOST, ranks, ())
    for finding in findings:
        rule = asked.get(finding.cause)
        if rule is not None:
            _take(left, [term for term in rule.claims if term in left], finding.saving_ns[1])
            for term in rule.elsewhere:
                _take(left, (term,), finding.saving_ns[1])
    return left


def _explained(findings: Sequence[Finding], rules: Sequence[Rule]) -> frozenset[Cause]:
    """Causes whose signal a sure finding makes as well."""
    sure = {finding.cause for finding in findings if finding.confidence is not Confidence.LOW}
    return frozenset(cause for rule in rules if rule.cause in sure for cause in rule.explains)


def _behind_what_explains(findings: Sequence[Finding], rules: Sequence[Rule]) -> list[Finding]:
    """Move each finding behind those that explain it and are surer than it: they are to be fixed first."""
    explains = {rule.cause: rule.explains for rule in rules}
    placed = list(findings)
    for finding in findings:
        surer = [
            place
            for place, other in enumerate(placed)
            if finding.cause in explains.get(other.cause, ())
            and _SURENESS[other.confidence] > _SURENESS[finding.confidence]
        ]
        own = placed.index(finding)
        if surer and max(surer) > own:
            placed.insert(max(surer), placed.pop(own))
    return placed


def _in_order_of_claims(findings: Sequence[Finding], explained: frozenset[Cause]) -> list[Finding]:
    """Sort what explains others first, then by confidence; what is equal in both keeps its order."""
    return sorted(findings, key=lambda f: (f.cause in explained, -_SURENESS[f.confidence]))


def _terms(terms: Iterable[str], ranks: Sequence[RankTime], steps: Sequence[StepTime]) -> dict[str, int]:
    return {
        term: max(
            max((int(getattr(rank, term)) for rank in ranks), default=0),
            _of_largest(term, steps),
        )
        for term in terms
    }


def _of_largest(term: str, steps: Sequence[StepTime]) -> int:
    """The mean over steps of the largest rank's; 0 for a term that is not known of single steps."""
    largest: dict[int, int] = defaultdict(int)
    for step in steps:
        largest[step.step] = max(largest[step.step], int(getattr(step, term, 0)))
    return int(fmean(largest.values())) if largest else 0


def _take(left: dict[str, int], terms: Sequence[str], wanted: int) -> int:
    """Take as much as there is of the terms, in their order; how much that was."""
    got = 0
    for term in terms:
        taken = min(wanted - got, left[term])
        left[term] -= taken
        got += taken
    return got
