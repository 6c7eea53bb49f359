"""Find the block and the dependencies of each collective of a rank, and the compute left to hide a gather."""

from collections.abc import Collection
from itertools import pairwise

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Texts
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind
from zprof.step.structure import find_blocks, is_compute, main_stream_of_rank
from zprof.step.tasks import NONE, Bools, Graph, RankGraph, mark_rows, step_places

_GATHER = CollectiveKind.ALL_GATHER.value


class RankMessages(Struct, frozen=True, kw_only=True):
    """The collectives of one rank in host order.

    Attributes:
        at: The task of each collective.
        kind: The kind of each collective; ``group`` is its communicator.
        block: The block pass of each collective, ``NONE`` outside of blocks.
        unit: The unit of each collective; gathers and other kinds are numbered separately. Gathers launched
            in a row that the same compute needs are pieces of one unit, as are reductions launched in a row.
        ahead: Number of earlier units that are not needed yet when this gather is launched; else 0.
        needed: The first compute task that needs each gather.
        blocks: The block pass of each task of the rank, including compute.
    """

    at: Int64s
    kind: tuple[str, ...]
    group: tuple[str, ...]
    block: Int64s
    unit: Int64s
    ahead: Int64s
    needed: Int64s
    blocks: Int64s

    @property
    def gathers(self) -> Int64s:
        """Indices of the gathers."""
        return np.flatnonzero(np.array([kind == _GATHER for kind in self.kind], dtype=np.bool_))

    @property
    def units_per_block(self) -> float:
        """Median number of units per block pass, counted by the tasks that need gathers; 0.0 if none."""
        gathers = self.gathers
        blocks = self.block[gathers]
        counts = [
            len(np.unique(self.needed[gathers[blocks == block]]))
            for block in np.unique(blocks[blocks != NONE]).tolist()
        ]
        return float(np.median(counts)) if counts else 0.0

    @property
    def gathers_per_block(self) -> float:
        """Median number of gathers per block pass, pieces of units included; 0.0 if none."""
        blocks = self.block[self.gathers]
        counts = np.unique(blocks[blocks != NONE], return_counts=True)[1]
        return float(np.median(counts)) if len(counts) else 0.0


def read_messages(rank: RankGraph, kinds: Texts, groups: Texts, copies: Collection[str]) -> RankMessages:
    """Return the collectives of a rank with their blocks.

    Args:
        rank: The rank.
        kinds: The kind of each row of the analysis' collectives.
        groups: The communicator of each row.
        copies: Names of kernels that only copy into and out of communication buffers.
    """
    at = np.flatnonzero(rank.collective != NONE)
    kind = tuple(kinds.at(rank.tasks.row[at]))
    works = is_compute(rank, copies)
    blocks = find_blocks(rank, copies)
    computing = np.flatnonzero(works)
    gathers = np.array([each == _GATHER for each in kind], dtype=np.bool_)
    needed = _first_needed_by(rank, at, gathers, computing)
    before = computing[np.maximum(0, np.searchsorted(computing, at) - 1)] if len(computing) else at
    served = np.where(gathers, needed, before)
    unit = np.zeros(len(at), dtype=np.int64)
    for chosen in (gathers, ~gathers):
        keys = np.stack((served, before))[:, chosen]
        unit[chosen] = np.cumsum((np.diff(keys, prepend=keys[:, :1]) != 0).any(axis=0))
    return RankMessages(
        at=at,
        kind=kind,
        group=tuple(groups.at(rank.tasks.row[at])),
        block=blocks[served],
        unit=unit,
        ahead=np.where(gathers, _count_units_ahead(at, gathers, needed, unit), 0),
        needed=needed,
        blocks=blocks,
    )


def _count_units_ahead(at: Int64s, gathers: Bools, needed: Int64s, unit: Int64s) -> Int64s:
    """Return the number of gathered units between the one in use at each launch and its own."""
    units = unit[gathers]
    if not len(units):
        return np.zeros(len(at), dtype=np.int64)
    used = np.searchsorted(np.maximum.accumulate(needed[gathers]), at)
    return np.maximum(0, unit - units[np.minimum(used, len(units) - 1)])


def _first_needed_by(rank: RankGraph, at: Int64s, gathers: Bools, computing: Int64s) -> Int64s:
    """Return the first compute task that needs each collective: the first that waits, else the next.

    A gather without a waiter is a piece of the next one if no compute is launched between them: whoever waits
    for the last piece on a stream waits for all.
    """
    waiter: dict[int, int] = {}
    chosen = set(at[gathers].tolist())
    stream = main_stream_of_rank(rank)
    for task in np.flatnonzero(rank.stream == stream).tolist():
        for other in rank.waits_on[task]:
            if other in chosen and task > other:
                waiter.setdefault(other, task)
    launched = at[gathers]
    following = np.searchsorted(computing, launched).tolist()
    pieces = list(zip(launched.tolist(), rank.stream[launched].tolist(), following, strict=True))
    for (gather, *row), (other, *next_row) in reversed(list(pairwise(pieces))):
        if gather not in waiter and other in waiter and row == next_row:
            waiter[gather] = waiter[other]
    first = np.array([waiter.get(task, task) for task in at.tolist()], dtype=np.int64)
    place = np.searchsorted(computing, first, side="left")
    if not len(computing):
        return at
    return computing[np.minimum(place, len(computing) - 1)]


class PartnerCopies:
    """The copies that belong to collectives: into the buffer before, and out of it after."""

    def __init__(self, rank: RankGraph, gathers: Int64s, copies: Collection[str]) -> None:
        stream = main_stream_of_rank(rank)
        named = rank.tasks.kernel.match(copies.__contains__)
        elsewhere = (rank.stream != NONE) & (rank.stream != stream)
        self._serves = (named | elsewhere) & (rank.collective == NONE)
        self._works = np.flatnonzero(rank.stream != NONE)
        self._out = _pair_copies_out(rank, named & (rank.stream == stream), gathers)
        self._into = {copy for task in gathers.tolist() if (copy := self.before(task)) is not None}

    def before(self, task: int) -> int | None:
        """Return the copy launched right before the collective, None if there is none."""
        place = int(np.searchsorted(self._works, task)) - 1
        return self._at(place)

    def behind(self, task: int) -> int | None:
        """Return the copy that waits for the collective or is launched next, None if there is none."""
        out = self._out.get(task)
        if out is None:
            out = self._at(int(np.searchsorted(self._works, task)) + 1)
            return None if out in self._into else out  # the copy into the next gather's buffer
        return out

    def _at(self, place: int) -> int | None:
        if not 0 <= place < len(self._works) or not self._serves[self._works[place]]:
            return None
        return int(self._works[place])


def _pair_copies_out(rank: RankGraph, copies: Bools, gathers: Int64s) -> dict[int, int]:
    """Return the copy out of each gather's buffer; paired in order if their numbers are equal."""
    chosen = set(gathers.tolist())
    waiting = [task for task in np.flatnonzero(copies).tolist() if chosen & set(rank.waits_on[task])]
    names = {rank.tasks.kernel[task] for task in waiting}
    out = [task for task in np.flatnonzero(copies).tolist() if rank.tasks.kernel[task] in names]
    first = [(gather, task) for gather, task in zip(gathers.tolist(), out, strict=False) if gather < task]
    if len(first) == len(gathers) == len(out):
        return dict(first)
    return {other: task for task in reversed(waiting) for other in rank.waits_on[task] if other in chosen}


def late_gathers_ratio(graph: Graph, rows: Collection[int]) -> float | None:
    """Return the share of the gathers in ``rows`` that depend on the last compute before their use.

    The dependencies of a gather are followed back, through its stream and its waits, to compute kernels. A
    gather is late if one of them is the last before the kernel that needs it, so that no compute can hide it.
    Prefetched gathers depend on earlier kernels. The first gathers of a step do not count; None if there are
    no others.
    """
    chosen = frozenset(rows)
    late = count = 0
    for rank in graph.ranks:
        gathers = np.flatnonzero(mark_rows(rank, chosen))
        users = _first_users(rank, gathers)
        on_compute = rank.stream == main_stream_of_rank(rank)
        worked_ns = np.cumsum(np.where(on_compute, rank.work_ns, 0.0))
        # The compute time that must pass before each task, by its waits and its stream; -1 if none.
        needed_ns = np.where(on_compute & (rank.stream != NONE), worked_ns, -1.0).tolist()
        last: dict[int, int] = {}
        for at in np.flatnonzero((rank.stream != NONE) & ~on_compute).tolist():
            stream = int(rank.stream[at])
            others = (*rank.waits_on[at], last.get(stream, NONE))
            needed_ns[at] = max((needed_ns[other] for other in others if other != NONE), default=-1.0)
            last[stream] = at
        needed_ns = np.array(needed_ns)
        steps = step_places(rank)
        opening = {int(steps[user]): user for user in sorted(users.values(), reverse=True)}
        for gather, user in users.items():
            if user != opening[int(steps[user])]:
                count += 1
                late += worked_ns[user - 1] <= needed_ns[gather]
    return late / count if count else None


def held_gathers_ratio(graph: Graph, rows: Collection[int]) -> float:
    """Return the share of the gathers in ``rows`` that started just as an unrelated kernel ended."""
    chosen = frozenset(rows)
    count = sum(row in chosen for rank in graph.ranks for row in rank.tasks.row.tolist())
    held = sum(int(rank.tasks.row[at]) in chosen for rank in graph.ranks for at in rank.held)
    return held / count if count else 0.0


def run_beside_ratio(graph: Graph, rows: Collection[int]) -> float:
    """Return the share of the gather time overlapped by compute that was launched after the gathers."""
    chosen = frozenset(rows)
    beside = whole = 0.0
    for rank in graph.ranks:
        main = main_stream_of_rank(rank)
        mine = mark_rows(rank, chosen)
        places = step_places(rank)
        for step in range(graph.steps):
            gathers = np.flatnonzero(mine & (places == step))
            if not len(gathers):
                continue
            begin, end = rank.tasks.work[gathers, 0].min(), rank.tasks.work[gathers, 1].max()
            later = np.flatnonzero(rank.stream == main)
            later = later[later > gathers[-1]]
            work = np.clip(rank.tasks.work[later], begin, end)
            beside += float((work[:, 1] - work[:, 0]).sum())
            whole += float(end - begin)
    return beside / whole if whole else 0.0


def _first_users(rank: RankGraph, gathers: Int64s) -> dict[int, int]:
    """Return the first task that waits for each gather; gathers without a waiter are omitted."""
    wanted = set(gathers.tolist())
    users: dict[int, int] = {}
    for at, (waits, number) in enumerate(zip(rank.waits_on, rank.collective.tolist(), strict=True)):
        if waits and number == NONE:
            for gather in wanted.intersection(waits):
                users.setdefault(gather, at)
    return users
