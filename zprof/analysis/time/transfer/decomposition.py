"""Split each collective into waiting for the last rank and moving bytes.

With S the latest start of the ranks that rank i waits for, on the common clock:

    wait_i = max(0, min(S, e_i) - s_i)      transfer_i = e_i - max(S, s_i), at least 0
    tail_i = max_j e_j - e_i                T = min_i (e_i - max(S, s_i)) over the ranks that wait

and wait + transfer = duration. Which ranks wait for which:

    all_reduce, all_gather, reduce_scatter, all_to_all, barrier: all ranks for the last one
    broadcast, scatter: all ranks for the root          reduce, gather: the root for the last rank
    recv: for its send                                  anything else, or without a peer: for none

A rank b arrived last if for every other rank j  s_b - s_j > 2 max(u_b, u_j), with u the uncertainty of a
rank's clock; else the last two are tied. If ranks are missing, a wait is a lower and a transfer an upper
bound.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.clocks.rank_clock import Clocks
from zprof.analysis.time.collective_rows import Floats, Instances, Mask, RowFinder
from zprof.model.collectives import FULL_SYNC, CollectiveKind


def decompose_collectives(frame: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    """Add the columns that relate the ranks of a collective to each other.

    arrival_ns (S), wait_ns, transfer_ns, bound, lateness_ns (relative to the first rank), last_rank (-1 if
    ranks are missing or the last two are tied), doubt_ns (twice the clock uncertainty), and, NaN if unknown,
    tail_ns and intrinsic_ns.
    """
    instances = Instances(frame["instance"].to_numpy(np.int64))
    seen = find_arrivals(frame, clocks, instances)
    start, end = frame["start_ns"].to_numpy(np.int64), frame["end_ns"].to_numpy(np.int64)
    wait = (np.minimum(seen.arrival_ns, end) - start).clip(min=0)
    together = frame["kind"].isin([str(kind) for kind in FULL_SYNC]).to_numpy(bool)
    together &= frame["instance"].to_numpy(np.int64) >= 0
    first = instances.broadcast(instances.reduce(np.minimum, start), start)
    last_end = instances.broadcast(instances.reduce(np.maximum, end), end)
    moved = np.where(seen.waits, (end - seen.arrival_ns).astype(np.float64), np.nan)
    return frame.assign(
        arrival_ns=seen.arrival_ns,
        wait_ns=wait,
        transfer_ns=end - start - wait,
        bound=seen.bound,
        lateness_ns=np.where(together, start - first, 0),
        last_rank=seen.last_rank,
        doubt_ns=seen.doubt_ns,
        tail_ns=np.where(together, (last_end - end).astype(np.float64), np.nan),
        intrinsic_ns=_min_per_instance(instances, moved),
    )


def _min_per_instance(instances: Instances, values: Floats) -> Floats:
    """Return the minimum known value of each instance, on all of its rows."""
    return instances.broadcast(instances.reduce(np.fmin, values), np.full(len(values), np.nan))


UNKNOWN_RANK = -1
_FROM_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_TO_ROOT = (CollectiveKind.REDUCE, CollectiveKind.GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One entry per row; ``arrival_ns``: the start of the last rank waited for, else the row's own start.

    ``waits``: the row can wait for other ranks, and all of these are known. ``bound``: it can, and they are
    not. ``last_rank``: the rank that certainly came last of them, else -1. ``doubt_ns``: 2 max(u) over the
    instance.
    """

    arrival_ns: Int64s
    waits: Mask
    bound: Mask
    last_rank: Int64s
    doubt_ns: Int64s


def find_arrivals(frame: pd.DataFrame, clocks: Clocks, instances: Instances) -> Arrivals:
    """Return the arrivals of the rows of all ranks, on the common clock."""
    start, rank = frame["start_ns"].to_numpy(np.int64), frame["rank"].to_numpy(np.int64)
    uncertainty = _clock_uncertainty(rank, clocks)
    peer = frame["peer_rank"].fillna(UNKNOWN_RANK).to_numpy(np.int64)
    for_all = _is_kind(frame, *FULL_SYNC) | (_is_kind(frame, *_TO_ROOT) & (rank == peer))
    for_one = (_is_kind(frame, *_FROM_ROOT) & (rank != peer)) | _is_kind(frame, CollectiveKind.RECV)
    last = instances.broadcast(instances.find_largest_rows(start), np.full(len(frame), -1))
    row = np.where(for_one, RowFinder(_read_instance(frame), rank).find(_read_instance(frame), peer), last)
    complete = (for_all & frame["matched"].to_numpy(bool)) | (for_one & (row >= 0))
    there = (for_all | for_one) & (row >= 0)
    theirs = np.where(there, row, np.arange(len(frame)))
    sure = np.where(for_one, start[theirs] - start > 2 * np.maximum(uncertainty, uncertainty[theirs]), False)
    sure |= for_all & _find_clearly_last(start, uncertainty, instances)
    may_wait = for_all | for_one | _is_kind(frame, CollectiveKind.OTHER) | _has_no_root(frame, peer)
    return Arrivals(
        arrival_ns=np.maximum(start, start[theirs]),
        waits=complete,
        bound=may_wait & ~complete & (frame["group_size"].to_numpy(np.int64) != 1),
        last_rank=np.where(complete & sure, rank[theirs], UNKNOWN_RANK),
        doubt_ns=instances.broadcast(instances.reduce(np.maximum, 2 * uncertainty), 2 * uncertainty),
    )


def _clock_uncertainty(rank: Int64s, clocks: Clocks) -> Int64s:
    """Return the uncertainty of each row's clock; that of the worst rank if the rank's own is unknown."""
    known = clocks.rank_uncertainty_ns
    numbers, codes = np.unique(rank, return_inverse=True)
    each = [known.get(int(number), clocks.uncertainty_ns) for number in numbers]
    return np.array(each, dtype=np.int64)[codes]


def _find_clearly_last(start: Int64s, uncertainty: Int64s, instances: Instances) -> Mask:
    """Mark rows of instances in which the last rank trails every other rank by more than the uncertainty."""
    last = instances.broadcast(instances.find_largest_rows(start), np.arange(len(start)))
    lead = start[last] - start - 2 * np.maximum(uncertainty, uncertainty[last])
    lead = np.where(last == np.arange(len(start)), np.iinfo(np.int64).max, lead)
    clear = (instances.reduce(np.minimum, lead) > 0) & (instances.counts > 1)
    return instances.broadcast(clear, np.zeros(len(start), dtype=np.bool_))


def _has_no_root(frame: pd.DataFrame, peer: Int64s) -> Mask:
    return _is_kind(frame, *_TO_ROOT) & (peer < 0)


def _is_kind(frame: pd.DataFrame, *kinds: CollectiveKind) -> Mask:
    mask: Mask = frame["kind"].isin([str(kind) for kind in kinds]).to_numpy(bool)
    return mask


def _read_instance(frame: pd.DataFrame) -> Int64s:
    return frame["instance"].to_numpy(np.int64)
