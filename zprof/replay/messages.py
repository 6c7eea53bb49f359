"""Read what each collective of a rank serves: the compute that needs it, its block, the copies beside it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind
from zprof.replay.blocks import computes, find_blocks, main_stream
from zprof.replay.graph import RankGraph
from zprof.replay.tasks import NONE, Bools

_GATHER = CollectiveKind.ALL_GATHER.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """The collectives of one rank in the order of its host.

    Attributes:
        at: The task of each.
        kind: The kind of each, and ``group`` its communicator.
        block: The pass over a block that each serves, ``NONE`` outside of blocks.
        ahead: How many earlier gathers are not needed yet when this one is launched; 0 for reductions.
        needed: The first compute that needs each gather.
        blocks: Of each task of the rank, not only of collectives, the pass over a block that it is of.
    """

    at: Int64s
    kind: tuple[str, ...]
    group: tuple[str, ...]
    block: Int64s
    ahead: Int64s
    needed: Int64s
    blocks: Int64s

    @property
    def gathers(self) -> Int64s:
        """Places of the gathers."""
        return np.flatnonzero(np.array([kind == _GATHER for kind in self.kind], dtype=np.bool_))

    @property
    def units_per_block(self) -> float:
        """Units that a pass over a block gathers: runs of gathers with compute between; 0 without any."""
        gathers = self.gathers
        blocks = self.block[gathers]
        counts = [
            len(np.unique(self.needed[gathers[blocks == block]]))
            for block in np.unique(blocks[blocks != NONE]).tolist()
        ]
        return float(np.median(counts)) if counts else 0.0


def read_messages(
    rank: RankGraph, kinds: Mapping[int, str], groups: Mapping[int, str], copies: Collection[str]
) -> Messages:
    """Read which block each collective of a rank serves.

    Args:
        rank: The rank.
        kinds: The kind of each row of the analysis' collectives, and ``groups`` its communicator.
        groups: See ``kinds``.
        copies: Names of kernels that only copy into and out of what is moved.
    """
    at = np.flatnonzero(rank.collective != NONE)
    kind = tuple(kinds[int(row)] for row in rank.tasks.row[at])
    works = computes(rank, copies)
    blocks = find_blocks(rank, copies)
    computing = np.flatnonzero(works)
    gathers = np.array([each == _GATHER for each in kind], dtype=np.bool_)
    needed = _needed(rank, at, gathers, computing)
    before = computing[np.maximum(0, np.searchsorted(computing, at) - 1)] if len(computing) else at
    served = np.where(gathers, needed, before)
    used = np.searchsorted(np.maximum.accumulate(needed[gathers]), at)
    return Messages(
        at=at,
        kind=kind,
        group=tuple(groups[int(row)] for row in rank.tasks.row[at]),
        block=blocks[served],
        ahead=np.where(gathers, np.maximum(0, np.cumsum(gathers) - 1 - used), 0),
        needed=needed,
        blocks=blocks,
    )


def _needed(rank: RankGraph, at: Int64s, gathers: Bools, computing: Int64s) -> Int64s:
    """The first compute that needs each collective: the first that waits for it, else the next one."""
    waiter: dict[int, int] = {}
    chosen = set(at[gathers].tolist())
    stream = main_stream(rank)
    for task in np.flatnonzero(rank.stream == stream).tolist():
        for other in rank.waits_on[task]:
            if other in chosen and task > other:
                waiter.setdefault(other, task)
    first = np.array([waiter.get(task, task) for task in at.tolist()], dtype=np.int64)
    place = np.searchsorted(computing, first, side="left")
    if not len(computing):
        return at
    return computing[np.minimum(place, len(computing) - 1)]


class Partners:
    """The copies that go with collectives: into what is moved right before it, and out of it behind it."""

    def __init__(self, rank: RankGraph, gathers: Int64s, copies: Collection[str]) -> None:
        stream = main_stream(rank)
        named = np.array([name in copies for name in rank.tasks.kernel], dtype=np.bool_)
        elsewhere = (rank.stream != NONE) & (rank.stream != stream)
        self._serves = (named | elsewhere) & (rank.collective == NONE)
        self._works = np.flatnonzero(rank.stream != NONE)
        self._out = _copies_out(rank, named & (rank.stream == stream), gathers)

    def before(self, task: int) -> int | None:
        """The copy launched right before."""
        place = int(np.searchsorted(self._works, task)) - 1
        return self._at(place)

    def behind(self, task: int) -> int | None:
        """The copy that waits for it, or that is launched next."""
        out = self._out.get(task)
        return out if out is not None else self._at(int(np.searchsorted(self._works, task)) + 1)

    def _at(self, place: int) -> int | None:
        if not 0 <= place < len(self._works) or not self._serves[self._works[place]]:
            return None
        return int(self._works[place])


def _copies_out(rank: RankGraph, copies: Bools, gathers: Int64s) -> dict[int, int]:
    """The copy out of what each gather brought: the copies that wait for gathers, in the order of these."""
    chosen = set(gathers.tolist())
    waiting = [task for task in np.flatnonzero(copies).tolist() if chosen & set(rank.waits_on[task])]
    names = {rank.tasks.kernel[task] for task in waiting}
    out = [task for task in np.flatnonzero(copies).tolist() if rank.tasks.kernel[task] in names]
    first = [(gather, task) for gather, task in zip(gathers.tolist(), out, strict=False) if gather < task]
    if len(first) == len(gathers) == len(out):
        return dict(first)
    return {other: task for task in reversed(waiting) for other in rank.waits_on[task] if other in chosen}
