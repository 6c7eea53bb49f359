"""Give process groups the same name on all ranks, from their sorted global ranks ("0,1,2,3"), and resolve
group ranks to global ranks.

Sequence numbers are per process group. If several groups span the same ranks, the first one (the default
group, else the lowest number) is named by the ranks alone; the others have their description appended, as in
"0,1,2,3#mesh_fsdp", or their name if they have no description. Every member sees the same groups over its
ranks, so all members derive the same names.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from zprof.collectors.read.kineto.trace import Arguments, TraceHeader, TraceProcessGroup
from zprof.model.collectives import UNKNOWN_GROUP

#: torch's name and description of the group over all ranks, and descriptions without information.
_DEFAULT_NAME, _DEFAULT_DESCRIPTION, _UNDESCRIBED = "0", "default_pg", ("", "undefined")
_MAX_RANKS = 1 << 16


class GroupResolver:
    """Resolve the groups in one trace to (display name, size). Size 0 means unknown.

    Args:
        header_groups: Groups in the trace's header; groups without ranks span all ranks.
        world_size: World size of the trace, or None.
        rank: Rank of the trace, or None.
        extra: Groups that appear only in collectives, with the ranks given there.
    """

    def __init__(
        self,
        header_groups: Sequence[TraceProcessGroup],
        world_size: int | None,
        rank: int | None = None,
        extra: Iterable[TraceProcessGroup] = (),
    ) -> None:
        world = tuple(range(world_size)) if world_size is not None and 0 < world_size <= _MAX_RANKS else ()
        self._ranks = {group.name: group.ranks or world for group in header_groups}
        groups = [
            TraceProcessGroup(name=g.name, description=g.description, ranks=g.ranks or world)
            for g in header_groups
        ]
        if _DEFAULT_NAME not in self._ranks:
            self._ranks[_DEFAULT_NAME] = world
            groups.append(
                TraceProcessGroup(name=_DEFAULT_NAME, description=_DEFAULT_DESCRIPTION, ranks=world)
            )
        self._display_names = _make_display_names([*groups, *extra])
        self._cached_names: dict[tuple[tuple[int, ...] | range, str], str] = {}
        rank_sets = {ranks for ranks in self._ranks.values() if ranks}
        self._own_rank_sets = {ranks for ranks in rank_sets if rank is None or rank in ranks}
        self._has_header_groups = bool(header_groups)
        self._names = {
            name: (self.get_display_name(name, ranks), len(ranks))
            for name, ranks in self._ranks.items()
            if ranks
        }

    def resolve(self, name: str | None) -> tuple[str, int]:
        """Return a group's name and size. Without a name, use the only set of ranks, if there is just one."""
        if name is None:
            return _name_if_single(self._own_rank_sets) or (UNKNOWN_GROUP, 0)
        return self._names.get(name, (name, 0))

    def resolve_by_size(self, size: int | None) -> tuple[str, int]:
        """Return the group with this size, if all groups of this size span the same ranks."""
        return _name_if_single(
            {ranks for ranks in self._own_rank_sets if len(ranks) == size}
        ) or self.resolve(None)

    def get_single_group(self) -> tuple[str, int] | None:
        """Return the group in the trace's header, if all of its groups span the same ranks; else None."""
        return _name_if_single(self._own_rank_sets) if self._has_header_groups else None

    def get_ranks(self, name: str) -> tuple[int, ...]:
        """Return the ranks of a group in the trace's header, else an empty tuple."""
        return self._ranks.get(name, ())

    def get_display_name(self, name: str, ranks: tuple[int, ...] | range) -> str:
        """Return the name of a group in tables. Cached, because sorting the ranks for each row is
        too slow.
        """
        display_name = self._cached_names.get((ranks, name))
        if display_name is None:
            key = tuple(sorted(ranks))
            display_name = self._cached_names[ranks, name] = self._display_names.get(
                (key, name)
            ) or format_ranks(key)
        return display_name


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ``(1, 0)`` as ``0,1``."""
    return ",".join(str(rank) for rank in sorted(ranks))


def _name_if_single(rank_sets: set[tuple[int, ...]]) -> tuple[str, int] | None:
    if len(rank_sets) != 1:
        return None
    (ranks,) = rank_sets
    return format_ranks(ranks), len(ranks)


def _make_display_names(groups: Sequence[TraceProcessGroup]) -> dict[tuple[tuple[int, ...], str], str]:
    """Return the display name of each group by ranks and name; groups over the same ranks get different
    names.
    """
    members_by_ranks: dict[tuple[int, ...], dict[str, str]] = defaultdict(dict)
    for group in groups:
        if group.ranks:
            members_by_ranks[tuple(sorted(group.ranks))].setdefault(group.name, group.description)
    names: dict[tuple[tuple[int, ...], str], str] = {}
    for ranks, members in members_by_ranks.items():
        text, descriptions = format_ranks(ranks), list(members.values())
        for index, (name, description) in enumerate(sorted(members.items(), key=_sort_key)):
            if not index:
                names[ranks, name] = text
            elif description in _UNDESCRIBED:
                names[ranks, name] = f"{text}#{name}"
            elif descriptions.count(description) > 1:
                names[ranks, name] = f"{text}#{description}:{name}"
            else:
                names[ranks, name] = f"{text}#{description}"
    return names


def _sort_key(member: tuple[str, str]) -> tuple[bool, int, str]:
    name, description = member
    number = int(name) if name.isascii() and name.isdigit() and len(name) < 18 else 1 << 62
    return description != _DEFAULT_DESCRIPTION, number, name


def parse_group_rank(arguments: Arguments, argument: int | None) -> int | None:
    """Return the group rank in an operator's argument, or None if it is not recorded."""
    values = arguments.values
    if argument is None or not isinstance(values, list) or len(values) <= argument:
        return None
    value = values[argument]
    is_number = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
    return int(value) if is_number else None


class PeerResolver:
    """Resolve group ranks in the process groups of one trace to global ranks."""

    def __init__(self, header: TraceHeader) -> None:
        size = header.world_size or 0
        world = tuple(range(size)) if 0 < size <= _MAX_RANKS else ()
        header_groups = {tuple(sorted(group.ranks)) or world for group in header.groups} or {world}
        self._rank = header.rank
        self._rank_sets = {ranks for ranks in header_groups if header.rank is None or header.rank in ranks}

    def find(self, group: str, group_rank: int | None, *, exclude_self: bool) -> int | None:
        """Return the global rank of ``group_rank`` in a group, or None if unknown.

        Args:
            group: Name that starts with the ranks ("0,1,2", "0,1#pipeline"); if it is unknown, all groups
                that are large enough must agree.
            group_rank: The group rank in the operator's arguments.
            exclude_self: True for sends and receives: a rank does not send to itself.
        """
        if group_rank is None:
            return None
        words = group.split("#", 1)[0].split(",")
        are_ranks = all(word.isascii() and word.isdigit() and len(word) < 10 for word in words)
        ranks = [int(word) for word in words] if are_ranks else []
        candidates = {
            ranks[group_rank] for ranks in ([ranks] if ranks else self._rank_sets) if group_rank < len(ranks)
        }
        if exclude_self:
            candidates.discard(self._rank if self._rank is not None else -1)
        return candidates.pop() if len(candidates) == 1 else None
