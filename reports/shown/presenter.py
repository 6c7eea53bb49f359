"""Numbers that faces show and that are no leaves of the report: sums, means over ranks, shares.

Computed here once, so that no renderer computes.  Everything is in the units of the leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.model.gaps import Gap
from zprof.model.memory import LawCheck, RankMemory
from zprof.model.report import Report, RunFacts
from zprof.model.tenants import SHOWN, Tenant
from zprof.model.time import RankTime

#: Terms of the step ledger, and what they are called.
LEDGER: tuple[tuple[str, str], ...] = (
    ("compute_ns", "compute"),
    ("exposed_transfer_ns", "exposed transfer"),
    ("exposed_wait_ns", "exposed wait"),
    ("exposed_memcpy_ns", "exposed copies"),
    ("idle_ns", "idle"),
    ("unexplained_ns", "unexplained"),
)
#: Ranks side by side at most: alone, and on each side of a comparison.
MAX_RANKS = 4
MAX_RANKS_COMPARED = 2
#: Ranks named in a sentence.
_NAMED = 8
#: Parameters, gradients, optimizer state.
_STATES = 3

#: How the analysis says that it knows no cause.
_NO_CAUSE = frozenset({"", "not explained"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """A term of the step, mean over the ranks.  ``share`` is of the step, or of the largest change."""

    name: str
    this_ns: int
    baseline_ns: int | None
    change_ns: int | None
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Collective time a step, mean over the ranks: what is exposed, what is hidden.

    ``at_most``: the exposed part of some rank is an upper bound.
    """

    collective_ns: int
    exposed_ns: int
    hidden_ns: int
    ratio: float | None
    at_most: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GapGroup:
    """The same gap on several ranks; no rank where it is of the whole run."""

    what: str
    reason: str
    remedy: str
    ranks: tuple[int, ...]

    @property
    def where(self) -> str:
        """`` (rank 3)``, `` (ranks 0, 1 and 9 more)``, with the space before it; empty for the whole run."""
        several = "s" if len(self.ranks) > 1 else ""
        return f" (rank{several} {named_ranks(self.ranks)})" if self.ranks else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCheck:
    """Measured model-state bytes of one rank against the stage's law.

    ``rest_bytes`` is what neither the law, nor padding, nor the step counters explain; ``off_bytes`` the same
    without a sign, state by state, so that too much of one and too little of another are not "to the byte".
    ``has_cause``: a cause is known of all of it.
    """

    rank: int
    law_bytes: int
    measured_bytes: int
    padding_bytes: int
    scalar_bytes: int
    rest_bytes: int
    off_bytes: int
    has_cause: bool


def ledger(report: Report) -> tuple[LedgerRow, ...]:
    """The terms of the step, with their change where there is a baseline."""
    means = {term: mean_over_ranks(report.time.per_rank, term) for term, _ in LEDGER}
    if step_change_ns(report) is None:
        wall = max(1, step_ns(report.time.per_rank))
        return tuple(
            LedgerRow(
                name=name,
                this_ns=means[term],
                baseline_ns=None,
                change_ns=None,
                share=means[term] / wall,
            )
            for term, name in LEDGER
        )
    return _changes(report, means)


def step_ns(ranks: Sequence[RankTime]) -> int:
    """Mean wall time of a step over the ranks."""
    return mean_over_ranks(ranks, "wall_ns")


def step_change_ns(report: Report) -> int | None:
    """Change of the mean step time: the sum of the ledger's changes; None where a side is not timed."""
    comparison = report.comparison
    return (
        None if comparison is None or comparison.step_time is None else sum(comparison.ledger_delta.values())
    )


def mean_over_ranks(ranks: Sequence[RankTime], term: str) -> int:
    """Mean of one term over the ranks, whole nanoseconds."""
    return round(sum(getattr(rank, term) for rank in ranks) / len(ranks)) if ranks else 0


def exposure(ranks: Sequence[RankTime]) -> Exposure:
    """How much of the collectives' time nothing hides."""
    collective = mean_over_ranks(ranks, "collective_ns")
    hidden = mean_over_ranks(ranks, "overlapped_ns")
    exposed = collective - hidden
    return Exposure(
        collective_ns=collective,
        exposed_ns=exposed,
        hidden_ns=hidden,
        ratio=exposed / collective if collective else None,
        at_most=any(rank.upper_bound for rank in ranks),
    )


def shown_ranks(ranks: Sequence[RankMemory], most: int) -> tuple[RankMemory, ...]:
    """At most ``most`` ranks, in order of rank: all, else those with the largest peaks."""
    largest = sorted(ranks, key=lambda rank: (-rank.peak_bytes, rank.rank))[:most]
    return tuple(sorted(largest, key=lambda rank: rank.rank))


def peak_bytes(ranks: Sequence[RankMemory]) -> int:
    """Peak of the rank that has the largest."""
    return max(rank.peak_bytes for rank in ranks)


def peak_change_ratio(before: Sequence[RankMemory], after: Sequence[RankMemory]) -> float:
    """Change of the largest peak, as a share of what it was."""
    return peak_bytes(after) / max(1, peak_bytes(before)) - 1


def missing_ranks(run: RunFacts) -> tuple[int, ...]:
    """Ranks of the run that could not be loaded."""
    return tuple(sorted(set(range(run.world_size)) - set(run.ranks_loaded)))


def state_checks(laws: Sequence[LawCheck]) -> tuple[StateCheck, ...]:
    """The three states of each rank as one sum, where each of them has a law."""
    by_rank: dict[int, list[LawCheck]] = {}
    for law in laws:
        by_rank.setdefault(law.rank, []).append(law)
    return tuple(_state_check(rank, found) for rank, found in by_rank.items() if len(found) == _STATES)


def shown_tenants(ranks: Sequence[RankMemory]) -> tuple[Tenant, ...]:
    """All six tenants, in the order in which they are shown; none where no rank was measured."""
    return SHOWN if ranks else ()


def grouped_gaps(gaps: Sequence[Gap]) -> tuple[GapGroup, ...]:
    """Gaps that differ in their rank only, as one, in the order of the first of each."""
    groups: dict[tuple[str, str, str], list[int | None]] = {}
    for gap in gaps:
        groups.setdefault((gap.what, gap.reason, gap.remedy), []).append(gap.rank)
    return tuple(
        GapGroup(
            what=what,
            reason=reason,
            remedy=remedy,
            ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
        )
        for (what, reason, remedy), ranks in groups.items()
    )


def named_ranks(ranks: Sequence[int], most: int = _NAMED) -> str:
    """``0, 1, 2 and 1021 more``: the first of them by number, and how many are not named."""
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"{', '.join(map(str, ranks[:most]))}{more}"


def _state_check(rank: int, laws: Sequence[LawCheck]) -> StateCheck:
    return StateCheck(
        rank=rank,
        law_bytes=sum(law.law_bytes for law in laws),
        measured_bytes=sum(law.measured_bytes for law in laws),
        padding_bytes=sum(law.padding_bytes for law in laws),
        scalar_bytes=sum(law.scalar_bytes for law in laws),
        rest_bytes=sum(law.unexplained_bytes for law in laws),
        off_bytes=sum(abs(law.unexplained_bytes) for law in laws),
        has_cause=all(law.cause not in _NO_CAUSE for law in laws if law.unexplained_bytes),
    )


def _changes(report: Report, means: dict[str, int]) -> tuple[LedgerRow, ...]:
    comparison = report.comparison
    assert comparison is not None
    largest = max((abs(change) for change in comparison.ledger_delta.values()), default=0) or 1
    return tuple(
        LedgerRow(
            name=name,
            this_ns=means[term],
            baseline_ns=mean_over_ranks(comparison.baseline_time, term),
            change_ns=comparison.ledger_delta[term],
            share=abs(comparison.ledger_delta[term]) / largest,
        )
        for term, name in LEDGER
    )
