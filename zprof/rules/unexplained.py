"""What is lost in a step and no finding explains, on one rank and by group of collectives.

Terms of different ranks do not add up: while one rank waits another one is idle, and that is one loss.  So
each rank's own step is held against the findings, and the answer is that of the rank with most left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zprof.model.causes import Cause
from zprof.model.findings import Finding
from zprof.model.time import CollectiveTime, RankTime
from zprof.rules.rule import Rule

#: What is lost: compute is no loss, until a rule says how much of it is.
_LOST = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns", "idle_ns", "unexplained_ns")
_COMMUNICATION = frozenset({"exposed_wait_ns", "exposed_transfer_ns"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedGroup:
    """At least so much of the exposed time of a group's collectives is unexplained: the mean of its ranks."""

    kind: str
    group: str
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """By ledger term of ``rank``'s mean step; ``groups`` are the largest first."""

    rank: int | None = None
    terms: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[ExposedGroup, ...] = ()

    @property
    def total_ns(self) -> int:
        """All terms: one rank's, so that they add up."""
        return sum(self.terms.values())


def unexplained_loss(
    findings: Sequence[Finding],
    rules: Sequence[Rule],
    ranks: Sequence[RankTime],
    collectives: Sequence[CollectiveTime] = (),
) -> Unexplained:
    """Take what the findings can save from each rank's own step; return the rank that has most left.

    A saving is won once: it is taken from the terms that its rule claims, and what those lack from the terms
    in which other ranks lose the same time.
    """
    asked = {rule.cause: rule for rule in rules}
    left = {rank.rank: _left(rank, findings, asked) for rank in ranks}
    most = max(left, key=lambda rank: (sum(left[rank].values()), -rank), default=None)
    return Unexplained(
        rank=most,
        terms={} if most is None else left[most],
        groups=_groups(findings, asked, collectives),
    )


def _left(rank: RankTime, findings: Sequence[Finding], asked: Mapping[Cause, Rule]) -> dict[str, int]:
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


def _groups(
    findings: Sequence[Finding], asked: Mapping[Cause, Rule], collectives: Sequence[CollectiveTime]
) -> tuple[ExposedGroup, ...]:
    """A finding does not say which collectives it speaks of: each group loses all that findings claim."""
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
