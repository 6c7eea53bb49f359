"""Whom each rank waits for in a collective, when that rank came, and whether it surely came last.

    all_reduce, all_gather, reduce_scatter, all_to_all, barrier: everybody for the last of all
    broadcast, scatter: everybody for the root          reduce, gather: the root for the last of all
    recv: for its send                                  anything else, or without a peer: for nobody

A rank b surely came last if for every other rank j  s_b - s_j > 2 max(u_b, u_j), with u the uncertainty
of a rank's clock; else the last two are tied.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.offsets import Clocks
from zprof.analysis.time.transfer.instances import Instances, Mask, RowFinder
from zprof.model.collectives import FULL_SYNC, CollectiveKind

UNKNOWN_RANK = -1
_FROM_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_TO_ROOT = (CollectiveKind.REDUCE, CollectiveKind.GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One entry a row.  ``arrival_ns``: the start of the last rank waited for, else the row's own.

    ``waits``: the row can wait for others, and all of these are known.  ``bound``: it can, and they are
    not.  ``last_rank``: who surely came last of them, else -1.  ``doubt_ns``: 2 max(u) over the instance.
    """

    arrival_ns: Int64s
    waits: Mask
    bound: Mask
    last_rank: Int64s
    doubt_ns: Int64s


def arrivals(frame: pd.DataFrame, clocks: Clocks, instances: Instances) -> Arrivals:
    """Arrivals of the rows of all ranks, on the common clock."""
    start, rank = frame["start_ns"].to_numpy(np.int64), frame["rank"].to_numpy(np.int64)
    doubt = _doubt(rank, clocks)
    peer = frame["peer_rank"].fillna(UNKNOWN_RANK).to_numpy(np.int64)
    for_all = _is(frame, *FULL_SYNC) | (_is(frame, *_TO_ROOT) & (rank == peer))
    for_one = (_is(frame, *_FROM_ROOT) & (rank != peer)) | _is(frame, CollectiveKind.RECV)
    last = instances.spread(instances.largest(start), np.full(len(frame), -1))
    row = np.where(for_one, RowFinder(_instance(frame), rank).find(_instance(frame), peer), last)
    complete = (for_all & frame["matched"].to_numpy(bool)) | (for_one & (row >= 0))
    there = (for_all | for_one) & (row >= 0)
    theirs = np.where(there, row, np.arange(len(frame)))
    sure = np.where(for_one, start[theirs] - start > 2 * np.maximum(doubt, doubt[theirs]), False)
    sure |= for_all & _surely_last(start, doubt, instances)
    may_wait = for_all | for_one | _is(frame, CollectiveKind.OTHER) | _rootless(frame, peer)
    return Arrivals(
        arrival_ns=np.maximum(start, start[theirs]),
        waits=complete,
        bound=may_wait & ~complete & (frame["group_size"].to_numpy(np.int64) != 1),
        last_rank=np.where(complete & sure, rank[theirs], UNKNOWN_RANK),
        doubt_ns=instances.spread(instances.reduce(np.maximum, 2 * doubt), 2 * doubt),
    )


def _doubt(rank: Int64s, clocks: Clocks) -> Int64s:
    """Uncertainty of each row's clock; the worst where a rank's own is not known."""
    known = clocks.rank_uncertainty_ns
    numbers, codes = np.unique(rank, return_inverse=True)
    each = [known.get(int(number), clocks.uncertainty_ns) for number in numbers]
    return np.array(each, dtype=np.int64)[codes]


def _surely_last(start: Int64s, doubt: Int64s, instances: Instances) -> Mask:
    """Rows of instances in which the last rank's lead is beyond doubt to every other rank."""
    last = instances.spread(instances.largest(start), np.arange(len(start)))
    lead = start[last] - start - 2 * np.maximum(doubt, doubt[last])
    lead = np.where(last == np.arange(len(start)), np.iinfo(np.int64).max, lead)
    clear = (instances.reduce(np.minimum, lead) > 0) & (instances.counts > 1)
    return instances.spread(clear, np.zeros(len(start), dtype=np.bool_))


def _rootless(frame: pd.DataFrame, peer: Int64s) -> Mask:
    return _is(frame, *_TO_ROOT) & (peer < 0)


def _is(frame: pd.DataFrame, *kinds: CollectiveKind) -> Mask:
    mask: Mask = frame["kind"].isin([str(kind) for kind in kinds]).to_numpy(bool)
    return mask


def _instance(frame: pd.DataFrame) -> Int64s:
    return frame["instance"].to_numpy(np.int64)
