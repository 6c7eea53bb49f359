"""Bring the flight recorders of all ranks together: for each unfinished operation, where each member is.

A collective is identified by its group and sequence number. A send is paired with the receive of its peer:
the first unfinished one of each direction on either side.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.hang.flight import Entry, Group, Progress, RankFlight, Signatures

#: Operations that finish on one rank only after all have entered; in others the root may leave first.
_SYMMETRIC = (
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
)
_ONE_SIDED = ("send", "recv", "broadcast", "reduce", "gather", "scatter")


_NO_PROGRESS = Progress(entered=0, finished=0, is_exact=False)
#: An operation that no dump names.
_UNKNOWN_OPERATION = "collective"


class OperationKey(Struct, frozen=True, order=True):
    """Identity of an operation: a collective of a group, or the first pending send from one rank to another.

    ``sequence`` is that of the collective; -1 for a send, whose two sides count for themselves.
    """

    group: str
    ranks: tuple[int, ...]
    sequence: int
    sender: int = -1
    receiver: int = -1

    @property
    def is_p2p(self) -> bool:
        """Return True for a send and its receive."""
        return self.sequence < 0


class PendingOperation(Struct, frozen=True, kw_only=True):
    """An operation that at least one rank has entered and not finished.

    ``entries``: those of the ranks for which it is the first unfinished operation of the group. ``behind``:
    members that have entered it, and stand in an earlier operation. ``late``: members that have not entered
    it. ``finished``: members that have left it. ``unknown``: members without a dump, or whose dump does not
    say.
    """

    key: OperationKey
    entries: Mapping[int, Entry]
    behind: frozenset[int]
    late: frozenset[int]
    finished: frozenset[int]
    unknown: frozenset[int]

    @property
    def entry(self) -> Entry:
        """The entry of the lowest rank."""
        return self.entries[min(self.entries)]

    @property
    def members(self) -> tuple[int, ...]:
        """All ranks of the operation."""
        key = self.key
        return (key.sender, key.receiver) if key.is_p2p else key.ranks


class Job(Struct, frozen=True, kw_only=True, dict=True):
    """The flight recorders of a job, by rank.

    ``missing``: ranks without one; ``unread``: ranks of which entries could not be read.
    """

    flights: Mapping[int, RankFlight]
    missing: frozenset[int]
    signatures: Signatures
    unread: frozenset[int] = frozenset()

    @cached_property
    def operations(self) -> tuple[PendingOperation, ...]:
        """All operations that are the first unfinished one of a group on some rank."""
        keys: dict[OperationKey, dict[int, Entry]] = {}
        for rank, fronts in self.fronts.items():
            for entry in fronts:
                key = self._identify(entry)
                if key is not None:
                    keys.setdefault(key, {})[rank] = entry
        return tuple(self._examine(key, entries) for key, entries in keys.items())

    @cached_property
    def progress(self) -> Mapping[int, Mapping[str, Progress]]:
        """How far each rank is in the collectives of each group, by its entries and the group's own count."""
        mixed = frozenset[str]().union(*(flight.p2p_groups for flight in self.flights.values()))
        known = {
            rank: {
                name: progress if name in mixed else _add_status(progress, flight.status.get(name))
                for name, progress in flight.progress.items()
            }
            for rank, flight in self.flights.items()
        }
        for rank in self.unread:  # it may have entered more, and finished less
            known[rank] = {name: replace(each, is_exact=False) for name, each in known[rank].items()}
        return known

    @cached_property
    def fronts(self) -> Mapping[int, tuple[Entry, ...]]:
        """The first unfinished operations of each rank, those included that its buffer no longer has."""
        return {rank: self._complete_fronts(flight) for rank, flight in self.flights.items()}

    @cached_property
    def standing(self) -> Mapping[int, int]:
        """The place in the order of a rank where it stands: at its first unfinished collective.

        Sends and receives before it may be unfinished too; what it entered later has to wait.
        """
        return {
            rank: next(
                (front.order for front in fronts if not front.is_p2p and not front.is_passed), sys.maxsize
            )
            for rank, fronts in self.fronts.items()
        }

    def _complete_fronts(self, flight: RankFlight) -> tuple[Entry, ...]:
        """Return the fronts; an operation that was overwritten is taken from the dump of a peer."""
        fronts = []
        for entry in flight.fronts:
            first = self.progress[flight.rank][entry.group.name].finished + 1
            if entry.is_p2p or entry.sequence <= first:
                fronts.append(entry)
            else:
                fronts.append(replace(entry, sequence=first, **self._describe_place(entry.group, first)))
        return tuple(fronts)

    @cached_property
    def _places(self) -> dict[tuple[str, int], dict[str, Any]]:
        return {}

    def _describe_place(self, group: Group, sequence: int) -> dict[str, Any]:
        """Return what is known of a collective from any rank that has it."""
        key = (group.name, sequence)
        if key not in self._places:
            self._places[key] = self._search_place(group, sequence)
        return self._places[key]

    def name_operation(self, group: Group, sequence: int) -> str:
        """Return the operation at a place of a group, "collective" if no dump has it."""
        return str(self._describe_place(group, sequence)["operation"])

    def _search_place(self, group: Group, sequence: int) -> dict[str, Any]:
        for flight in self.flights.values():
            history = flight.history
            if group not in history.groups:
                continue
            rows = np.flatnonzero(
                (history.group == history.groups.index(group)) & (history.sequence == sequence)
            )
            if len(rows):
                number = int(history.signature[rows[0]])
                operation, sizes, dtypes = self.signatures.get(number)
                sizes = sizes.partition(" -> ")[0]
                return {"operation": operation, "sizes": sizes, "dtypes": dtypes, "signature": number}
        return {"operation": self._name_any(group), "sizes": "", "dtypes": ""}

    def _name_any(self, group: Group) -> str:
        """Return the last collective of a group that any dump has."""
        for flight in self.flights.values():
            history = flight.history
            if group in history.groups:
                rows = np.flatnonzero(history.group == history.groups.index(group))
                if len(rows):
                    return self.signatures.get(int(history.signature[rows[-1]]))[0]
        return _UNKNOWN_OPERATION

    @cached_property
    def _ranks_by_group(self) -> dict[str, tuple[int, ...]]:
        """The members of groups whose ranks no dump states: all ranks that know them."""
        known: dict[str, set[int]] = {}
        for flight in self.flights.values():
            for name, group in flight.groups.items():
                known.setdefault(name, set()).update(group.ranks or (flight.rank,))
        return {name: tuple(sorted(ranks)) for name, ranks in known.items()}

    def list_members(self, group: Group) -> tuple[int, ...]:
        """Return the global ranks of a group."""
        if group.ranks:
            return group.ranks
        ranks = self._ranks_by_group.get(group.name, ())
        if group.description == "default_pg":
            return tuple(sorted({*ranks, *self.missing}))
        return ranks

    def _identify(self, entry: Entry) -> OperationKey | None:
        """Return the key of an entry; None for a send or receive whose peer is unknown."""
        group = entry.group
        members = self.list_members(group)
        if not entry.is_p2p:
            return OperationKey(group.name, members, entry.sequence)
        if entry.peer is None:
            return None
        sender, receiver = (entry.rank, entry.peer) if entry.sends else (entry.peer, entry.rank)
        return OperationKey(group.name, members, -1, sender, receiver)

    def _examine(self, key: OperationKey, entries: dict[int, Entry]) -> PendingOperation:
        behind, late, finished, unknown = set[int](), set[int](), set[int](), set[int]()
        untold = set[int]()  # nothing of the group is pending on them, and nothing counts what they entered
        members = (key.sender, key.receiver) if key.is_p2p else key.ranks
        for rank in members:
            flight = self.flights.get(rank)
            if flight is None:
                unknown.add(rank)
            elif rank in entries:
                # Is the rank in an operation that it entered before this one?
                entry = entries[rank]
                first = next((front for front in self.fronts[flight.rank] if not front.is_passed), None)
                if first is not None and first.order < entry.order:
                    behind.add(rank)
            elif rank in self.unread:
                unknown.add(rank)
            elif key.is_p2p:
                late.add(rank)
            else:
                progress = self.progress[rank].get(key.group, _NO_PROGRESS)
                if progress.finished >= key.sequence:
                    finished.add(rank)
                elif progress.entered >= key.sequence:
                    behind.add(rank)
                else:
                    (late if progress.is_exact else untold).add(rank)
        beyond = {rank for rank in untold if self._stands_beyond(rank, entries)}
        # Either most have finished it and a few hang in it, or most hang in it and a few have skipped it.
        have_finished = beyond if len(beyond) > len(entries) else set[int]()
        finished |= have_finished
        late |= untold - have_finished
        return PendingOperation(
            key=key,
            entries=entries,
            behind=frozenset(behind),
            late=frozenset(late),
            finished=frozenset(finished),
            unknown=frozenset(unknown),
        )

    def _stands_beyond(self, rank: int, entries: Mapping[int, Entry]) -> bool:
        """Return True if a rank stands in a collective that ranks in this operation have entered after it."""
        standing = next((front for front in self.fronts[rank] if not front.is_p2p), None)
        return standing is not None and any(
            front.group.name == standing.group.name
            and front.sequence <= standing.sequence
            and front.order > entry.order
            for other, entry in entries.items()
            for front in self.fronts[other]
        )


def _add_status(progress: Progress, status: tuple[int | None, int | None] | None) -> Progress:
    """Return the progress with what the group itself counted; its buffer may have lost entries."""
    enqueued, completed = status or (None, None)
    if enqueued is None:
        return progress
    has_pending = progress.finished < progress.entered
    entered = max(progress.entered, enqueued)
    finished = progress.finished if has_pending else entered
    if completed is not None and completed >= 0:
        finished = min(finished, completed)
    return Progress(entered=entered, finished=finished)


def is_symmetric(operation: str) -> bool:
    """Return True if no rank can leave the operation before all have entered it."""
    name = operation.lower()
    if any(word in name for word in _SYMMETRIC) or name == "barrier":
        return True
    return name != _UNKNOWN_OPERATION and not any(word in name for word in _ONE_SIDED)


def list_ranks(operations: Iterable[PendingOperation]) -> tuple[int, ...]:
    """Return all ranks that wait in one of the operations."""
    return tuple(sorted({rank for operation in operations for rank in operation.entries}))
