"""Define how the memory of two peaks differs: of a run and its baseline, or of two ranks.

Sizes are integer bytes.
"""

from collections.abc import Mapping

from msgspec import Struct


class GroupChange(Struct, frozen=True, kw_only=True):
    """What one owner holds from one place of allocation at two peaks; ``a`` is what ``b`` is compared with.

    Of two runs, ``a`` is the baseline; of two ranks, the smallest. ``where`` and ``operator`` as in an
    allocation, from ``b`` if it has the group. ``before_history``: allocated before the histories start.
    ``merged``: groups too small to list, of which no place is known.
    """

    tenant: str
    sub: str
    where: str
    operator: str
    a_bytes: int
    b_bytes: int
    a_blocks: int
    b_blocks: int
    before_history: bool = False
    merged: bool = False

    @property
    def delta_bytes(self) -> int:
        """Return the growth from ``a`` to ``b``."""
        return self.b_bytes - self.a_bytes


class RankSpread(Struct, frozen=True, kw_only=True):
    """Largest peak minus smallest, by tenant (including ``untagged``); the deltas sum to the difference.

    ``groups``: of snapshots, the same by owner and place of allocation, the largest difference first;
    ``a`` is the smallest rank.
    """

    largest_rank: int
    smallest_rank: int
    difference_bytes: int
    tenant: str
    delta_bytes: Mapping[str, int]
    groups: tuple[GroupChange, ...] = ()
