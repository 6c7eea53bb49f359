"""Ranks of a replay made by hand."""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.columns import Texts
from zprof.step.tasks import NONE, Graph, RankGraph, RankTasks


def replay_rank(
    kernels: Sequence[str],
    streams: Sequence[int],
    work: np.ndarray,
    *,
    number: int = 0,
    waits: Sequence[tuple[int, ...]] | None = None,
    collectives: np.ndarray | None = None,
    rows: np.ndarray | None = None,
    steps: np.ndarray | None = None,
    gaps_ns: np.ndarray | None = None,
    blocks_on: np.ndarray | None = None,
    held: tuple[int, ...] = (),
) -> RankGraph:
    """Return a rank whose work ran from and until ``work``, a row of two instants in ns for each kernel.

    ``collectives`` are instances, which are rows of the table as well where ``rows`` does not say others.
    """
    count = len(kernels)
    none = np.full(count, NONE, dtype=np.int64)
    collective = none if collectives is None else collectives
    stream = np.array(streams, dtype=np.int64)
    tasks = RankTasks(
        rank=number,
        thread=np.ones(count, dtype=np.int64),
        name=Texts.of(("cudaLaunchKernel",) * count),
        blocks=np.zeros(count, dtype=np.bool_),
        call=np.zeros((count, 2)),
        work=work,
        stream=stream,
        kernel=Texts.of(kernels),
        row=collective if rows is None else rows,
        step=np.zeros(count, dtype=np.int64) if steps is None else steps,
    )
    return RankGraph(
        tasks=tasks,
        gap_ns=np.zeros(count) if gaps_ns is None else gaps_ns,
        call_ns=np.zeros(count),
        blocks_on=none if blocks_on is None else blocks_on,
        returns_ns=np.zeros(count),
        stream=stream,
        work_ns=work[:, 1] - work[:, 0],
        waits_on=((),) * count if waits is None else tuple(waits),
        held=held,
        lag_ns=np.zeros(count),
        collective=collective,
        copy_in=none,
        copy_out=none,
        first_step=0,
        begin_ns=0.0,
        host_begin_ns=0.0,
        tail_ns=0.0,
        pick_up_ns=0.0,
    )


def graph_of(
    *ranks: RankGraph,
    transfer_ns: Sequence[float] | np.ndarray = (),
    lane: int | np.ndarray = NONE,
    measured_ns: object = None,
) -> Graph:
    """Return the graph of such ranks; a collective has as many members as there are ranks with its number."""
    count = len(transfer_ns)
    measured = np.zeros((len(ranks), 1)) if measured_ns is None else np.array(measured_ns)
    members = [sum(number in rank.collective for rank in ranks) for number in range(count)]
    return Graph(
        ranks=ranks,
        transfer_ns=np.array(transfer_ns, dtype=np.float64),
        members=np.array(members, dtype=np.int64),
        lane=np.zeros(count, dtype=np.int64) + lane,
        measured_ns=measured,
        steps=measured.shape[1],
        origin_ns=0,
    )
