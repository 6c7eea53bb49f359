"""Name process groups alike on all ranks, by their sorted global ranks ("0,1,2,3"), and resolve group ranks
to global ranks.

Sequence numbers count per process group. If several groups span the same ranks, the first keeps the bare
ranks (the default group, else the lowest number); the others have their description appended, as in
"0,1,2,3#mesh_fsdp", or their name if they have no description. Every member lists the same groups over its
ranks, so all of them derive the same names.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from zprof.collectors.kineto.trace import Arguments, Group, TraceHeader

#: torch's name and description of the group over all ranks, and the descriptions that say nothing.
_DEFAULT_NAME, _DEFAULT, _UNDESCRIBED = "0", "default_pg", ("", "undefined")
_MAX_RANKS = 1 << 16
UNKNOWN_GROUP = "unknown"


class GroupNames:
    """Resolves the groups that one trace names to (name, size). Size 0 is unknown.

    Args:
        listed: Groups of the trace's header; groups without ranks span all ranks.
        world_size: World size of the trace, or None.
        rank: Rank of the trace, or None.
        seen: Groups that only collectives name, with the ranks that they state.
    """

    def __init__(
        self,
        listed: Sequence[Group],
        world_size: int | None,
        rank: int | None = None,
        seen: Iterable[Group] = (),
    ) -> None:
        world = tuple(range(world_size)) if world_size is not None and 0 < world_size <= _MAX_RANKS else ()
        self._ranks = {group.name: group.ranks or world for group in listed}
        known = [Group(name=g.name, description=g.description, ranks=g.ranks or world) for g in listed]
        if _DEFAULT_NAME not in self._ranks:
            self._ranks[_DEFAULT_NAME] = world
            known.append(Group(name=_DEFAULT_NAME, description=_DEFAULT, ranks=world))
        self._shown = _make_display_names([*known, *seen])
        self._asked: dict[tuple[tuple[int, ...] | range, str], str] = {}
        spans = {ranks for ranks in self._ranks.values() if ranks}
        self._own = {ranks for ranks in spans if rank is None or rank in ranks}
        self._are_listed = bool(listed)
        self._names = {
            name: (self.shown(name, ranks), len(ranks)) for name, ranks in self._ranks.items() if ranks
        }

    def resolve(self, name: str | None) -> tuple[str, int]:
        """Return the name and size of a group. Without a name, of all groups if they span the same ranks."""
        if name is None:
            return _name_if_single(self._own) or (UNKNOWN_GROUP, 0)
        return self._names.get(name, (name, 0))

    def of_size(self, size: int | None) -> tuple[str, int]:
        """Return the group of this size, if all groups of the size span the same ranks."""
        return _name_if_single({ranks for ranks in self._own if len(ranks) == size}) or self.resolve(None)

    def listed(self) -> tuple[str, int] | None:
        """Return the groups of the trace's header as one, if they span the same ranks; else None."""
        return _name_if_single(self._own) if self._are_listed else None

    def ranks_of(self, name: str) -> tuple[int, ...]:
        """Return the ranks of a group in the trace's header, else an empty tuple."""
        return self._ranks.get(name, ())

    def shown(self, name: str, ranks: tuple[int, ...] | range) -> str:
        """Return the name of a group in tables, from its ranks. Cached: sorting per row is too slow."""
        found = self._asked.get((ranks, name))
        if found is None:
            key = tuple(sorted(ranks))
            found = self._asked[ranks, name] = self._shown.get((key, name)) or format_ranks(key)
        return found


def _name_if_single(spans: set[tuple[int, ...]]) -> tuple[str, int] | None:
    if len(spans) != 1:
        return None
    (ranks,) = spans
    return format_ranks(ranks), len(ranks)


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ``(1, 0)`` as ``0,1``."""
    return ",".join(str(rank) for rank in sorted(ranks))


def _make_display_names(groups: Sequence[Group]) -> dict[tuple[tuple[int, ...], str], str]:
    spanning: dict[tuple[int, ...], dict[str, str]] = defaultdict(dict)
    for group in groups:
        if group.ranks:
            spanning[tuple(sorted(group.ranks))].setdefault(group.name, group.description)
    return {
        (ranks, name): shown
        for ranks, members in spanning.items()
        for name, shown in _disambiguate(format_ranks(ranks), members)
    }


def _disambiguate(ranks: str, members: dict[str, str]) -> Iterable[tuple[str, str]]:
    """Yield (name, display name) of groups over the same ranks; ``members`` are descriptions by name."""
    descriptions = list(members.values())
    for place, name in enumerate(sorted(members, key=lambda name: _sort_key(name, members[name]))):
        description = members[name]
        if not place:
            yield name, ranks
        elif description in _UNDESCRIBED:
            yield name, f"{ranks}#{name}"
        elif descriptions.count(description) > 1:
            yield name, f"{ranks}#{description}:{name}"
        else:
            yield name, f"{ranks}#{description}"


def _sort_key(name: str, description: str) -> tuple[bool, int, str]:
    number = int(name) if name.isascii() and name.isdigit() and len(name) < 18 else 1 << 62
    return description != _DEFAULT, number, name


_MAX_WORLD_RANKS = 1 << 16


def parse_place_in_group(arguments: Arguments, argument: int | None) -> int | None:
    """Return the group rank in an operator's argument, or None if it is not recorded."""
    values = arguments.values
    if argument is None or not isinstance(values, list) or len(values) <= argument:
        return None
    value = values[argument]
    is_place = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
    return int(value) if is_place else None


class Peers:
    """Resolves group ranks in the process groups of one trace to global ranks."""

    def __init__(self, header: TraceHeader) -> None:
        size = header.world_size or 0
        world = tuple(range(size)) if 0 < size <= _MAX_WORLD_RANKS else ()
        listed = {tuple(sorted(group.ranks)) or world for group in header.groups} or {world}
        self._rank = header.rank
        self._spans = {ranks for ranks in listed if header.rank is None or header.rank in ranks}

    def find(self, group: str, place: int | None, *, other: bool) -> int | None:
        """Return the global rank at ``place`` of a group, or None if it is not known.

        Args:
            group: Its name, which starts with its ranks ("0,1,2", "0,1#pipeline"); if it is unknown, all
                groups that have this place must agree.
            place: The group rank that the operator names.
            other: True if it cannot be this rank: no rank sends to itself.
        """
        if place is None:
            return None
        ranks = _parse_ranks(group)
        found = {span[place] for span in ([ranks] if ranks else self._spans) if place < len(span)}
        if other:
            found.discard(self._rank if self._rank is not None else -1)
        return found.pop() if len(found) == 1 else None


def _parse_ranks(group: str) -> Sequence[int]:
    words = group.split("#", 1)[0].split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        return ()
    return [int(word) for word in words]
