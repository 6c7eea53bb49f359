"""Times that outputs show and that are no leaves of the report: means over ranks, shares, what matters most.

All values are in the units of the leaves.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zprof.model.collectives import CollectiveKind
from zprof.model.report import Report
from zprof.model.time import (
    LEDGER_NAMES,
    Blame,
    CriticalPath,
    LinkFit,
    MessageSizes,
    RankTime,
    StepTime,
    Time,
    UnitTime,
    WaitShares,
    WindowPolicy,
)

#: A share of the exposed time that changes no reading of its split into wait and transfer.
_MIN_UNSPLIT_RATIO = 0.01


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
    """Collective time per step, mean over the ranks.  ``at_most``: the exposed part is an upper bound."""

    collective_ns: int
    exposed_ns: int
    hidden_ns: int
    ratio: float | None
    at_most: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank:
    """A rank that others waited for: its causes by weight, and its share of all exposed waiting."""

    blame: Blame
    share: float
    reasons: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRank:
    """A rank's part of the critical path, and what it consists of, the longest first."""

    rank: int
    ns: int
    share: float
    kinds: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclaimed:
    """A term of the time that one rank loses and no finding explains; its share of that rank's step."""

    name: str
    left_ns: int
    share: float


def compute_mean_over_ranks(ranks: Sequence[RankTime], term: str) -> int:
    """Return the mean of one term over the ranks, in whole nanoseconds."""
    return round(sum(getattr(rank, term) for rank in ranks) / len(ranks)) if ranks else 0


def step_ns(ranks: Sequence[RankTime]) -> int:
    """Return the mean wall time of a step over the ranks."""
    return compute_mean_over_ranks(ranks, "wall_ns")


def step_change_ns(report: Report) -> int | None:
    """Return the change of the mean step time, the sum of the ledger's changes; None without a step."""
    comparison = report.comparison
    if comparison is None or comparison.step_time is None:
        return None
    return sum(comparison.ledger_delta.values())


def ledger(report: Report) -> tuple[LedgerRow, ...]:
    """Return the terms of the step, with their change if there is a baseline."""
    means = {term: compute_mean_over_ranks(report.time.per_rank, term) for term in LEDGER_NAMES}
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
            )
            for term, name in LEDGER_NAMES.items()
        )
    delta = comparison.ledger_delta
    largest = max((abs(change) for change in delta.values()), default=0) or 1
    return tuple(
        LedgerRow(
            name=name,
            this_ns=means[term],
            baseline_ns=compute_mean_over_ranks(comparison.baseline_time, term),
            change_ns=delta[term],
            share=abs(delta[term]) / largest,
        )
        for term, name in LEDGER_NAMES.items()
    )


def exposure(ranks: Sequence[RankTime]) -> Exposure:
    """Return how much of the collectives' time no compute hides."""
    collective = compute_mean_over_ranks(ranks, "collective_ns")
    hidden = compute_mean_over_ranks(ranks, "overlapped_ns")
    exposed = collective - hidden
    return Exposure(
        collective_ns=collective,
        exposed_ns=exposed,
        hidden_ns=hidden,
        ratio=exposed / collective if collective else None,
        at_most=any(rank.upper_bound for rank in ranks),
    )


def is_whole_trace(time: Time) -> bool:
    """Return whether the figures are of a whole recording and not of a step."""
    return time.window is not None and time.window.policy is WindowPolicy.TRACE


def per(time: Time) -> str:
    """Return what the figures are of, as the TUI writes it."""
    return "in all" if is_whole_trace(time) else "per step"


def unsplit_ns(ranks: Sequence[RankTime]) -> int:
    """Return the exposed time per step that cannot be split into wait and transfer; 0 if negligible."""
    if not ranks:
        return 0
    unsplit = sum(rank.unsplit_ns for rank in ranks)
    exposed = sum(rank.exposed_wait_ns + rank.exposed_transfer_ns for rank in ranks)
    return unsplit // len(ranks) if unsplit > _MIN_UNSPLIT_RATIO * exposed else 0


def is_unknown_size(kind: str, size_bytes: int) -> bool:
    """Return whether 0 bytes mean that the trace has no size: only a barrier moves none."""
    return size_bytes == 0 and kind != CollectiveKind.BARRIER


def sized_messages(time: Time) -> tuple[MessageSizes, ...]:
    """Return the message sizes of the kinds and groups that have a known size, and of barriers."""
    known = {(entry.kind, entry.group) for entry in time.collectives if entry.bytes > 0}
    unknown = {(entry.kind, entry.group) for entry in time.collectives} - known
    return tuple(bar for bar in time.messages if (bar.kind, bar.group) not in unknown)


def bounded(time: Time) -> frozenset[tuple[str, str]]:
    """Return the kinds and groups whose waits are lower and whose transfers are upper bounds."""
    return frozenset((entry.kind, entry.group) for entry in time.collectives if entry.bound)


def order_by_waiting(ranks: Sequence[RankTime]) -> tuple[int, ...]:
    """Return the places of the ranks, in turn the one that waits most and the one that waits least."""
    ordered = sorted(range(len(ranks)), key=lambda at: (-ranks[at].exposed_wait_ns, ranks[at].rank))
    middle = (len(ordered) + 1) // 2
    most, least = ordered[:middle], ordered[: middle - 1 : -1] if middle else []
    turns = [at for pair in zip(most, least, strict=False) for at in pair]
    return (*turns, *most[len(least) :])


def telling_ranks(ranks: Sequence[RankTime], most: int) -> tuple[RankTime, ...]:
    """Return at most ``most`` ranks in order: those that wait most, and those that others wait for."""
    kept = set(order_by_waiting(ranks)[:most])
    return tuple(sorted((ranks[at] for at in kept), key=lambda rank: rank.rank))


def order_steps_by_length(time: Time) -> tuple[int, ...]:
    """Return the places of the steps, the longest first."""
    steps = time.steps
    return tuple(sorted(range(len(steps)), key=lambda at: _by_length(steps[at])))


def _by_length(step: StepTime) -> tuple[int, int, int]:
    return -step.wall_ns, step.step, step.rank


def most_exposed_units(time: Time, most: int) -> tuple[UnitTime, ...]:
    """Return the units, the one with most exposed time first."""
    return tuple(sorted(time.units, key=_by_exposed)[:most])


def _by_exposed(unit: UnitTime) -> tuple[int, str, str]:
    return -(unit.exposed_wait_ns + unit.exposed_transfer_ns), unit.unit, unit.kind


def telling_messages(bars: Sequence[MessageSizes], most: int) -> tuple[MessageSizes, ...]:
    """Return the message sizes with the most exposed time, in order of kind, group and size."""
    ordered = sorted(bars, key=lambda bar: (-bar.exposed_ns, -bar.count, bar.kind, bar.group))[:most]
    return tuple(sorted(ordered, key=lambda bar: (bar.kind, bar.group, bar.at_least_bytes)))


def telling_fits(time: Time, most: int) -> tuple[LinkFit, ...]:
    """Return the fits of the link, those that rest on most messages first."""
    return tuple(sorted(time.fits, key=lambda fit: (-fit.messages, fit.kind, fit.group))[:most])


def list_late_ranks(shares: WaitShares, most: int) -> tuple[LateRank, ...]:
    """Return the ranks that others waited for, the one that caused most waiting first."""
    total = sum_exposed_wait_ns(shares)
    ordered = sorted(shares.per_rank, key=lambda blame: (-blame.exposed_wait_ns, -blame.wait_ns, blame.rank))
    return tuple(_late(blame, total) for blame in ordered[:most] if blame.wait_ns > 0)


def sum_exposed_wait_ns(shares: WaitShares) -> int:
    """Return all exposed waiting of a step: blamed on ranks, tied and not judged."""
    return sum(blame.exposed_wait_ns for blame in shares.per_rank) + shares.tied_ns + shares.unjudged_ns


def _late(blame: Blame, total_ns: int) -> LateRank:
    weight = sum(blame.reasons.values())
    reasons = sorted(blame.reasons.items(), key=lambda entry: (-entry[1], entry[0]))
    return LateRank(
        blame=blame,
        share=blame.exposed_wait_ns / total_ns if total_ns else 0.0,
        reasons=tuple((name, part / weight) for name, part in reasons if part > 0),
    )


def list_path_ranks(path: CriticalPath) -> tuple[PathRank, ...]:
    """Return the ranks on the critical path, the one with most of it first."""
    parts: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for share in path.shares:
        parts[share.rank].append((share.what.value, share.ns))
    ranks = []
    for rank, kinds in parts.items():
        length = sum(part for _, part in kinds)
        share_of = length / max(1, path.wall_ns)
        ranks.append(PathRank(rank=rank, ns=length, share=share_of, kinds=_largest_first(kinds)))
    return tuple(sorted(ranks, key=lambda entry: (-entry.ns, entry.rank)))


def list_path_kinds(path: CriticalPath) -> tuple[tuple[str, float], ...]:
    """Return the shares of the critical path by what it consists of, over all ranks, the largest first."""
    sums = _largest_first((share.what.value, share.ns) for share in path.shares)
    return tuple((kind, length / max(1, path.wall_ns)) for kind, length in sums)


def _largest_first(parts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    sums: dict[str, int] = defaultdict(int)
    for kind, length in parts:
        sums[kind] += length
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def list_unclaimed_terms(report: Report) -> tuple[Unclaimed, ...]:
    """Return the lost time that no finding claims, by ledger term, the largest first."""
    names, whole = LEDGER_NAMES, max(1, find_unclaimed_step_ns(report))
    rows = [
        Unclaimed(name=names.get(term, term), left_ns=left, share=left / whole)
        for term, left in report.unclaimed.items()
        if left > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.left_ns))


def find_unclaimed_step_ns(report: Report) -> int:
    """Return the mean step of the rank whose unexplained loss is shown; of the slowest if none is named."""
    ranks = report.time.per_rank
    named = (rank.wall_ns for rank in ranks if rank.rank == report.unclaimed_rank)
    return next(named, max((rank.wall_ns for rank in ranks), default=0))
