"""Communicators on one link: what the recording says of it, and what a replay makes of it."""

import numpy as np
import pytest

from tests.support.replay_ranks import graph_of, replay_rank
from zprof.analysis.columns import Columns, Texts
from zprof.step.play import infer_link_sharing, play_graph, stretch_transfers_ns
from zprof.step.tasks import Graph

MS = 1e6
ALONE_MS, GAP_MS = 4.0, 10.0


def two_groups(overlap_ms: list[float], lost: float) -> Graph:
    """Pairs of messages of two communicators, each as long alone, with so much of them at once.

    Both lose the part ``lost`` of their rate while the other one runs.
    """
    work: list[tuple[float, float]] = []
    now = 0.0
    for wanted in overlap_ms:
        # with both at once for o, each has moved (1 - lost) o, and the rest alone
        took = ALONE_MS + lost * wanted
        work += [(now, now + took), (now + took - wanted, now + 2 * took - wanted)]
        now = work[-1][1] + GAP_MS
    at = np.arange(len(work))
    streams = (20 + at % 2).tolist()
    rank = replay_rank(("ncclDevKernel",) * len(at), streams, np.array(work) * MS, collectives=at)
    transfers = [(end - begin) * MS for begin, end in work]
    return graph_of(rank, transfer_ns=transfers, lane=at % 2, measured_ns=[[work[-1][1] * MS]])


def shared(graph: Graph) -> Graph:
    count = len(graph.transfer_ns)
    kinds = Texts.of(["all_gather"] * count)
    return infer_link_sharing(graph, Columns({"bytes": np.full(count, 1 << 20), "kind": kinds}))


@pytest.mark.parametrize("lost", [0.5, 0.8])
def test_what_a_message_takes_alone_is_read_off_those_that_share(lost: float) -> None:
    graph = shared(two_groups([0.0, 1.0, 2.0, 3.0, 0.5, 2.5] * 3, lost))
    assert graph.lost == pytest.approx({0: lost, 1: lost}, rel=0.05)
    assert graph.transfer_ns == pytest.approx(ALONE_MS * MS, rel=0.05)


def test_links_of_their_own_leave_the_step_as_it_is() -> None:
    graph = two_groups([0.0, 1.0, 2.0, 3.0] * 4, 0.0)
    assert shared(graph) is graph


def test_two_at_once_take_twice_as_long_and_one_behind_the_other_do_not() -> None:
    graph = shared(two_groups([0.0, 1.0, 2.0, 3.0] * 4, 0.5))
    count = len(graph.transfer_ns)
    together, apart = np.repeat(np.arange(count // 2), 2) * 100 * MS, np.arange(count) * 100 * MS
    assert stretch_transfers_ns(graph, together) == pytest.approx(2 * ALONE_MS * MS, rel=0.1)
    assert stretch_transfers_ns(graph, apart) == pytest.approx(ALONE_MS * MS, rel=0.05)
    # The queues of both run at once all the time: two messages take as long as both alone.
    assert play_graph(graph)[0, -1] == pytest.approx(count * ALONE_MS * MS, rel=0.05)
