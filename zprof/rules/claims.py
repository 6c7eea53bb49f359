"""Account for lost time: each nanosecond is claimed by one finding, and the rest is unexplained.

Two findings can see the same exposed transfer (no prefetch on a slow link), but its time can be saved only
once. Findings that others explain claim last. Before that, higher confidence claims first, then the larger
saving. A ledger term holds the mean per step of the largest rank. Terms of different ranks do not add up:
while one rank waits another is idle, so the unexplained loss is stated for the one rank that has most of it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from zprof.model.findings import START_COST_PER_STEP, Cause, Confidence, Finding, Severity
from zprof.model.time import CollectiveTime, RankTime, StepTime
from zprof.rules.rule import Rule

#: Terms that count as lost. Compute counts only as far as a rule claims it.
_LOST = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns", "idle_ns", "unexplained_ns")
_SURENESS = {Confidence.LOW: 0, Confidence.MEDIUM: 1, Confidence.HIGH: 2}


def spoils_times(finding: Finding) -> bool:
    """Return whether the finding says that the times of the run cannot be trusted."""
    return finding.cause is Cause.MEASUREMENT_ARTIFACT and finding.severity is Severity.HIGH


def distorts_times(finding: Finding) -> bool:
    """Return whether the finding says with high confidence that recording changed what it shows."""
    is_sure = finding.confidence is Confidence.HIGH and finding.severity is not Severity.LOW
    return finding.cause is Cause.MEASUREMENT_ARTIFACT and is_sure


def _recording_cost_ns(finding: Finding) -> float:
    """Return twice the recording's start-up cost per step, comparable to the sum of a range; else 0."""
    return 2 * sum(entry.value for entry in finding.evidence if entry.key == START_COST_PER_STEP)


def order_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: those that spoil or distort times first, then by time, then by bytes freed, notes last.

    Time is what a fix saves, or what the recording itself adds. Findings of low confidence follow all others
    that save time, or all others that free memory: their saving is a guess.
    """

    def key(finding: Finding) -> tuple[bool, bool, bool, bool, float, bool, bool, int, str]:
        low, bytes_freed = finding.confidence is Confidence.LOW, finding.saving_bytes
        time_ns = _recording_cost_ns(finding) or sum(finding.saving_ns)
        timed = time_ns > 0
        return (
            not spoils_times(finding),
            not distorts_times(finding),
            not timed,
            timed and low,
            -time_ns,
            bytes_freed is None,
            bytes_freed is not None and low,
            -bytes_freed[1] if bytes_freed else 0,
            finding.id,
        )

    return sorted(findings, key=key)


def split_savings(
    findings: Sequence[Finding],
    rules: Sequence[Rule],
    ranks: Sequence[RankTime],
    steps: Sequence[StepTime] = (),
    replayed: Collection[Cause] = (),
) -> tuple[Finding, ...]:
    """Return ``findings`` with no nanosecond of a ledger term claimed twice.

    A finding about time is dropped if the findings that explain it leave nothing of its terms: it is their
    signal. ``replayed``: causes priced by a replay of the step with that fix alone; their ranges stay.
    """
    claims = {rule.cause: rule.claims for rule in rules}
    causes = _explained_causes(findings, rules)
    left = _largest_terms({term for rule in rules for term in rule.claims}, ranks, steps)
    kept = []
    for finding in _sort_by_claim(order_findings(findings), causes):
        high = _take_from_terms(left, claims.get(finding.cause, ()), finding.saving_ns[1])
        nothing_left = finding.saving_ns[1] > 0 and high == 0
        if finding.cause in replayed:
            kept.append(finding)
        elif not (nothing_left and finding.cause in causes):
            kept.append(replace(finding, saving_ns=(min(finding.saving_ns[0], high), high)))
    return tuple(_move_behind_explaining(order_findings(kept), rules))


def unclaimed(
    findings: Sequence[Finding], rules: Sequence[Rule], ranks: Sequence[RankTime]
) -> Mapping[str, int]:
    """Return the loss of the largest rank that no finding claims, by ledger term, in ns."""
    asked = {rule.cause: rule for rule in rules}
    left = _largest_terms(_LOST, ranks, ())
    for finding in findings:
        rule = asked.get(finding.cause)
        if rule is not None:
            _take_from_terms(left, [term for term in rule.claims if term in left], finding.saving_ns[1])
            for term in rule.elsewhere:
                _take_from_terms(left, (term,), finding.saving_ns[1])
    return left


def _explained_causes(findings: Sequence[Finding], rules: Sequence[Rule]) -> frozenset[Cause]:
    """Return the causes whose signal another finding above low confidence produces."""
    sure = {finding.cause for finding in findings if finding.confidence is not Confidence.LOW}
    return frozenset(cause for rule in rules if rule.cause in sure for cause in rule.explains)


def _move_behind_explaining(findings: Sequence[Finding], rules: Sequence[Rule]) -> list[Finding]:
    """Move each finding behind those that explain it with higher confidence: they should be fixed first."""
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


def _sort_by_claim(findings: Sequence[Finding], explained: frozenset[Cause]) -> list[Finding]:
    """Sort explained findings last, then by falling confidence; the sort is stable."""
    return sorted(findings, key=lambda f: (f.cause in explained, -_SURENESS[f.confidence]))


def _largest_terms(
    terms: Iterable[str], ranks: Sequence[RankTime], steps: Sequence[StepTime]
) -> dict[str, int]:
    return {
        term: max(
            max((int(getattr(rank, term)) for rank in ranks), default=0),
            _largest_rank_mean(term, steps),
        )
        for term in terms
    }


def _largest_rank_mean(term: str, steps: Sequence[StepTime]) -> int:
    """Return the mean over steps of the largest rank's term; 0 if single steps do not have the term."""
    largest: dict[int, int] = defaultdict(int)
    for step in steps:
        largest[step.step] = max(largest[step.step], int(getattr(step, term, 0)))
    return int(fmean(largest.values())) if largest else 0


def _take_from_terms(left: dict[str, int], terms: Sequence[str], wanted: int) -> int:
    """Take up to ``wanted`` from the terms in their order, and return how much that was."""
    got = 0
    for term in terms:
        taken = min(wanted - got, left[term])
        left[term] -= taken
        got += taken
    return got


_COMMUNICATION = frozenset({"exposed_wait_ns", "exposed_transfer_ns"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedGroup:
    """A lower bound of the unexplained exposed time of a group's collectives, the mean of its ranks."""

    kind: str
    group: str
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """The unexplained loss of one rank, by ledger term of its mean step; ``groups``: largest first."""

    rank: int | None = None
    terms: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[ExposedGroup, ...] = ()

    @property
    def total_ns(self) -> int:
        """Sum of all terms; they add up because they belong to one rank."""
        return sum(self.terms.values())


def find_unexplained_loss(
    findings: Sequence[Finding],
    rules: Sequence[Rule],
    ranks: Sequence[RankTime],
    collectives: Sequence[CollectiveTime] = (),
) -> Unexplained:
    """Subtract the savings of the findings from each rank's mean step; return the rank with the largest rest.

    A saving counts once: it is taken from the terms that its rule claims, and the remainder from the terms in
    which other ranks lose the same time.
    """
    asked = {rule.cause: rule for rule in rules}
    left = {rank.rank: _subtract_savings(rank, findings, asked) for rank in ranks}
    most = max(left, key=lambda rank: (sum(left[rank].values()), -rank), default=None)
    return Unexplained(
        rank=most,
        terms={} if most is None else left[most],
        groups=_exposed_groups(findings, asked, collectives),
    )


def _subtract_savings(
    rank: RankTime, findings: Sequence[Finding], asked: Mapping[Cause, Rule]
) -> dict[str, int]:
    left = {term: int(getattr(rank, term)) for term in _LOST}
    for finding in findings:
        rule = asked.get(finding.cause)
        wanted = finding.saving_ns[1] if rule is not None else 0
        for term in (*rule.claims, *rule.elsewhere) if rule is not None else ():
            taken = min(wanted, left.get(term, 0))
            wanted -= taken
            if taken:
                left[term] -= taken
    return left


def _exposed_groups(
    findings: Sequence[Finding], asked: Mapping[Cause, Rule], collectives: Sequence[CollectiveTime]
) -> tuple[ExposedGroup, ...]:
    """Subtract all claimed communication from each group, because findings do not name their collectives."""
    claimed = sum(
        finding.saving_ns[1]
        for finding in findings
        if (rule := asked.get(finding.cause)) is not None and _COMMUNICATION.intersection(rule.claims)
    )
    sums: dict[tuple[str, str], int] = {}
    for entry in collectives:
        key = (entry.kind, entry.group)
        sums[key] = sums.get(key, 0) + entry.exposed_ns
    found = [
        ExposedGroup(kind=kind, group=group, ns=ns - claimed)
        for (kind, group), ns in sums.items()
        if ns > claimed
    ]
    return tuple(sorted(found, key=lambda entry: (-entry.ns, entry.kind, entry.group)))
