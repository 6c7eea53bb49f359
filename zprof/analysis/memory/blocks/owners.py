"""Whose the blocks of a recorded window are, by address, for whoever knows the blocks from elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zprof.analysis.memory.blocks.history import HeldBlocks
from zprof.analysis.memory.rank.curve import alive_at
from zprof.analysis.memory.rank.lives import UNTAGGED, Int
from zprof.analysis.memory.rank.rank_lives import RankLives


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """What was live at an instant: address, bytes and tenant (a position in PRECEDENCE, or UNTAGGED)."""

    address: Int
    bytes: Int
    tenant: Int


#: What was live at an instant.
OwnersAt = Callable[[int], Owners]


def owners_of(lives: RankLives) -> OwnersAt:
    """The owners that hooks found."""

    def at(time_ns: int) -> Owners:
        rows = alive_at(lives.segments, time_ns)
        return Owners(
            address=lives.blocks.address[lives.segments.block[rows]],
            bytes=lives.segments.bytes[rows],
            tenant=lives.segments.tenant[rows],
        )

    return at


def tenants_of(blocks: HeldBlocks, rows: Int, owners: Owners) -> Int:
    """Tenant of each of a history's live blocks: that of what lies at its address; else UNTAGGED."""
    order = np.argsort(owners.address, kind="stable")
    known = owners.address[order]
    found = np.full(len(rows), UNTAGGED, dtype=np.int64)
    if len(known):
        at = np.minimum(np.searchsorted(known, blocks.address[rows]), len(known) - 1)
        same = known[at] == blocks.address[rows]
        found[same] = owners.tenant[order][at[same]]
    return found
