"""Derive times that outputs show in addition to the report's fields: means over ranks, shares, top entries.

All values have the units of the report's fields.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from zprof.model.quantities import Bound
from zprof.model.report import Report
from zprof.model.time import (
    LEDGER_NAMES,
    Blame,
    CriticalPath,
    RankTime,
    StepTime,
    Time,
    WaitShares,
    bound_exposed_time,
    bound_over_ranks,
    mean_over_ranks,
)


class LedgerRow(Struct, frozen=True, kw_only=True):
    """A term of the step, mean over the ranks.

    ``share``: relative to the step, or to the largest change.  ``bound`` and ``baseline_bound``: whether the
    means of this run and of the baseline are exact.
    """

    name: str
    this_ns: int
    baseline_ns: int | None
    change_ns: int | None
    share: float
    bound: Bound
    baseline_bound: Bound = Bound.EXACT


class Exposure(Struct, frozen=True, kw_only=True):
    """Collective time per step, mean over the ranks.  ``bound``: whether the exposed part is exact."""

    collective_ns: int
    exposed_ns: int
    hidden_ns: int
    ratio: float | None
    bound: Bound


class LateRank(Struct, frozen=True, kw_only=True):
    """A rank that others waited for: the causes by weight, and the share of all exposed waiting."""

    blame: Blame
    share: float
    reasons: tuple[tuple[str, float], ...]


class PathRank(Struct, frozen=True, kw_only=True):
    """The part of the critical path on one rank, and its activities, longest first."""

    rank: int
    ns: int
    share: float
    kinds: tuple[tuple[str, int], ...]


class Unclaimed(Struct, frozen=True, kw_only=True):
    """Lost time of a rank and term that no finding explains; ``share``: relative to the rank's step."""

    name: str
    lost_ns: int
    share: float


def step_ns(ranks: Sequence[RankTime]) -> int:
    """Return the mean wall time of a step over the ranks."""
    return mean_over_ranks(ranks, "wall_ns")


def step_change_ns(report: Report) -> int | None:
    """Return the change of the mean step time, the sum of all ledger changes; None without timed steps."""
    comparison = report.comparison
    if comparison is None or comparison.step_time is None:
        return None
    return sum(comparison.ledger_delta.values())


def ledger(report: Report) -> tuple[LedgerRow, ...]:
    """Return the terms of the step, with their change if there is a baseline."""
    means = {term: mean_over_ranks(report.time.per_rank, term) for term in LEDGER_NAMES}
    comparison = report.comparison
    if comparison is None or comparison.step_time is None:
        wall = max(1, step_ns(report.time.per_rank))
        return tuple(
            LedgerRow(
                name=name,
                this_ns=means[term],
                baseline_ns=None,
                change_ns=None,
                share=means[term] / wall,
                bound=bound_over_ranks(report.time.per_rank, term),
            )
            for term, name in LEDGER_NAMES.items()
        )
    delta = comparison.ledger_delta
    largest = max((abs(change) for change in delta.values()), default=0) or 1
    return tuple(
        LedgerRow(
            name=name,
            this_ns=means[term],
            baseline_ns=mean_over_ranks(comparison.baseline_time, term),
            change_ns=delta[term],
            share=abs(delta[term]) / largest,
            bound=bound_over_ranks(report.time.per_rank, term),
            baseline_bound=bound_over_ranks(comparison.baseline_time, term),
        )
        for term, name in LEDGER_NAMES.items()
    )


def exposure(ranks: Sequence[RankTime]) -> Exposure:
    """Compute the exposed and hidden parts of the collective time."""
    collective = mean_over_ranks(ranks, "collective_ns")
    hidden = mean_over_ranks(ranks, "overlapped_ns")
    exposed = collective - hidden
    return Exposure(
        collective_ns=collective,
        exposed_ns=exposed,
        hidden_ns=hidden,
        ratio=exposed / collective if collective else None,
        bound=bound_exposed_time(ranks),
    )


def order_by_waiting(ranks: Sequence[RankTime]) -> tuple[int, ...]:
    """Return the indices of the ranks, alternating between the longest and the shortest wait."""
    by_wait = sorted(range(len(ranks)), key=lambda index: (-ranks[index].exposed_wait_ns, ranks[index].rank))
    middle = (len(by_wait) + 1) // 2
    longest, shortest = by_wait[:middle], by_wait[: middle - 1 : -1] if middle else []
    alternating = [index for pair in zip(longest, shortest, strict=False) for index in pair]
    return (*alternating, *longest[len(shortest) :])


def select_extreme_ranks(ranks: Sequence[RankTime], max_ranks: int) -> tuple[RankTime, ...]:
    """Return at most ``max_ranks`` ranks in order: those with the longest and the shortest waits."""
    indices = set(order_by_waiting(ranks)[:max_ranks])
    return tuple(sorted((ranks[index] for index in indices), key=lambda rank: rank.rank))


def order_steps_by_length(time: Time) -> tuple[int, ...]:
    """Return the indices of the steps, longest first."""
    steps = time.steps
    return tuple(sorted(range(len(steps)), key=lambda index: _step_sort_key(steps[index])))


def _step_sort_key(step: StepTime) -> tuple[int, int, int]:
    return -step.wall_ns, step.step, step.rank


def list_late_ranks(shares: WaitShares, max_entries: int) -> tuple[LateRank, ...]:
    """Return the ranks that others waited for, largest wait caused first."""
    total = sum_exposed_wait_ns(shares)
    by_wait = sorted(shares.per_rank, key=lambda blame: (-blame.exposed_wait_ns, -blame.wait_ns, blame.rank))
    return tuple(_make_late_rank(blame, total) for blame in by_wait[:max_entries] if blame.wait_ns > 0)


def sum_exposed_wait_ns(shares: WaitShares) -> int:
    """Sum the exposed waiting of a step: attributed to ranks, tied and not evaluated."""
    return sum(blame.exposed_wait_ns for blame in shares.per_rank) + shares.tied_ns + shares.unjudged_ns


def _make_late_rank(blame: Blame, total_ns: int) -> LateRank:
    weight = sum(blame.reasons.values())
    reasons = sorted(blame.reasons.items(), key=lambda entry: (-entry[1], entry[0]))
    return LateRank(
        blame=blame,
        share=blame.exposed_wait_ns / total_ns if total_ns else 0.0,
        reasons=tuple((name, part / weight) for name, part in reasons if part > 0),
    )


def list_path_ranks(path: CriticalPath) -> tuple[PathRank, ...]:
    """Return the ranks on the critical path, largest part first."""
    parts: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for share in path.shares:
        parts[share.rank].append((share.what.value, share.ns))
    ranks = []
    for rank, kinds in parts.items():
        length = sum(part for _, part in kinds)
        share_of = length / max(1, path.wall_ns)
        ranks.append(PathRank(rank=rank, ns=length, share=share_of, kinds=_sort_sums(kinds)))
    return tuple(sorted(ranks, key=lambda entry: (-entry.ns, entry.rank)))


def list_path_kinds(path: CriticalPath) -> tuple[tuple[str, float], ...]:
    """Return the shares of the critical path by activity, over all ranks, largest first."""
    sums = _sort_sums((share.what.value, share.ns) for share in path.shares)
    return tuple((kind, length / max(1, path.wall_ns)) for kind, length in sums)


def _sort_sums(parts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    sums: dict[str, int] = defaultdict(int)
    for kind, length in parts:
        sums[kind] += length
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def list_unclaimed_terms(report: Report) -> tuple[Unclaimed, ...]:
    """Return the lost time that no finding explains, by ledger term, largest first."""
    names, whole = LEDGER_NAMES, max(1, find_unclaimed_step_ns(report))
    rows = [
        Unclaimed(name=names.get(term, term), lost_ns=lost, share=lost / whole)
        for term, lost in report.unclaimed.items()
        if lost > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.lost_ns))


def find_unclaimed_step_ns(report: Report) -> int:
    """Return the mean step of the rank whose unexplained loss is shown, or of the slowest rank."""
    ranks = report.time.per_rank
    named = (rank.wall_ns for rank in ranks if rank.rank == report.unclaimed_rank)
    return next(named, max((rank.wall_ns for rank in ranks), default=0))
