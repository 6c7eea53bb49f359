"""Global ranks of peers and roots: c10d's operators name them by their place in the group."""

from collections.abc import Sequence

from zprof.collectors.kineto.arguments import Arguments
from zprof.collectors.kineto.columns import TraceHeader

_MAX_RANKS = 1 << 16


def place_in_group(arguments: Arguments, argument: int | None) -> int | None:
    """Return the place that an argument of an operator names, None where it is not recorded."""
    values = arguments.values
    if argument is None or not isinstance(values, list) or len(values) <= argument:
        return None
    value = values[argument]
    is_place = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
    return int(value) if is_place else None


class Peers:
    """Resolves places in process groups of one trace to global ranks."""

    def __init__(self, header: TraceHeader) -> None:
        size = header.world_size or 0
        world = tuple(range(size)) if 0 < size <= _MAX_RANKS else ()
        listed = {tuple(sorted(group.ranks)) or world for group in header.groups} or {world}
        self._rank = header.rank
        self._spans = {ranks for ranks in listed if header.rank is None or header.rank in ranks}

    def find(self, group: str, place: int | None, *, other: bool) -> int | None:
        """Return the global rank at ``place`` of a group, None where that is not known.

        Args:
            group: Its name, which begins with its ranks ("0,1,2", "0,1#pipeline"); where it is unknown, all
                groups that the place can be of must agree.
            place: What the operator names.
            other: It cannot be this rank: nobody sends to itself.
        """
        if place is None:
            return None
        ranks = _ranks_of_name(group)
        found = {span[place] for span in ([ranks] if ranks else self._spans) if place < len(span)}
        if other:
            found.discard(self._rank if self._rank is not None else -1)
        return found.pop() if len(found) == 1 else None


def _ranks_of_name(group: str) -> Sequence[int]:
    words = group.split("#", 1)[0].split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        return ()
    return [int(word) for word in words]
