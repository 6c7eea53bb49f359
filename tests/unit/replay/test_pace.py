"""Which ranks are slow by themselves, step by step."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.replay_ranks import replay_rank
from zprof.replay.graph import Graph, RankGraph
from zprof.replay.slow_ranks import find_excess, find_slowest, mark_in_turn, mark_recurring
from zprof.replay.tasks import NONE

MS = 1e6


def steps_of(number: int, compute_ms: list[float]) -> RankGraph:
    """A rank that computes once in each of its steps."""
    work = np.array(compute_ms) * MS
    ends = np.cumsum(work)
    count = len(compute_ms)
    return replay_rank(
        ("gemm",) * count,
        (7,) * count,
        np.stack([ends - work, ends], axis=1),
        number=number,
        steps=np.arange(count),
    )


def graph_of(*compute_ms: list[float]) -> Graph:
    longest = np.max(compute_ms, axis=0).cumsum() * MS
    return Graph(
        ranks=tuple(steps_of(number, each) for number, each in enumerate(compute_ms)),
        transfer_ns=np.zeros(0),
        members=np.zeros(0, dtype=np.int64),
        lane=np.zeros(0, dtype=np.int64),
        measured_ns=np.tile(longest, (len(compute_ms), 1)),
        steps=len(compute_ms[0]),
        origin_ns=0,
    )


def no_loading(graph: Graph) -> dict[int, np.ndarray]:
    return {rank.tasks.rank: np.zeros(len(rank.tasks)) for rank in graph.ranks}


def slow(graph: Graph) -> list[list[bool]]:
    found: list[list[bool]] = mark_in_turn(find_excess(graph, no_loading(graph))).tolist()
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_always_slower_stands_out_in_each_step(ranks: int) -> None:
    others = [[10.0, 10.1, 10.0, 9.9]] * (ranks - 1)
    assert slow(graph_of(*others, [12.0, 12.1, 12.0, 12.1])) == [[False] * 4] * (ranks - 1) + [[True] * 4]


def test_two_ranks_that_take_turns_stand_out_in_turn() -> None:
    found = slow(graph_of([12.0, 10.0, 12.0, 10.0], [10.0, 12.0, 10.0, 12.0]))
    assert found == [[True, False, True, False], [False, True, False, True]]


def test_steps_that_are_longer_on_all_ranks_accuse_nobody() -> None:
    assert not np.any(slow(graph_of([10.0, 15.0, 9.0, 20.0], [10.3, 15.4, 9.1, 20.2])))


def test_what_the_loader_takes_says_nothing_of_the_host() -> None:
    graph = graph_of([10.0] * 4, [10.0] * 4)
    first, second = graph.ranks
    graph = replace(graph, ranks=(first, replace(second, gap_ns=np.full(4, 5 * MS))))
    loading = {0: np.zeros(4), 1: np.full(4, 5 * MS)}
    assert not find_excess(graph, loading).any()
    assert find_excess(graph, {0: np.zeros(4), 1: np.zeros(4)})[1, 1:].all()


def test_hiccups_of_other_lengths_are_no_turns() -> None:
    excess = np.array([[0.0, 0.0, 6.0, 0.0], [0.0, 1.1, 0.0, 0.0], [0.0, 0.0, 0.0, 5.6]]) * MS
    assert mark_in_turn(excess).tolist() == (excess > 2 * MS).tolist()
    assert mark_recurring(excess).tolist() == (excess > 0).tolist()


@pytest.mark.parametrize("has_start", [False, True])
def test_a_slow_host_stands_out_in_the_first_step_unless_the_profiler_started_there(
    has_start: bool,
) -> None:
    graph = graph_of([10.0] * 2, [10.0] * 2)
    first, second = graph.ranks
    slower = replace(graph, ranks=(first, replace(second, gap_ns=np.full(2, 5 * MS))), has_start=has_start)
    excess = find_excess(slower, {0: np.zeros(2), 1: np.zeros(2)})
    assert excess[1].tolist() == ([0.0] * 2 if has_start else [5 * MS] * 2)


def test_what_a_rank_is_slower_in_all_of_its_steps_is_no_turn() -> None:
    graph = graph_of([12.0, 12.1, 12.0, 12.1], [10.0, 13.0, 10.0, 10.1], [10.0] * 4, [10.1] * 4)
    turns = find_excess(graph, no_loading(graph), in_turn=True)
    assert (turns > 0).tolist() == [[False] * 4, [False, True, False, False], [False] * 4, [False] * 4]


def test_the_first_step_shows_which_device_is_slow_but_no_host() -> None:
    devices = graph_of([12.0, 10.0], [10.0, 12.0], [10.0, 10.0], [10.0, 10.1])
    assert find_slowest(find_excess(devices, no_loading(devices), in_turn=True)).tolist() == [0, 1]
    hosts = np.array([[0.0, 5.0, 0.0], [0.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    assert find_slowest(hosts).tolist() == [0, NONE]
