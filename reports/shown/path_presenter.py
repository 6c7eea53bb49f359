"""The critical path as it is shown: by rank, and by what it consists of."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from zprof.model.time import CriticalPath


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRank:
    """A rank's part of the path: its share, and of what it consists, largest first, in nanoseconds."""

    rank: int
    ns: int
    share: float
    kinds: tuple[tuple[str, int], ...]


def path_ranks(path: CriticalPath) -> tuple[PathRank, ...]:
    """All ranks that the path goes through, the one with most of it first."""
    parts: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for share in path.shares:
        parts[share.rank].append((share.what.value, share.ns))
    ranks = [_rank(rank, kinds, path.wall_ns) for rank, kinds in parts.items()]
    return tuple(sorted(ranks, key=lambda entry: (-entry.ns, entry.rank)))


def path_kinds(path: CriticalPath) -> tuple[tuple[str, float], ...]:
    """Shares of the path by what it consists of, over all ranks, the largest first."""
    sums = _largest_first((share.what.value, share.ns) for share in path.shares)
    return tuple((kind, length / max(1, path.wall_ns)) for kind, length in sums)


def _rank(rank: int, kinds: list[tuple[str, int]], wall_ns: int) -> PathRank:
    length = sum(part for _, part in kinds)
    return PathRank(rank=rank, ns=length, share=length / max(1, wall_ns), kinds=_largest_first(kinds))


def _largest_first(parts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    sums: dict[str, int] = defaultdict(int)
    for kind, length in parts:
        sums[kind] += length
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
