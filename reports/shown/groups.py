"""Process groups as a reader can take them in: runs of ranks as ranges."""

from collections.abc import Sequence
from itertools import pairwise

_FEW = 4
_MOST_PARTS = 3


def group_name(group: str) -> str:
    """``0,1,2,3,4,5,6,7`` as ``0-7``, with the description behind it; other names as they are.

    Groups of up to four ranks are listed.  Of ranks in equal steps the first, second and last are named.
    """
    ranks, mark, description = group.partition("#")
    words = ranks.split(",")
    if len(words) <= _FEW or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        return group
    return f"{_short([int(word) for word in words])}{mark}{description}"


def _short(ranks: Sequence[int]) -> str:
    steps = {later - earlier for earlier, later in pairwise(ranks)}
    if len(steps) == 1 and steps != {1}:
        return f"{ranks[0]},{ranks[1]},..,{ranks[-1]} ({len(ranks)} ranks)"
    runs = _runs(ranks)
    if len(runs) > _MOST_PARTS:
        return f"{','.join(runs[:_MOST_PARTS])},.. ({len(ranks)} ranks)"
    return ",".join(runs)


def _runs(ranks: Sequence[int]) -> list[str]:
    """Ranks that follow on one another as ``first-last``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][-1] = rank
        else:
            runs.append([rank, rank])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]
