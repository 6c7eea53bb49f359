"""When programs launch their gathers: ahead of the compute that could hide them, or as it needs them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from zprof.analysis.intervals import Int64s
from zprof.replay.blocks import main_stream
from zprof.replay.graph import Graph, RankGraph, step_places
from zprof.replay.tasks import NONE

#: A gather that starts so much later than its launch and its stream allow was held by something else.
_HELD_NS = 50_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherLaunches:
    """Of the gathers of all ranks, how many come late for their unit.

    Attributes:
        at_once_ratio: Of those whose unit is known, whose compute is launched right behind them.
        held_ratio: Of all, which waited for compute although they were launched and their stream was free.
    """

    at_once_ratio: float
    held_ratio: float


def gather_launches(graph: Graph, rows: Collection[int]) -> GatherLaunches:
    """Look at the gathers in ``rows`` of the analysis' collectives."""
    at_once: list[bool] = []
    held: list[bool] = []
    for rank in graph.ranks:
        gathers = np.flatnonzero(np.isin(rank.tasks.row, list(rows)) & (rank.collective != NONE))
        at_once += _are_at_once(rank, gathers)
        held += _are_held(rank, gathers)
    return GatherLaunches(
        at_once_ratio=float(np.mean(at_once)) if at_once else 0.0,
        held_ratio=float(np.mean(held)) if held else 0.0,
    )


def run_beside_ratio(graph: Graph, rows: Collection[int]) -> float:
    """Return the share of the gathers' time in which compute that was launched behind all of them ran."""
    beside = whole = 0.0
    for rank in graph.ranks:
        main = main_stream(rank)
        mine = np.isin(rank.tasks.row, list(rows)) & (rank.collective != NONE)
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


def _are_at_once(rank: RankGraph, gathers: Int64s) -> Iterator[bool]:
    consumers: dict[int, int] = {}
    wanted = set(gathers.tolist())
    for at, waits in enumerate(rank.waits_on):
        if rank.collective[at] == NONE:
            for other in wanted.intersection(waits):
                consumers.setdefault(other, at)
    for gather, consumer in consumers.items():
        between = rank.stream[gather + 1 : consumer] == rank.stream[consumer]
        yield not (between & (rank.collective[gather + 1 : consumer] == NONE)).any()


def _are_held(rank: RankGraph, gathers: Int64s) -> Iterator[bool]:
    """Whether a gather, or the copy that fills its buffer, waits for compute."""
    main = main_stream(rank)
    ended: dict[int, float] = {}
    held = np.zeros(len(rank.tasks), dtype=np.bool_)
    for at in np.flatnonzero(rank.stream != NONE).tolist():
        stream = int(rank.stream[at])
        free = max(rank.tasks.call[at, 0] + rank.pick_up_ns, ended.get(stream, 0.0))
        compute = [rank.tasks.work[on, 1] for on in rank.waits_on[at] if rank.stream[on] == main]
        held[at] = bool(compute) and max(compute) > free + _HELD_NS
        ended[stream] = float(rank.tasks.work[at, 1])
    for gather in gathers.tolist():
        filled = int(rank.copy_in[gather])
        yield bool(held[gather] or (filled != NONE and held[filled]))
