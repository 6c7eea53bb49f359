"""Names process groups alike on all ranks: by their sorted global ranks, as "0,1,2,3"."""

from collections.abc import Iterable, Mapping

#: How torch calls the group that spans all ranks.
_DEFAULT_GROUP = "0"
UNKNOWN_GROUP = "unknown"


class GroupNames:
    """Resolves the names that one trace uses to (ranks, size).  Size 0 is unknown.

    Args:
        groups: Global ranks of each process group that the trace lists.
        world_size: As the trace says, or None.
        used: Names that ranges of the trace use.  Sequence numbers count per process group, so where
            two of them span the same ranks, all but the first keep their own name behind the ranks.
    """

    def __init__(
        self, groups: Mapping[str, tuple[int, ...]], world_size: int | None, used: Iterable[str] = ()
    ) -> None:
        self._groups = dict(groups)
        if world_size is not None and 0 < world_size <= 1 << 20:
            self._groups.setdefault(_DEFAULT_GROUP, tuple(range(world_size)))
        self._first: dict[tuple[int, ...], str] = {}
        for name in sorted(used):
            if name in self._groups:
                self._first.setdefault(self._groups[name], name)

    def resolve(self, name: str | None) -> tuple[str, int]:
        """The group's name and size; without a name, that of all groups where they span the same ranks."""
        if name is None:
            return self._only_group()
        ranks = self._groups.get(name)
        if not ranks:
            return name, 0
        shown = ranks_name(ranks)
        return (shown if self._first.get(ranks, name) == name else f"{shown}#{name}"), len(ranks)

    def _only_group(self) -> tuple[str, int]:
        spans = {ranks for ranks in self._groups.values() if ranks}
        if len(spans) != 1:
            return UNKNOWN_GROUP, 0
        ranks = spans.pop()
        return ranks_name(ranks), len(ranks)


def ranks_name(ranks: Iterable[int]) -> str:
    """``(1, 0)`` as ``0,1``."""
    return ",".join(str(rank) for rank in sorted(ranks))
