"""Combine all ranks' flight recorders: where each member of each unfinished operation is.

A collective is identified by its group and sequence number. A send is paired with its peer's receive: the
first unfinished operation of each direction on either side.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.hang.flight import Entry, Group, Progress, RankFlight, Signatures

#: Operations that no rank finishes before all have entered; in others, the root may leave first.
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
#: Name of an operation that is in no dump.
_UNKNOWN_OPERATION = "collective"


class OperationKey(Struct, frozen=True, order=True):
    """Identity of an operation: a group's collective, or the first pending send from one rank to another.

    ``sequence`` is the collective's number; -1 for a send, whose two sides are numbered separately.
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
    """An operation that at least one rank has entered but not finished.

    ``entries``: entries of the ranks for which it is the group's first unfinished operation. ``behind``:
    members that have entered it but are in an earlier operation. ``late``: members that have not entered it.
    ``finished``: members that have left it. ``unknown``: members without a dump, or whose dump does not tell.
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
    """A job's flight recorders, by rank.

    ``missing``: ranks without a flight recorder; ``unread``: ranks with unreadable entries.
    """

    flights: Mapping[int, RankFlight]
    missing: frozenset[int]
    signatures: Signatures
    unread: frozenset[int] = frozenset()

    @cached_property
    def operations(self) -> tuple[PendingOperation, ...]:
        """All operations that are some rank's first unfinished operation in a group."""
        keys: dict[OperationKey, dict[int, Entry]] = {}
        for rank, fronts in self.fronts.items():
            for entry in fronts:
                key = self._identify(entry)
                if key is not None:
                    keys.setdefault(key, {})[rank] = entry
        return tuple(self._examine(key, entries) for key, entries in keys.items())

    @cached_property
    def progress(self) -> Mapping[int, Mapping[str, Progress]]:
        """Each rank's progress in each group's collectives, from its entries and the group's own counters."""
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
        """Each rank's first unfinished operations, including those no longer in its buffer."""
        return {rank: self._complete_fronts(flight) for rank, flight in self.flights.items()}

    @cached_property
    def standing(self) -> Mapping[int, int]:
        """Each rank's position in its own order: its first unfinished collective.

        Earlier sends and receives may also be unfinished; later operations have to wait.
        """
        return {
            rank: next(
                (front.order for front in fronts if not front.is_p2p and not front.is_passed), sys.maxsize
            )
            for rank, fronts in self.fronts.items()
        }

    def _complete_fronts(self, flight: RankFlight) -> tuple[Entry, ...]:
        """Return the fronts; an overwritten operation is taken from a peer's dump."""
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
        """Describe a collective from any rank that has it."""
        key = (group.name, sequence)
        if key not in self._places:
            self._places[key] = self._search_place(group, sequence)
        return self._places[key]

    def name_operation(self, group: Group, sequence: int) -> str:
        """Return the name of the operation at a position in a group, "collective" if no dump has it."""
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
        """Return the name of a group's last collective in any dump."""
        for flight in self.flights.values():
            history = flight.history
            if group in history.groups:
                rows = np.flatnonzero(history.group == history.groups.index(group))
                if len(rows):
                    return self.signatures.get(int(history.signature[rows[-1]]))[0]
        return _UNKNOWN_OPERATION

    @cached_property
    def _ranks_by_group(self) -> dict[str, tuple[int, ...]]:
        """Members of the groups whose ranks no dump states: all ranks that know the group."""
        known: dict[str, set[int]] = {}
        for flight in self.flights.values():
            for name, group in flight.groups.items():
                known.setdefault(name, set()).update(group.ranks or (flight.rank,))
        return {name: tuple(sorted(ranks)) for name, ranks in known.items()}

    def list_members(self, group: Group) -> tuple[int, ...]:
        """Return a group's global ranks."""
        if group.ranks:
            return group.ranks
        ranks = self._ranks_by_group.get(group.name, ())
        if group.description == "default_pg":
            return tuple(sorted({*ranks, *self.missing}))
        return ranks

    def _identify(self, entry: Entry) -> OperationKey | None:
        """Return an entry's key; None for a send or receive with an unknown peer."""
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
                # True if the rank is in an operation that it entered before this one.
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
        # Either most have finished it and a few hang in it, or most hang in it and a few skipped it.
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
        """Return True if a rank is in a collective that ranks in this operation entered after it."""
        standing = next((front for front in self.fronts[rank] if not front.is_p2p), None)
        return standing is not None and any(
            front.group.name == standing.group.name
            and front.sequence <= standing.sequence
            and front.order > entry.order
            for other, entry in entries.items()
            for front in self.fronts[other]
        )


def _add_status(progress: Progress, status: tuple[int | None, int | None] | None) -> Progress:
    """Add the group's own counters to the progress; the buffer may have lost entries."""
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
    """Return True if no rank can leave the operation before all ranks have entered it."""
    name = operation.lower()
    if any(word in name for word in _SYMMETRIC) or name == "barrier":
        return True
    return name != _UNKNOWN_OPERATION and not any(word in name for word in _ONE_SIDED)


def list_ranks(operations: Iterable[PendingOperation]) -> tuple[int, ...]:
    """Return all ranks that wait in any of the operations."""
    return tuple(sorted({rank for operation in operations for rank in operation.entries}))
