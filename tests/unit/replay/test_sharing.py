"""Communicators on one link: what the recording says of it, and what a replay makes of it."""

import numpy as np
import pytest

from tests.support.replay_ranks import replay_rank
from zprof.replay.graph import Graph
from zprof.replay.link_sharing import infer_link_sharing, stretch_transfers_ns
from zprof.replay.play import play_graph
from zprof.replay.tasks import NONE

MS = 1e6
ALONE_MS, GAP_MS = 4.0, 10.0


def two_groups(overlap_ms: list[float], lost: float) -> Graph:
    """Pairs of messages of two communicators, each as long alone, with so much of them at once.

    Both lose the part ``lost`` of their rate while the other one runs.
    """
    work: list[tuple[float, float]] = []
    lanes: list[int] = []
    now = 0.0
    for wanted in overlap_ms:
        # with both at once for o, each has moved (1 - lost) o, and the rest alone
        longer = lost * wanted
        first = (now, now + ALONE_MS + longer)
        second = (first[1] - wanted, first[1] - wanted + ALONE_MS + longer)
        work += [first, second]
        lanes += [0, 1]
        now = second[1] + GAP_MS
    at = np.arange(len(work))
    rank = replay_rank(
        ("ncclDevKernel",) * len(at), [20 + lane for lane in lanes], np.array(work) * MS, collectives=at
    )
    return Graph(
        ranks=(rank,),
        transfer_ns=np.array([(end - begin) * MS for begin, end in work]),
        members=np.ones(len(at), dtype=np.int64),
        lane=np.array(lanes),
        measured_ns=np.array([[work[-1][1] * MS]]),
        steps=1,
        origin_ns=0,
    )


def shared(graph: Graph) -> Graph:
    rows = range(len(graph.transfer_ns))
    return infer_link_sharing(graph, dict.fromkeys(rows, 1 << 20), dict.fromkeys(rows, "all_gather"))


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
    together = np.repeat(np.arange(count // 2) * 100 * MS, 2)
    assert stretch_transfers_ns(graph, together) == pytest.approx(2 * ALONE_MS * MS, rel=0.1)
    apart = np.arange(count) * 100 * MS
    assert stretch_transfers_ns(graph, apart) == pytest.approx(ALONE_MS * MS, rel=0.05)


def test_the_replayed_step_moves_as_much_as_the_measured_one() -> None:
    graph = shared(two_groups([0.0, 1.0, 2.0, 3.0] * 4, 0.5))
    # the queues of both communicators run at once all the time: two messages take as long as both alone
    count = len(graph.transfer_ns)
    assert play_graph(graph)[0, -1] == pytest.approx(count * ALONE_MS * MS, rel=0.05)


def test_messages_that_wait_for_compute_behind_others_are_played_until_they_settle() -> None:
    """What a message takes moves the compute behind it, and that the messages which it runs beside."""
    units, lost = 6, {0: 0.5, 1: 0.5}
    waits: list[tuple[int, ...]] = []
    for unit in range(units):
        at = 4 * unit
        # a gather behind the first half of the unit before, its compute, and a reduction behind that
        waits += [(at - 3,) if unit else (), (at,), (), (at + 2,)]
    collective = np.where(np.arange(4 * units) % 4 % 3 == 0, np.arange(4 * units) // 4 * 2, NONE)
    collective[3::4] += 1
    rank = replay_rank(
        ("ncclDevKernel", "gemm", "gemm", "ncclDevKernel") * units,
        (20, 7, 7, 21) * units,
        np.array([(0.0, each) for each in (ALONE_MS, 1.0, 3.0, ALONE_MS)] * units) * MS,
        collectives=collective,
        waits=waits,
    )
    graph = Graph(
        ranks=(rank,),
        transfer_ns=np.full(2 * units, ALONE_MS * MS),
        members=np.ones(2 * units, dtype=np.int64),
        lane=np.arange(2 * units) % 2,
        measured_ns=np.zeros((1, 1)),
        steps=1,
        origin_ns=0,
        lost=lost,
    )
    assert play_graph(graph)[0, -1] == pytest.approx(51.0 * MS)
