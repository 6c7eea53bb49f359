"""Account for lost time: the part that each finding claims, and the unexplained rest.

Two findings can be about the same exposed transfer (no prefetch on a slow link), but its time can be saved
only once. Findings that others explain claim last. Among the rest, higher confidence claims first, then the
larger saving. A ledger term is the mean per step of the rank with the largest value. Terms of different ranks
do not add up (one rank is idle while another waits), so the unexplained loss is that of the rank with the
largest one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from zprof.causes.cause import Cause
from zprof.model.findings import LEVELS, Confidence, Finding, SavingNote, Severity
from zprof.model.time import CollectiveTime, RankTime, StepTime

#: Terms that count as lost. Compute counts only to the extent that a cause claims it.
_LOST = ("exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns", "idle_ns", "unexplained_ns")
#: Minimum number of steps after the first that shows what recurs.
_MIN_LATER_STEPS = 2
_Ns = TypeVar("_Ns", int, float)


def distorts_times(finding: Finding) -> bool:
    """Return True if the finding means, with high confidence, that recording changed the times."""
    is_high_confidence = finding.confidence is Confidence.HIGH and finding.severity is not Severity.LOW
    return finding.is_about_recording and is_high_confidence


def change_saving(
    finding: Finding,
    saving_ns: tuple[float, float],
    note: SavingNote,
    *,
    confidence: Confidence | None = None,
) -> Finding:
    """Return the finding with another range and the reason for it; an equal range needs no reason."""
    changed = (int(saving_ns[0]), int(saving_ns[1]))
    notes = finding.saving_notes if changed == finding.saving_ns else (*finding.saving_notes, note)
    return replace(
        finding, saving_ns=changed, saving_notes=notes, confidence=confidence or finding.confidence
    )


def order_findings(findings: Iterable[Finding], causes: Mapping[str, Cause]) -> list[Finding]:
    """Sort findings: invalid or distorted times first, then by time, then by bytes freed, notes last.

    Time is the saving of a fix, or the time that the recording itself adds. Findings of low confidence follow
    all others that save time, or all others that free memory: their saving is a guess. A failed allocation
    comes first among the findings that save no time, and the cause of a hang before everything.
    """

    def key(finding: Finding) -> tuple[bool, bool, bool, bool, bool, float, bool, bool, bool, int, str]:
        is_low_confidence, bytes_freed = finding.confidence is Confidence.LOW, finding.saving_bytes
        # Twice the recording's start-up cost per step, comparable to the sum of a range; 0 for other causes.
        time_ns = (
            2 * sum(entry.value for entry in finding.evidence if entry.key == causes[finding.cause].adds)
        ) or sum(finding.saving_ns)
        saves_time = time_ns > 0
        return (
            not finding.is_hang,
            not finding.invalidates_times,
            not distorts_times(finding),
            not saves_time,
            saves_time and is_low_confidence,
            -time_ns,
            not causes[finding.cause].is_failure,
            bytes_freed is None,
            bytes_freed is not None and is_low_confidence,
            -bytes_freed[1] if bytes_freed else 0,
            finding.id,
        )

    return sorted(findings, key=key)


def split_savings(
    findings: Sequence[Finding],
    causes: Mapping[str, Cause],
    ranks: Sequence[RankTime],
    steps: Sequence[StepTime] = (),
    played: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Return ``findings`` with no nanosecond of a ledger term claimed twice.

    A finding about time is dropped if the findings that explain it use up its terms: it is only their
    symptom. ``played``: causes whose savings are those of the step played with that fix alone; their ranges
    stay, but like all ranges are limited to the time from which they are taken.
    """
    findings = [_limit_saving(finding, causes[finding.cause], ranks, steps) for finding in findings]
    # Causes whose signs another finding above low confidence produces.
    sure = [causes[finding.cause] for finding in findings if finding.confidence is not Confidence.LOW]
    explained = {name for name, cause in causes.items() if any(other.explains(cause) for other in sure)}
    remaining = _find_largest_terms({term for cause in causes.values() for term in cause.terms}, ranks, steps)
    kept = []
    # Sort explained findings last, then by decreasing confidence; the sort is stable.
    for finding in sorted(
        order_findings(findings, causes),
        key=lambda f: (f.cause in explained, -LEVELS.index(f.confidence)),
    ):
        high = take_from_terms(remaining, causes[finding.cause].terms, finding.saving_ns[1])
        is_used_up = finding.saving_ns[1] > 0 and high == 0
        if finding.cause in played:
            kept.append(finding)
        elif not (is_used_up and finding.cause in explained):
            saving = (min(finding.saving_ns[0], high), high)
            kept.append(change_saving(finding, saving, SavingNote.CLAIMED_BY_OTHERS))
    return tuple(_move_after_explaining(order_findings(kept, causes), causes))


def _limit_saving(
    finding: Finding, cause: Cause, ranks: Sequence[RankTime], steps: Sequence[StepTime]
) -> Finding:
    """Limit the saving to the step, to the ledger terms that it claims, and to the stated part."""
    limits = [entry.value for entry in finding.evidence if entry.key == cause.taken_from]
    limits += [sum(_find_largest_terms(cause.terms, ranks, steps).values())]
    limits += [max((rank.wall_ns for rank in ranks), default=0)]
    low, high = finding.saving_ns
    limit = int(min(limits))
    return change_saving(finding, (min(low, limit), min(high, limit)), SavingNote.LIMITED_TO_LOSS)


def _move_after_explaining(findings: Sequence[Finding], causes: Mapping[str, Cause]) -> list[Finding]:
    """Move each finding after those that explain it with higher confidence: they should be fixed first."""
    ordered = list(findings)
    for finding in findings:
        explaining = [
            index
            for index, other in enumerate(ordered)
            if causes[other.cause].explains(causes[finding.cause])
            and LEVELS.index(other.confidence) > LEVELS.index(finding.confidence)
        ]
        own_index = ordered.index(finding)
        if explaining and max(explaining) > own_index:
            ordered.insert(max(explaining), ordered.pop(own_index))
    return ordered


def _find_largest_terms(
    terms: Iterable[str], ranks: Sequence[RankTime], steps: Sequence[StepTime]
) -> dict[str, int]:
    return {
        term: max(
            max((int(getattr(rank, term)) for rank in ranks), default=0),
            _mean_of_largest_rank(term, steps),
        )
        for term in terms
    }


def _mean_of_largest_rank(term: str, steps: Sequence[StepTime]) -> int:
    """Return the mean over steps of the largest value of any rank; 0 if the steps lack the term."""
    largest: dict[int, int] = defaultdict(int)
    for step in steps:
        largest[step.step] = max(largest[step.step], int(getattr(step, term, 0)))
    return int(fmean(largest.values())) if largest else 0


def take_from_terms(remaining: dict[str, _Ns], terms: Sequence[str], amount_ns: _Ns) -> _Ns:
    """Take up to ``amount_ns`` from the known terms in their order, and return the amount taken."""
    left = amount_ns
    for term in terms:
        if term in remaining:
            taken = min(left, remaining[term])
            remaining[term] -= taken
            left -= taken
    return amount_ns - left


_COMMUNICATION = frozenset({"exposed_wait_ns", "exposed_transfer_ns"})
#: Causes whose savings are a part of the time in which the schedule fills and drains the pipeline.
_OF_SCHEDULE = frozenset({"pipeline_bubble", "micro_batches_too_few"})


class ExposedGroup(Struct, frozen=True, kw_only=True):
    """A lower bound on the unexplained exposed time of a group's collectives, as a mean over its ranks.

    ``bus_bytes_per_s``: bus bandwidth of its largest messages, None if their size or time is unknown.
    """

    kind: str
    group: str
    ns: int
    bus_bytes_per_s: float | None = None


class Unexplained(Struct, frozen=True, kw_only=True):
    """The unexplained loss of one rank, by ledger term of its mean step; ``groups``: largest first.

    ``start_up_ns``: the part of each term that occurs only in the first step of the window.
    """

    rank: int | None = None
    terms: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[ExposedGroup, ...] = ()
    start_up_ns: Mapping[str, int] = field(default_factory=dict)

    @property
    def recurring(self) -> dict[str, int]:
        """The loss of each step: the terms without start-up."""
        return {term: ns - self.start_up_ns.get(term, 0) for term, ns in self.terms.items()}

    @property
    def total_ns(self) -> int:
        """Sum of all terms; they add up because they belong to one rank."""
        return sum(self.terms.values())


def find_unexplained_loss(
    findings: Sequence[Finding],
    causes: Mapping[str, Cause],
    ranks: Sequence[RankTime],
    collectives: Sequence[CollectiveTime] = (),
    steps: Sequence[StepTime] = (),
    schedule_ratio: float = 0.0,
) -> Unexplained:
    """Subtract the findings' savings from each rank's mean step; return the rank with the largest remainder.

    A saving counts once: it is taken from the terms that its cause claims, and the remainder from the terms
    of other ranks that are the same loss. If a finding claims more of a rank than its saving, the larger
    amount is subtracted. ``schedule_ratio``: share of a step in which a pipeline of equal stages fills and
    drains; that is no unexplained loss, it is the schedule.
    """
    remaining = {
        rank.rank: _subtract_savings(rank, findings, causes, schedule_ratio * rank.wall_ns) for rank in ranks
    }
    worst_rank = max(remaining, key=lambda rank: (sum(remaining[rank].values()), -rank), default=None)
    terms = {} if worst_rank is None else remaining[worst_rank]
    return Unexplained(
        rank=worst_rank,
        terms=terms,
        groups=_find_exposed_groups(findings, causes, collectives),
        start_up_ns=_find_start_up_ns(terms, [step for step in steps if step.rank == worst_rank]),
    )


def _find_start_up_ns(terms: Mapping[str, int], steps: Sequence[StepTime]) -> dict[str, int]:
    """Return how much smaller each term would be without the first step; {} with fewer than three steps."""
    first, later = steps[:1], steps[1:]
    if len(later) < _MIN_LATER_STEPS:
        return {}
    return {
        term: round(min(max(0.0, (_mean_term(first, term) - _mean_term(later, term)) / len(steps)), ns))
        for term, ns in terms.items()
    }


def _mean_term(steps: Sequence[StepTime], term: str) -> float:
    return fmean(int(getattr(step, term)) for step in steps)


def _subtract_savings(
    rank: RankTime, findings: Sequence[Finding], causes: Mapping[str, Cause], schedule_ns: float
) -> dict[str, int]:
    remaining = {term: int(getattr(rank, term)) for term in _LOST}
    for finding in findings:
        cause = causes[finding.cause]
        # the finding's claim on the rank's step: its saving, or the amount that it states for that rank
        stated = [entry.value for entry in finding.evidence if entry.rank == rank.rank and entry.unit == "ns"]
        claim = int(max([finding.saving_ns[1], *(stated if finding.saving_ns[1] > 0 else [])]))
        take_from_terms(remaining, (*cause.terms, *cause.other_rank_terms), claim)
        if finding.cause in _OF_SCHEDULE:
            schedule_ns -= finding.saving_ns[1]
    take_from_terms(remaining, ("exposed_wait_ns", "idle_ns"), max(0, round(schedule_ns)))
    return remaining


def _find_exposed_groups(
    findings: Sequence[Finding], causes: Mapping[str, Cause], collectives: Sequence[CollectiveTime]
) -> tuple[ExposedGroup, ...]:
    """Subtract all claimed communication from each group, because findings do not name their collectives."""
    claimed = sum(
        finding.saving_ns[1]
        for finding in findings
        if _COMMUNICATION.intersection(causes[finding.cause].terms)
    )
    entries: dict[tuple[str, str], list[CollectiveTime]] = defaultdict(list)
    for entry in collectives:
        entries[entry.kind, entry.group].append(entry)
    groups = [
        ExposedGroup(
            kind=kind,
            group=group,
            ns=ns - claimed,
            bus_bytes_per_s=max(same, key=lambda entry: entry.bytes).busbw_bytes_per_s,
        )
        for (kind, group), same in entries.items()
        if (ns := sum(entry.exposed_ns for entry in same)) > claimed
    ]
    return tuple(sorted(groups, key=lambda entry: (-entry.ns, entry.kind, entry.group)))
