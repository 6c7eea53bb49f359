"""Which gathers start too late to be hidden, and what launching them one unit earlier does."""

import numpy as np
import pytest

from tests.support.replay_ranks import graph_of, replay_rank
from zprof.step.edits import launch_earlier
from zprof.step.play import play_graph
from zprof.step.structure import late_gathers_ratio
from zprof.step.tasks import NONE, Graph

MS = 1e6
COMPUTE, LINK = 7, 20
UNITS, COMPUTE_MS, GATHER_MS = 6, 10.0, 4.0


def units(*, ahead: int, messages: int = 1, gather_ms: float = GATHER_MS) -> Graph:
    """Gather units in so many messages each, compute with each; gather ``ahead`` units early.

    A gather waits for the compute that is ``ahead + 1`` units before its own, as far as there is one.
    """
    waits: list[tuple[int, ...]] = []
    work: list[tuple[float, float]] = []
    computed: list[int] = []
    link = device = 0.0
    for unit in range(UNITS):
        before = tuple(computed[unit - ahead - 1 : unit - ahead]) if unit > ahead else ()
        gathers = tuple(range(len(work), len(work) + messages))
        for _ in gathers:
            begin = max([link, *(work[at][1] for at in before)])
            link = begin + gather_ms * MS / messages
            work.append((begin, link))
        device = max(link, device) + COMPUTE_MS * MS
        computed.append(len(work))
        waits += [before] * messages + [gathers]
        work.append((device - COMPUTE_MS * MS, device))
    is_gather = np.arange(len(work)) % (messages + 1) != messages
    times = np.array(work)
    rank = replay_rank(
        ["ncclDevKernel_AllGather_RING_LL" if each else "gemm" for each in is_gather],
        np.where(is_gather, LINK, COMPUTE).tolist(),
        times,
        waits=waits,
        collectives=np.where(is_gather, np.cumsum(is_gather) - 1, NONE),
    )
    transfers = (times[:, 1] - times[:, 0])[is_gather]
    return graph_of(rank, transfer_ns=transfers, lane=0, measured_ns=[[times[-1, 1]]])


def all_rows(graph: Graph) -> frozenset[int]:
    return frozenset(range(len(graph.members)))


@pytest.mark.parametrize(
    ("ahead", "messages", "gather_ms", "late"),
    [(0, 1, 4.0, 1.0), (0, 2, 4.0, 1.0), (1, 1, 4.0, 0.0), (1, 1, 25.0, 0.0)],
)
def test_gathers_behind_the_compute_before_theirs_are_late_however_slow_the_link(
    ahead: int, messages: int, gather_ms: float, late: float
) -> None:
    graph = units(ahead=ahead, messages=messages, gather_ms=gather_ms)
    assert late_gathers_ratio(graph, all_rows(graph)) == late


@pytest.mark.parametrize("messages", [1, 3])
def test_launched_one_unit_earlier_all_messages_of_a_unit_are_hidden(messages: int) -> None:
    graph = units(ahead=0, messages=messages)
    earlier = launch_earlier(graph, all_rows(graph))
    gain = play_graph(graph)[0, -1] - play_graph(earlier)[0, -1]
    assert gain == pytest.approx((UNITS - 1) * GATHER_MS * MS, rel=0.01)
