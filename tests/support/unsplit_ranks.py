"""Ranks whose exposed time cannot be split into wait and transfer, as if other ranks were missing."""

from collections.abc import Sequence

from msgspec.structs import replace

from zprof.analysis.time.ledger import find_ledger_bounds
from zprof.model.time import RankTime


def make_unsplit(ranks: Sequence[RankTime]) -> tuple[RankTime, ...]:
    """Return the ranks with their exposed transfer unsplit, and with the bounds that follow."""
    return tuple(
        replace(
            rank,
            unsplit_ns=rank.exposed_transfer_ns + 1,
            bounds=find_ledger_bounds(
                rank.exposed_wait_ns + rank.exposed_transfer_ns, rank.exposed_transfer_ns + 1, is_upper=False
            ),
        )
        for rank in ranks
    )
