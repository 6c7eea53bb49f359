"""Graphs made by hand: when each rank ends its step follows from the definition of a step."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.replay_ranks import graph_of, replay_rank
from zprof.analysis.columns import Texts
from zprof.model.collectives import CollectiveKind
from zprof.step.added_messages import shard_within_hosts, split_units
from zprof.step.edits import (
    drop_collectives,
    even_out_ranks,
    even_out_steps,
    scale_transfers,
    scale_work,
    shorten_collectives,
    unblock_calls,
)
from zprof.step.message_sizes import merge_units
from zprof.step.play import ReplayDeadlock, play_graph
from zprof.step.structure import find_blocks, read_messages
from zprof.step.tasks import NONE, Graph, RankGraph

COMPUTE, COMM = 7, 20
MS = 1e6
Tasks = list[tuple[str, int, float]]
ByTask = dict[int, int]


def rank_of(
    number: int,
    tasks: Tasks,
    *,
    waits: dict[int, tuple[int, ...]] | None = None,
    rows: ByTask | None = None,
    gaps: dict[int, float] | None = None,
    blocks: ByTask | None = None,
) -> RankGraph:
    """A rank whose tasks are (name, stream, milliseconds of work); ``rows`` are collectives by their row."""
    count = len(tasks)
    names = tuple(name for name, _, _ in tasks)
    collective = np.array([(rows or {}).get(at, NONE) for at in range(count)])
    rank = replay_rank(
        names,
        [stream for _, stream, _ in tasks],
        np.array([(0.0, ms * MS) for _, _, ms in tasks]),
        number=number,
        waits=[(waits or {}).get(at, ()) for at in range(count)],
        collectives=collective,
        rows=collective * 10 + number * (collective != NONE),
        gaps_ns=np.array([(gaps or {}).get(at, 0.0) * MS for at in range(count)]),
        blocks_on=np.array([(blocks or {}).get(at, NONE) for at in range(count)]),
    )
    return replace(rank, tasks=replace(rank.tasks, name=Texts.of(names)))


def ends_ms(graph: Graph) -> list[float]:
    return [float(end) / MS for end in play_graph(graph)[:, -1]]


def gather_then_compute(*before_ms: float) -> Graph:
    """Ranks that compute, gather what follows, and compute with it: nothing of it overlaps."""
    ranks = [
        rank_of(
            number,
            [("gemm", COMPUTE, each), ("gather", COMM, 3.0), ("gemm", COMPUTE, 5.0)],
            waits={1: (0,), 2: (1,)},
            rows={1: 0},
        )
        for number, each in enumerate(before_ms)
    ]
    return graph_of(*ranks, transfer_ns=[3.0 * MS])


@pytest.mark.parametrize(
    ("before_ms", "edit", "end_ms"),
    [
        # A collective ends once its last rank is there.
        ((1.0, 4.0), lambda graph: graph, 12.0),
        ((1.0, 4.0), even_out_ranks, 9.0),
        ((1.0, 4.0), lambda graph: even_out_ranks(graph, [0]), 12.0),
        # Changed transfers move all that waits for them.
        ((1.0, 1.0), lambda graph: graph, 9.0),
        ((1.0, 1.0), lambda graph: scale_transfers(graph, {0: 1 / 3, 1: 1 / 3}), 7.0),
        ((1.0, 1.0), lambda graph: drop_collectives(graph, frozenset({0, 1})), 6.0),
        ((1.0, 1.0), lambda graph: scale_work(graph, lambda rank: np.full(3, 2.0)), 15.0),
        ((1.0, 1.0), lambda graph: shorten_collectives(graph, {0: 2.0 * MS, 1: 2.0 * MS}), 7.0),
    ],
)
def test_edits_of_a_gather_and_its_compute(
    before_ms: tuple[float, ...], edit: Callable[[Graph], Graph], end_ms: float
) -> None:
    assert ends_ms(edit(gather_then_compute(*before_ms))) == [end_ms, end_ms]


FIRST = np.array([[True], [False]])


def test_a_stall_goes_from_where_it_is() -> None:
    """The host of the first rank stalls for 8 ms before its second launch, and hides 2 ms of it."""
    tasks = [("gemm", COMPUTE, 3.0)] * 3
    stalled = rank_of(0, tasks, gaps={0: 1.0, 1: 9.0, 2: 1.0})
    graph = graph_of(stalled, rank_of(1, tasks, gaps={0: 1.0, 1: 1.0, 2: 1.0}))
    assert ends_ms(graph) == [16.0, 10.0]
    assert ends_ms(even_out_steps(graph, FIRST)) == [10.0, 10.0]


@pytest.mark.filterwarnings("error")
def test_ranks_are_made_even_by_the_median_of_each_kernel_else_by_their_sums() -> None:
    """A rank that is slower nowhere, though it alone has both kernels, stays as it is."""
    times_ms = ((3.0, 0.0), (0.0, 3.0), (3.0, 3.0))
    ranks = [rank_of(n, [("gemm", COMPUTE, each) for each in both]) for n, both in enumerate(times_ms)]
    assert ends_ms(even_out_steps(graph_of(*ranks), np.array([[False], [False], [True]]))) == [3.0, 3.0, 6.0]
    other = graph_of(rank_of(0, [("gemm", COMPUTE, 8.0)]), rank_of(1, [("gemm", COMPUTE, 2.0)] * 2))
    assert ends_ms(even_out_steps(other, FIRST)) == [4.0, 4.0]


@pytest.mark.parametrize(("lane", "end"), [(0, 9.0), (NONE, 5.0)])
def test_a_communicator_runs_one_operation_at_a_time(lane: int, end: float) -> None:
    tasks = [("gather", COMM, 4.0), ("reduce", COMM + 1, 5.0), ("gemm", COMPUTE, 1.0)]
    ranks = [rank_of(number, tasks, waits={2: (0,)}, rows={0: 0, 1: 1}) for number in range(2)]
    assert ends_ms(graph_of(*ranks, transfer_ns=[4.0 * MS, 5.0 * MS], lane=lane)) == [end, end]


def test_a_communicator_keeps_its_order_if_a_rank_lacks_an_operation() -> None:
    """The lost one is in the middle, so the other ranks cannot run what follows before it."""
    tasks = [(name, COMM, 2.0) for name in "abc"]
    ranks = [rank_of(number, tasks, rows={0: 0, 1: 1, 2: 2}) for number in (1, 2)]
    lacking = rank_of(0, [tasks[0], ("b", COMM, 0.0), tasks[2]], rows={0: 0, 2: 2})
    assert ends_ms(graph_of(lacking, *ranks, transfer_ns=[2.0 * MS] * 3, lane=0)) == [6.0, 6.0, 6.0]


def test_a_blocking_call_keeps_the_host_from_launching_ahead() -> None:
    tasks = [("gemm", COMPUTE, 5.0), ("sync", NONE, 0.0), ("gemm", COMPUTE, 2.0)]
    graph = graph_of(rank_of(0, tasks, gaps={2: 3.0}, blocks={1: 0}))
    assert ends_ms(graph) == [10.0]
    assert ends_ms(unblock_calls(graph, lambda each: each.blocks_on != NONE)) == [7.0]


def test_ranks_that_wait_for_each_other_in_a_circle_are_stuck() -> None:
    first = rank_of(0, [("a", COMM, 1.0), ("b", COMM, 1.0)], rows={0: 0, 1: 1})
    second = rank_of(1, [("b", COMM, 1.0), ("a", COMM, 1.0)], rows={0: 1, 1: 0})
    with pytest.raises(ReplayDeadlock):
        play_graph(graph_of(first, second, transfer_ns=[1.0 * MS, 1.0 * MS]))


KERNELS = ("norm", "gemm", "flash", "gelu")
GATHER, REDUCE = CollectiveKind.ALL_GATHER.value, CollectiveKind.REDUCE_SCATTER.value


def gathered_kernels(number: int, blocks: int) -> RankGraph:
    """A forward over blocks, each kernel of which is a unit: 1 ms to gather it, 1 ms to compute it."""
    tasks: Tasks = [("embedding", COMPUTE, 1.0)]
    for _ in range(blocks):
        for kernel in KERNELS:
            tasks += [("gather", COMM, 1.0), (kernel, COMPUTE, 1.0)]
    waits = {at: (at - 1,) for at in range(1, len(tasks))}  # nothing is gathered ahead
    return rank_of(number, tasks, waits=waits, rows={at: at // 2 for at in range(1, len(tasks), 2)})


def test_merged_units_of_a_block_save_their_latency_but_no_bytes() -> None:
    """Three gathers of 3.25 ms, each before the 4 ms of its block; a block is what repeats."""
    ranks = [gathered_kernels(number, 3) for number in range(2)]
    blocks = find_blocks(ranks[0], ()).tolist()
    assert [block for block in blocks if block != NONE] == [0] * 4 + [1] * 4 + [2] * 4
    kinds, groups = (Texts.of([text] * 120) for text in (GATHER, "0,1"))
    graph = graph_of(*ranks, transfer_ns=[1.0 * MS] * 12)
    merged = merge_units(
        graph,
        lambda rank: read_messages(rank, kinds, groups, np.ones(len(kinds), dtype=bool), ()),
        lambda row: 0.25 * MS,
        (),
    )
    assert merged is not None
    assert ends_ms(graph) == [25.0, 25.0]
    assert ends_ms(merged) == [1 + 3 * (3.25 + 4)] * 2


def test_a_whole_model_that_is_split_is_gathered_beside_its_blocks() -> None:
    """Head and embedding multiply nothing to tell their bytes by.

    Of the first block's gather 2 ms show less the embedding's compute.  Reductions of 2 ms run under 3 ms of
    the next block, the last under 1 ms.
    """
    forward = ["gather", "embedding", *KERNELS * 4, "head", "loss"]
    back = [f"{kernel} backward" for _ in range(4) for kernel in KERNELS[:3]]
    names = [*forward, *back, "embedding backward", "reduce", "update"]
    took = {"gather": 8.0, "reduce": 8.0, "head": 0.0, "loss": 0.0}
    tasks = [(name, COMM if name in ("gather", "reduce") else COMPUTE, took.get(name, 1.0)) for name in names]
    at = names.index("reduce")
    waits = {1: (0,), at: (at - 1,), at + 1: (at,)}
    graph = graph_of(rank_of(0, tasks, waits=waits, rows={0: 0, at: 1}), transfer_ns=[8.0 * MS, 8.0 * MS])
    kinds, groups = Texts.of([GATHER] * 10 + [REDUCE]), Texts.of(["0,1"] * 11)
    split = split_units(
        graph,
        lambda each: read_messages(each, kinds, groups, np.ones(len(kinds), dtype=bool), ()),
        lambda row: 0.0,
        (),
        again=False,
    )
    assert split is not None
    compute = sum(ms for _, _, ms in tasks) - 16
    assert ends_ms(graph) == [compute + 16]
    assert ends_ms(split) == [compute + 1 + 1]


def test_a_dropped_gather_takes_its_copies_and_hands_on_the_wait_that_it_hid() -> None:
    """The copy out of the gather also waits for the reduction, and the compute for the copy."""
    tasks = [("reduce", 2, 5.0), ("gather", 2, 4.0), ("copy", 1, 1.0), ("compute", 1, 2.0)]
    rank = rank_of(0, tasks, waits={2: (0, 1)}, rows={0: 0, 1: 1})
    graph = graph_of(replace(rank, copy_out=np.array([NONE, 2, NONE, NONE])), transfer_ns=[0.0, 0.0])
    assert ends_ms(graph) == [12.0]
    assert ends_ms(drop_collectives(graph, frozenset([10]))) == [7.0]


def test_a_dropped_reduction_leaves_the_cost_of_its_copies_if_gradients_are_added_up() -> None:
    tasks = [("compute", 1, 3.0), ("copy", 3, 1.0), ("reduce", 2, 5.0), ("after", 1, 1.0)]
    rank = rank_of(0, tasks, waits={1: (0,), 2: (1,), 3: (2,)}, rows={2: 0})
    graph = graph_of(replace(rank, copy_in=np.array([NONE, NONE, 1, NONE])), transfer_ns=[0.0])
    assert ends_ms(graph) == [10.0]
    assert ends_ms(drop_collectives(graph, frozenset([0]))) == [4.0]
    assert ends_ms(drop_collectives(graph, frozenset([0]), keeps_copies=True)) == [5.0]


def test_shards_within_a_host_are_reduced_between_hosts_as_well() -> None:
    tasks = [("gemm", COMPUTE, 1.0), ("reduce", COMM, 4.0), ("update", COMPUTE, 1.0)]
    ranks = [rank_of(number, tasks, waits={1: (0,), 2: (1,)}, rows={1: 0}) for number in range(2)]
    graph = graph_of(*ranks, transfer_ns=[4.0 * MS])
    within = shard_within_hosts(graph, {0: 0.25, 1: 0.25}, {0: 2.0 * MS, 1: 2.0 * MS}, {0: 0, 1: 0})
    assert (ends_ms(graph), ends_ms(within)) == ([6.0, 6.0], [5.0, 5.0])
