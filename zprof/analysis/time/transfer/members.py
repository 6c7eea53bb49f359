"""Ranks of a group, and the steps over which its sums are means: those of its loaded ranks only.

A mean over all ranks would dilute: a group of 2 of 8 ranks would seem to run a quarter of its collectives.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

#: A text of more digits is no rank.
_MAX_DIGITS = 9


def group_ranks(group: str) -> frozenset[int]:
    """Ranks of a group "0,1" or "0,1#description"; none where they are not known."""
    words = group.split("#", 1)[0].split(",")
    if not all(word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS for word in words):
        return frozenset()
    return frozenset(int(word) for word in words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of the window by loaded rank."""

    of_rank: Mapping[int, int]

    @property
    def each(self) -> int:
        """Steps of a rank; of the one with most where they differ, at least 1."""
        return max(1, max(self.of_rank.values(), default=1))

    def over(self, group: str, rows: pd.DataFrame) -> int:
        """Steps summed over the loaded ranks of a group, at least 1.

        Where the group does not say its ranks they are those that have rows.
        """
        ranks = group_ranks(group) or set(rows["rank"].unique())
        return max(1, sum(self.of_rank.get(int(rank), 0) for rank in ranks))
