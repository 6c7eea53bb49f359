"""Graphs made by hand: when each rank ends its step follows from the definition of a step."""

from dataclasses import replace

import numpy as np
import pytest

from zprof.replay.edits import (
    drop_collectives,
    even_out,
    launch_earlier,
    scale_transfers,
    scale_work,
    unblock,
)
from zprof.replay.graph import Graph, RankGraph
from zprof.replay.play import Stuck, play
from zprof.replay.tasks import NONE, RankTasks

COMPUTE, COMM = 7, 20
MS = 1e6


def rank_of(
    number: int,
    tasks: list[tuple[str, int, float]],
    *,
    waits: dict[int, tuple[int, ...]] | None = None,
    rows: dict[int, int] | None = None,
    gaps: dict[int, float] | None = None,
    blocks: dict[int, int] | None = None,
) -> RankGraph:
    """A rank whose tasks are (name, stream, milliseconds of work); ``rows`` are collectives by their row."""
    count = len(tasks)
    collective = np.array([(rows or {}).get(at, NONE) for at in range(count)])
    return RankGraph(
        tasks=RankTasks(
            rank=number,
            thread=np.zeros(count, dtype=np.int64),
            name=tuple(name for name, _, _ in tasks),
            blocks=np.zeros(count, dtype=np.bool_),
            call=np.zeros((count, 2)),
            work=np.zeros((count, 2)),
            stream=np.array([stream for _, stream, _ in tasks]),
            kernel=tuple(name for name, _, _ in tasks),
            row=collective * 10 + number * (collective != NONE),
            step=np.zeros(count, dtype=np.int64),
        ),
        gap_ns=np.array([(gaps or {}).get(at, 0.0) * MS for at in range(count)]),
        call_ns=np.zeros(count),
        blocks_on=np.array([(blocks or {}).get(at, NONE) for at in range(count)]),
        returns_ns=np.zeros(count),
        stream=np.array([stream for _, stream, _ in tasks]),
        work_ns=np.array([ms * MS for _, _, ms in tasks]),
        waits_on=tuple((waits or {}).get(at, ()) for at in range(count)),
        held=(),
        lag_ns=np.zeros(count),
        collective=collective,
        copy_in=np.full(count, NONE),
        copy_out=np.full(count, NONE),
        first_step=0,
        begin_ns=0.0,
        host_begin_ns=0.0,
        tail_ns=0.0,
        pick_up_ns=0.0,
    )


def graph_of(*ranks: RankGraph, transfer_ms: tuple[float, ...] = (), lane: int = NONE) -> Graph:
    members = [sum(number in rank.collective for rank in ranks) for number in range(len(transfer_ms))]
    return Graph(
        ranks=ranks,
        transfer_ns=np.array(transfer_ms) * MS,
        members=np.array(members, dtype=np.int64),
        lane=np.full(len(transfer_ms), lane),
        measured_ns=np.zeros((len(ranks), 1)),
        steps=1,
        origin_ns=0,
    )


def ends_ms(graph: Graph) -> list[float]:
    return [float(end) / MS for end in play(graph)[:, -1]]


def gather_then_compute(number: int, before_ms: float) -> RankGraph:
    """Compute, gather what follows, compute with it: nothing of it overlaps."""
    tasks = [("gemm", COMPUTE, before_ms), ("gather", COMM, 3.0), ("gemm", COMPUTE, 5.0)]
    return rank_of(number, tasks, waits={1: (0,), 2: (1,)}, rows={1: 0})


def test_a_collective_ends_once_its_last_rank_is_there() -> None:
    graph = graph_of(gather_then_compute(0, 1.0), gather_then_compute(1, 4.0), transfer_ms=(3.0,))
    assert ends_ms(graph) == [12.0, 12.0]
    assert ends_ms(even_out(graph)) == [9.0, 9.0]
    assert ends_ms(even_out(graph, [0])) == [12.0, 12.0]


def test_changed_transfers_move_all_that_waits_for_them() -> None:
    graph = graph_of(gather_then_compute(0, 1.0), gather_then_compute(1, 1.0), transfer_ms=(3.0,))
    assert ends_ms(graph) == [9.0, 9.0]
    assert ends_ms(scale_transfers(graph, {0: 1 / 3, 1: 1 / 3})) == [7.0, 7.0]
    assert ends_ms(drop_collectives(graph, frozenset({0, 1}))) == [6.0, 6.0]
    assert ends_ms(scale_work(graph, lambda rank: np.full(3, 2.0))) == [15.0, 15.0]


@pytest.mark.parametrize(("lane", "end"), [(0, 9.0), (NONE, 5.0)])
def test_a_communicator_runs_one_operation_at_a_time(lane: int, end: float) -> None:
    tasks = [("gather", COMM, 4.0), ("reduce", COMM + 1, 5.0), ("gemm", COMPUTE, 1.0)]
    rank = rank_of(0, tasks, waits={2: (0,)}, rows={0: 0, 1: 1})
    graph = graph_of(
        rank, replace(rank, tasks=replace(rank.tasks, rank=1)), transfer_ms=(4.0, 5.0), lane=lane
    )
    assert ends_ms(graph) == [end, end]


def test_a_blocking_call_keeps_the_host_from_launching_ahead() -> None:
    tasks = [("gemm", COMPUTE, 5.0), ("sync", NONE, 0.0), ("gemm", COMPUTE, 2.0)]
    rank = rank_of(0, tasks, gaps={2: 3.0}, blocks={1: 0})
    assert ends_ms(graph_of(rank)) == [10.0]
    free = unblock(graph_of(rank), lambda each: each.blocks_on != NONE)
    assert ends_ms(free) == [7.0]


def test_a_gather_launched_ahead_hides_under_the_compute_before_it() -> None:
    tasks = [("g0", COMM, 2.0), ("gemm", COMPUTE, 4.0), ("g1", COMM, 2.0), ("gemm", COMPUTE, 4.0)]
    rank = rank_of(0, tasks, waits={1: (0,), 2: (1,), 3: (2,)}, rows={0: 0, 2: 1})
    graph = graph_of(rank, transfer_ms=(2.0, 2.0))
    assert ends_ms(graph) == [12.0]
    assert ends_ms(launch_earlier(graph, frozenset({0, 10}))) == [10.0]


def test_ranks_that_wait_for_each_other_in_a_circle_are_stuck() -> None:
    first = rank_of(0, [("a", COMM, 1.0), ("b", COMM, 1.0)], rows={0: 0, 1: 1})
    second = rank_of(1, [("b", COMM, 1.0), ("a", COMM, 1.0)], rows={0: 1, 1: 0})
    with pytest.raises(Stuck):
        play(graph_of(first, second, transfer_ms=(1.0, 1.0)))


def test_a_dropped_gather_takes_its_copies_and_hands_on_the_wait_that_it_hid() -> None:
    # reduction, gather with its copy out, compute behind the copy: the copy also waits for the reduction
    tasks = [("reduce", 2, 5.0), ("gather", 2, 4.0), ("copy", 1, 1.0), ("compute", 1, 2.0)]
    rank = rank_of(0, tasks, waits={2: (0, 1)}, rows={0: 0, 1: 1})
    rank = replace(rank, copy_out=np.array([NONE, 2, NONE, NONE]))
    graph = graph_of(rank, transfer_ms=(0.0, 0.0))
    assert ends_ms(graph) == [12.0]
    row = int(rank.tasks.row[1])
    assert ends_ms(drop_collectives(graph, frozenset([row]))) == [7.0]


def test_a_dropped_reduction_leaves_the_cost_of_its_copies_if_gradients_are_added_up() -> None:
    tasks = [("compute", 1, 3.0), ("copy", 3, 1.0), ("reduce", 2, 5.0), ("after", 1, 1.0)]
    rank = rank_of(0, tasks, waits={1: (0,), 2: (1,), 3: (2,)}, rows={2: 0})
    rank = replace(rank, copy_in=np.array([NONE, NONE, 1, NONE]))
    graph = graph_of(rank, transfer_ms=(0.0,))
    assert ends_ms(graph) == [10.0]
    row = frozenset([int(rank.tasks.row[2])])
    assert ends_ms(drop_collectives(graph, row)) == [4.0]
    assert ends_ms(drop_collectives(graph, row, keeps_copies=True)) == [5.0]
