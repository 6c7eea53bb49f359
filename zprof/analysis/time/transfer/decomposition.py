"""Split each collective into waiting for the last rank and transfer.

With S the latest start of the ranks that rank i waits for, on the common clock:

    wait_i = max(0, min(S, e_i) - s_i)      transfer_i = e_i - max(S, s_i), at least 0
    tail_i = max_j e_j - e_i                T = min_i (e_i - max(S, s_i)) over the ranks that wait

and wait + transfer = duration. Ranks wait for each other as follows:

    all_reduce, all_gather, reduce_scatter, all_to_all, barrier: all ranks for the last one
    broadcast, scatter: all ranks for the root          reduce, gather: the root for the last rank
    send, recv: for each other                          other kinds, or without a peer: for no rank

A send may also be buffered: if it ended before its receive started, it waited for nobody.

A rank b arrived last if for every other rank j  s_b - s_j > 2 max(u_b, u_j), with u the uncertainty of a
rank's clock; else the last two are tied. If ranks are missing, the wait is a lower bound and the transfer an
upper bound.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Mask
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.rank_clock import Clocks
from zprof.analysis.time.collective_rows import Instances, RowFinder, mark_full_syncs
from zprof.model.collectives import FULL_SYNC, CollectiveKind

UNKNOWN_RANK = -1
_FROM_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_TO_ROOT = (CollectiveKind.REDUCE, CollectiveKind.GATHER)
_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)


def decompose_collectives(collectives: Columns, clocks: Clocks) -> Columns:
    """Add the columns that relate the ranks of a collective to each other.

    arrival_ns (S), wait_ns, transfer_ns, bound, lateness_ns (relative to the first rank), last_rank (-1 if
    ranks are missing or the last two are tied), offset_uncertainty_ns (twice the clock uncertainty), and, NaN
    if unknown, tail_ns and intrinsic_ns.
    """
    instances = Instances(collectives.ints("instance"))
    arrivals = find_arrivals(collectives, clocks, instances)
    start, end = collectives.ints("start_ns"), collectives.ints("end_ns")
    wait = (np.minimum(arrivals.arrival_ns, end) - start).clip(min=0)
    is_full_sync = mark_full_syncs(collectives) & (collectives.ints("instance") >= 0)
    first = instances.broadcast(instances.reduce(np.minimum, start), start)
    last_end = instances.broadcast(instances.reduce(np.maximum, end), end)
    transfer_times = np.where(arrivals.waits, (end - arrivals.arrival_ns).astype(np.float64), np.nan)
    # The minimum known value of each instance, on all of its rows.
    return collectives.with_columns(
        arrival_ns=arrivals.arrival_ns,
        wait_ns=wait,
        transfer_ns=end - start - wait,
        bound=arrivals.bound,
        lateness_ns=np.where(is_full_sync, start - first, 0),
        last_rank=arrivals.last_rank,
        offset_uncertainty_ns=arrivals.offset_uncertainty_ns,
        tail_ns=np.where(is_full_sync, (last_end - end).astype(np.float64), np.nan),
        intrinsic_ns=instances.broadcast(
            instances.reduce(np.fmin, transfer_times), np.full(len(transfer_times), np.nan)
        ),
    )


class Arrivals(Struct, frozen=True, kw_only=True):
    """One entry per row; ``arrival_ns``: the start of the last rank waited for, else the row's own start.

    ``waits``: the row can wait for other ranks, and all of these are known. ``bound``: it can wait, but some
    of these are unknown. ``last_rank``: the rank that certainly arrived last, else -1.
    ``offset_uncertainty_ns``: 2 max(u) over the instance.
    """

    arrival_ns: Int64s
    waits: Mask
    bound: Mask
    last_rank: Int64s
    offset_uncertainty_ns: Int64s


def find_arrivals(collectives: Columns, clocks: Clocks, instances: Instances) -> Arrivals:
    """Return the arrivals of the rows of all ranks, on the common clock."""
    start, rank, instance = (collectives.ints(name) for name in ("start_ns", "rank", "instance"))
    # The uncertainty of each row's clock; the maximum over ranks if the rank's own is unknown.
    known = clocks.rank_uncertainty_ns
    numbers, codes = np.unique(rank, return_inverse=True)
    uncertainties = [known.get(int(number), clocks.uncertainty_ns) for number in numbers]
    uncertainty = np.array(uncertainties, dtype=np.int64)[codes]
    peer = collectives.ints("peer_rank", UNKNOWN_RANK)
    kind = collectives.texts("kind")
    waits_for_all = kind.equals(*FULL_SYNC) | (kind.equals(*_TO_ROOT) & (rank == peer))
    waits_for_one = (kind.equals(*_FROM_ROOT) & (rank != peer)) | kind.equals(*_MESSAGES)
    last = instances.broadcast(instances.find_largest_rows(start), np.full(len(rank), -1))
    row = np.where(waits_for_one, RowFinder(instance, rank).find(instance, peer), last)
    is_buffered = kind.equals(CollectiveKind.SEND) & (row >= 0) & (collectives.ints("end_ns") < start[row])
    waits_for_one &= ~is_buffered
    complete = (waits_for_all & collectives.bools("matched")) | (waits_for_one & (row >= 0))
    has_awaited_row = (waits_for_all | waits_for_one) & (row >= 0)
    awaited_row = np.where(has_awaited_row, row, np.arange(len(rank)))
    is_clearly_last = np.where(
        waits_for_one,
        start[awaited_row] - start > 2 * np.maximum(uncertainty, uncertainty[awaited_row]),
        False,
    )
    is_clearly_last |= waits_for_all & _find_clearly_last(start, uncertainty, instances)
    may_wait = (
        waits_for_all
        | waits_for_one
        | kind.equals(CollectiveKind.OTHER)
        | (kind.equals(*_TO_ROOT) & (peer < 0))
    )
    return Arrivals(
        arrival_ns=np.maximum(start, start[awaited_row]),
        waits=complete,
        bound=may_wait & ~complete & (collectives.ints("group_size") != 1),
        last_rank=np.where(complete & is_clearly_last, rank[awaited_row], UNKNOWN_RANK),
        offset_uncertainty_ns=instances.broadcast(
            instances.reduce(np.maximum, 2 * uncertainty), 2 * uncertainty
        ),
    )


def _find_clearly_last(start: Int64s, uncertainty: Int64s, instances: Instances) -> Mask:
    """Mark rows of instances in which the last rank trails every other rank by more than the uncertainty."""
    last = instances.broadcast(instances.find_largest_rows(start), np.arange(len(start)))
    lead = start[last] - start - 2 * np.maximum(uncertainty, uncertainty[last])
    lead = np.where(last == np.arange(len(start)), np.iinfo(np.int64).max, lead)
    clear = (instances.reduce(np.minimum, lead) > 0) & (instances.counts > 1)
    return instances.broadcast(clear, np.zeros(len(start), dtype=np.bool_))
