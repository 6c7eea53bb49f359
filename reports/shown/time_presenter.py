"""Numbers and choices of the time pages that are no leaves of the report."""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.model.collectives import CollectiveKind
from zprof.model.time import (
    Blame,
    LinkFit,
    MessageSizes,
    RankTime,
    StepTime,
    Time,
    UnitTime,
    WaitShares,
    WindowPolicy,
)

_EACH_SIDE = 2
#: A share of the exposed time that changes no reading of the split.
_TRIFLE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank:
    """A rank that others waited for: its causes by weight, and its share of all exposed waiting."""

    blame: Blame
    share: float
    reasons: tuple[tuple[str, float], ...]


def telling_ranks(ranks: Sequence[RankTime], most: int) -> tuple[RankTime, ...]:
    """All ranks, or of many those that wait most and those that wait least, in order of rank.

    Who waits least is who the others wait for.
    """
    if len(ranks) <= most:
        return tuple(ranks)
    by_wait = sorted(ranks, key=lambda rank: (-rank.exposed_wait_ns, rank.rank))
    half = most // _EACH_SIDE
    return tuple(sorted((*by_wait[:half], *by_wait[-(most - half) :]), key=lambda rank: rank.rank))


def per(time: Time) -> str:
    """What the figures are of: one step, or all of a recording taken as one stretch."""
    whole = time.window is not None and time.window.policy is WindowPolicy.TRACE
    return "in all" if whole else "a step"


def unsplit_ns(ranks: Sequence[RankTime]) -> int:
    """Exposed time of a step, mean over the ranks, whose split is not known; 0 where it is a trifle."""
    if not ranks:
        return 0
    unsplit = sum(rank.unsplit_ns for rank in ranks)
    exposed = sum(rank.exposed_wait_ns + rank.exposed_transfer_ns for rank in ranks)
    return unsplit // len(ranks) if unsplit > _TRIFLE * exposed else 0


def is_unknown_size(kind: str, size_bytes: int) -> bool:
    """Whether 0 bytes mean that the trace does not say them: only a barrier moves none."""
    return size_bytes == 0 and kind != CollectiveKind.BARRIER


def sized_messages(time: Time) -> tuple[MessageSizes, ...]:
    """Bars of the histogram, without kinds and groups that have no known size, and barriers."""
    known = {(entry.kind, entry.group) for entry in time.collectives if entry.bytes > 0}
    unknown = {(entry.kind, entry.group) for entry in time.collectives} - known
    return tuple(bar for bar in time.messages if (bar.kind, bar.group) not in unknown)


def bounded(time: Time) -> frozenset[tuple[str, str]]:
    """Kinds and groups of which waits are at least, and transfers at most, what is shown."""
    return frozenset((entry.kind, entry.group) for entry in time.collectives if entry.bound)


def late_ranks(shares: WaitShares, most: int) -> tuple[LateRank, ...]:
    """The ranks that cause most waiting, hidden or not, first."""
    total = exposed_wait_ns(shares)
    ordered = sorted(shares.per_rank, key=lambda blame: (-blame.exposed_wait_ns, -blame.wait_ns, blame.rank))
    return tuple(_late(blame, total) for blame in ordered[:most] if blame.wait_ns > 0)


def exposed_wait_ns(shares: WaitShares) -> int:
    """All exposed waiting of a step: blamed on ranks, tied and not judged."""
    return sum(blame.exposed_wait_ns for blame in shares.per_rank) + shares.tied_ns + shares.unjudged_ns


def worst_steps(time: Time, most: int) -> tuple[StepTime, ...]:
    """Steps in order, or of many the longest ones; then in order of step and rank."""
    if len(time.steps) <= most:
        chosen = list(time.steps)
    else:
        chosen = sorted(time.steps, key=lambda step: (-step.wall_ns, step.step, step.rank))[:most]
    return tuple(sorted(chosen, key=lambda step: (step.step, step.rank)))


def most_exposed_units(time: Time, most: int) -> tuple[UnitTime, ...]:
    """The units with most exposed time first."""
    return tuple(sorted(time.units, key=lambda unit: (-_exposed(unit), unit.unit, unit.kind))[:most])


def telling_messages(bars: Sequence[MessageSizes], most: int) -> tuple[MessageSizes, ...]:
    """Bars of the histogram with the most exposed time, in order of kind, group and size."""
    ordered = sorted(bars, key=lambda bar: (-bar.exposed_ns, -bar.count, bar.kind, bar.group))[:most]
    return tuple(sorted(ordered, key=lambda bar: (bar.kind, bar.group, bar.at_least_bytes)))


def telling_fits(time: Time, most: int) -> tuple[LinkFit, ...]:
    """The fits that rest on most messages first."""
    return tuple(sorted(time.fits, key=lambda fit: (-fit.messages, fit.kind, fit.group))[:most])


def _exposed(unit: UnitTime) -> int:
    return unit.exposed_wait_ns + unit.exposed_transfer_ns


def _late(blame: Blame, total_ns: int) -> LateRank:
    own = sum(blame.reasons.values())
    reasons = sorted(blame.reasons.items(), key=lambda entry: (-entry[1], entry[0]))
    return LateRank(
        blame=blame,
        share=blame.exposed_wait_ns / total_ns if total_ns else 0.0,
        reasons=tuple((name, weight / own) for name, weight in reasons if weight > 0),
    )
