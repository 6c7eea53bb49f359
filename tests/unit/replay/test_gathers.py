"""Which gathers start too late to be hidden, and what launching them one unit earlier does."""

import numpy as np
import pytest

from tests.support.replay_ranks import replay_rank
from zprof.replay.edits import launch_earlier
from zprof.replay.graph import Graph
from zprof.replay.messages import late_gathers_ratio
from zprof.replay.play import play_graph
from zprof.replay.tasks import NONE

MS = 1e6
COMPUTE, LINK = 7, 20


def units(count: int, *, ahead: int, messages: int = 1, gather_ms: float = 4.0) -> Graph:
    """Gather ``count`` units in ``messages`` each, compute 10 ms with each; gather ``ahead`` units early.

    A gather waits for the compute that is ``ahead + 1`` units before its own, as far as there is one.
    """
    kernels: list[str] = []
    waits: list[tuple[int, ...]] = []
    work: list[tuple[float, float]] = []
    computed: list[int] = []
    link = device = 0.0
    for unit in range(count):
        gathers = []
        for _ in range(messages):
            before = computed[unit - ahead - 1 : unit - ahead] if unit > ahead else []
            begin = max([link, *(work[at][1] for at in before)])
            link = begin + gather_ms * MS / messages
            gathers.append(len(work))
            kernels.append("ncclDevKernel_AllGather_RING_LL")
            waits.append(tuple(before))
            work.append((begin, link))
        begin = max(link, device)
        device = begin + 10 * MS
        computed.append(len(work))
        kernels.append("gemm")
        waits.append(tuple(gathers))
        work.append((begin, device))
    return _graph(kernels, waits, np.array(work))


def _graph(kernels: list[str], waits: list[tuple[int, ...]], work: np.ndarray) -> Graph:
    is_gather = np.array([name.startswith("nccl") for name in kernels])
    collective = np.where(is_gather, np.cumsum(is_gather) - 1, NONE)
    streams = np.where(is_gather, LINK, COMPUTE).tolist()
    rank = replay_rank(kernels, streams, work, waits=waits, collectives=collective)
    gathers = int(is_gather.sum())
    return Graph(
        ranks=(rank,), transfer_ns=(work[:, 1] - work[:, 0])[is_gather],
        members=np.ones(gathers, dtype=np.int64), lane=np.zeros(gathers, dtype=np.int64),
        measured_ns=np.array([[work[-1, 1]]]), steps=1, origin_ns=0,
    )  # fmt: skip


def rows(graph: Graph) -> frozenset[int]:
    return frozenset(range(len(graph.members)))


@pytest.mark.parametrize("messages", [1, 2])
def test_gathers_behind_the_compute_before_theirs_are_late(messages: int) -> None:
    graph = units(6, ahead=0, messages=messages)
    assert late_gathers_ratio(graph, rows(graph)) == 1.0


@pytest.mark.parametrize("gather_ms", [4.0, 25.0])
def test_prefetched_gathers_are_not_late_however_slow_the_link(gather_ms: float) -> None:
    graph = units(6, ahead=1, gather_ms=gather_ms)
    assert late_gathers_ratio(graph, rows(graph)) == 0.0


@pytest.mark.parametrize("messages", [1, 2, 3])
def test_launched_one_unit_earlier_all_messages_of_a_unit_are_hidden(messages: int) -> None:
    graph = units(6, ahead=0, messages=messages)
    gain = play_graph(graph)[0, -1] - play_graph(launch_earlier(graph, rows(graph)))[0, -1]
    assert gain == pytest.approx(5 * 4 * MS, rel=0.01)
