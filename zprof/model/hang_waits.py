"""Group who waits for whom in a stuck job, the causes first, and tell what each rank of it does."""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from zprof.model.formatting import name_ranks
from zprof.model.hang import Hang, HangClass
from zprof.model.hang_words import MAX_RANKS


class WaitingRanks(Struct, frozen=True, kw_only=True):
    """Ranks that wait for the same ranks.

    ``operations``: numbers in ``Hang.operations`` of all that they wait in, the cause first. ``causes``: the
    culprits among those that they wait for. ``for_ranks`` is empty if all members are in the operation.
    """

    ranks: tuple[int, ...]
    for_ranks: tuple[int, ...]
    operations: tuple[int, ...]
    causes: tuple[int, ...] = ()


def group_waits(hang: Hang) -> tuple[WaitingRanks, ...]:
    """Return one entry per set of waiting ranks and ranks waited for: the causes first, then by size."""
    accused = {culprit.rank for culprit in hang.culprits}
    numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for wait in hang.waits:
        numbers.setdefault((wait.ranks, wait.for_ranks), []).append(wait.operation)
    groups = [
        WaitingRanks(
            ranks=ranks,
            for_ranks=for_ranks,
            operations=tuple(operations),
            causes=tuple(rank for rank in for_ranks if rank in accused),
        )
        for (ranks, for_ranks), operations in numbers.items()
    ]
    return tuple(sorted(groups, key=lambda group: (not group.causes, -len(group.ranks))))


def are_all_in(hang: Hang, wait: WaitingRanks) -> bool:
    """Return True if all members of an operation that nobody is late for are known to be in it."""
    operation = hang.operations[wait.operations[0]]
    return not wait.for_ranks and operation.size is not None and len(operation.entered) == operation.size


def name_cause(hang: Hang) -> str:
    """Return what marks the ranks that everything waits for: nobody is accused for a dump that is missing."""
    if hang.kind is not HangClass.RANK_MISSING or any(each.exit_code is not None for each in hang.culprits):
        return "cause"
    return "no line" if hang.logs else "no dump"


def mark_cause(hang: Hang, wait: WaitingRanks) -> str:
    """Return "cause", or "cause: 8" if others are waited for too; empty if no culprit is among them."""
    if not wait.causes or wait.causes == wait.for_ranks:
        return name_cause(hang) if wait.causes else ""
    numbers = name_ranks(wait.causes, MAX_RANKS).removeprefix("ranks ").removeprefix("rank ")
    return f"{name_cause(hang)}: {numbers}"


class RankState(StrEnum):
    """What a rank of a stuck job does."""

    CAUSE = "cause"
    WAITS = "waits"
    #: It has not entered an operation in which others wait, has nothing pending, and is not the cause.
    LATE = "late"
    NOTHING_PENDING = "nothing pending"
    NO_DUMP = "no dump"
    #: No line of the logs is about it.
    NO_LINE = "no line"


class RankStanding(Struct, frozen=True, kw_only=True):
    """What a rank does; ``operation``: number in ``Hang.operations`` of the one it is in or late for."""

    rank: int
    state: RankState
    operation: int | None = None


def list_standings(hang: Hang, ranks: Iterable[int]) -> tuple[RankStanding, ...]:
    """Return what each of these ranks, and each without a dump, does: the causes first, then by state."""
    culprits = {culprit.rank: culprit.operation for culprit in hang.culprits}
    waiting: dict[int, int] = {}
    late: dict[int, int] = {}
    for wait in hang.waits:
        for rank in wait.ranks:
            waiting.setdefault(rank, wait.operation)
    for number, operation in enumerate(hang.operations):
        for rank in operation.entered:
            waiting.setdefault(rank, number)
        for rank in operation.late:
            late.setdefault(rank, number)
    victims, missing = set(hang.victims), set(hang.ranks_missing)

    def make_standing(rank: int) -> RankStanding:
        if rank in missing:
            state = RankState.NO_LINE if hang.logs else RankState.NO_DUMP
            return RankStanding(rank=rank, state=state, operation=culprits.get(rank))
        if rank in culprits:
            return RankStanding(rank=rank, state=RankState.CAUSE, operation=culprits[rank])
        if rank in waiting or rank in victims:
            return RankStanding(rank=rank, state=RankState.WAITS, operation=waiting.get(rank))
        if rank in late:
            return RankStanding(rank=rank, state=RankState.LATE, operation=late[rank])
        return RankStanding(rank=rank, state=RankState.NOTHING_PENDING)

    order = list(RankState)
    standings = [make_standing(rank) for rank in sorted({*ranks, *missing})]
    return tuple(sorted(standings, key=lambda each: (order.index(each.state), each.rank)))
