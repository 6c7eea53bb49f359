"""How long the kernels of a rank take: beside collectives, and against other ranks, step by step."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.replay_ranks import graph_of, replay_rank
from zprof.step.rank_times import find_excess, find_slowest, mark_in_turn
from zprof.step.slowdown import fit_slowdown
from zprof.step.tasks import NONE, Graph

MS = 1e6
COMPUTE, LINK = 7, 20
#: One name for matrices of several sizes, as GEMMs have.
BLOCK = (("gemm", 1.0), ("gemm", 3.0), ("norm", 0.5), ("gemm", 2.0), ("gelu", 0.25))


def blocks_beside_collectives(
    sizes: list[float], slowdown: float, beside: float, *, slowed: tuple[str, ...] = ("gemm", "norm", "gelu")
) -> Graph:
    """Blocks of such sizes in four steps; so many of their kernels run beside a collective.

    Those of the names ``slowed`` take longer there.
    """
    draw = np.random.default_rng(0)
    rows: list[tuple[str, int, float, float, int]] = []
    now = 0.0
    for step in range(4):
        passes = [("embedding", 1.0), *((name, ms * size) for size in sizes for name, ms in BLOCK)]
        for name, ms in passes:
            is_beside = bool(draw.random() < beside)
            end = now + ms * draw.normal(1.0, 0.01) * (slowdown if is_beside and name in slowed else 1.0)
            rows += [("ncclDevKernel", LINK, now, end, step)] * is_beside
            rows.append((name, COMPUTE, now, end, step))
            now = end
    return graph_of_rows(rows, now, 4)


def graph_of_rows(rows: list[tuple[str, int, float, float, int]], end_ms: float, count: int) -> Graph:
    """One rank with these kernels: name, stream, start and end in ms, step."""
    kernels, streams, begins, ends, steps = zip(*rows, strict=True)
    is_collective = np.array(streams) == LINK
    collectives = np.where(is_collective, np.cumsum(is_collective) - 1, NONE)
    work = np.stack([begins, ends], axis=1) * MS
    rank = replay_rank(kernels, streams, work, collectives=collectives, steps=np.array(steps))
    return graph_of(rank, transfer_ns=np.zeros(int(is_collective.sum())), measured_ns=[[end_ms * MS] * count])


def factor_of(graph: Graph, *, by_time: bool = False) -> float:
    """The slowdown that is fitted, which must be known."""
    fitted = fit_slowdown(graph, (), by_time=by_time)
    assert fitted is not None
    return fitted.factor


@pytest.mark.parametrize("slowdown", [1.0, 1.2, 1.8])
@pytest.mark.parametrize("sizes", [[1.0] * 6, [1.0, 1.0, 2.0, 2.0, 0.5, 1.5]])
def test_the_slowdown_is_found_in_blocks_of_one_size_and_of_several(
    sizes: list[float], slowdown: float
) -> None:
    graph = blocks_beside_collectives(sizes, slowdown, beside=0.4)
    assert factor_of(graph) == pytest.approx(slowdown, rel=0.02)


def test_passes_that_start_with_the_same_kernel_do_different_work() -> None:
    """The backward's kernels take other times; all of one kind run beside collectives in one pass only."""
    draw = np.random.default_rng(0)
    passes = (
        [("gemm", 1.0), ("flash", 0.5), ("gemm", 3.0), ("norm", 0.5)],
        [("gemm", 4.0), ("norm", 1.0), ("gelu", 1.0), ("gemm", 1.0)],
    )
    rows: list[tuple[str, int, float, float, int]] = []
    now = 0.0
    for step in range(4):
        for number, block in enumerate(passes):
            rows.append(("embedding", COMPUTE, now, now + 1, step))
            now += 1
            for _ in range(8):
                for place, (name, ms) in enumerate(block):
                    is_beside = draw.random() < (0.1, 0.9, 0.5, 0.9)[(place + 2 * number) % 4]
                    end = now + ms * (1.2 if is_beside else 1.0)
                    rows += [("ncclDevKernel", LINK, now, end, step)] * is_beside
                    rows.append((name, COMPUTE, now, end, step))
                    now = end
    assert factor_of(graph_of_rows(rows, now, 4)) == pytest.approx(1.2, rel=0.02)


def test_what_was_launched_before_the_recording_slows_the_first_step_unseen() -> None:
    """Kernels of the first step are slow without a collective beside them in the graph."""
    whole = blocks_beside_collectives([1.0] * 6, 1.5, 0.4)
    rank = whole.ranks[0]
    names = [
        "gone" if step == 0 and name == "ncclDevKernel" else name
        for name, step in zip(rank.tasks.kernel, rank.tasks.step.tolist(), strict=True)
    ]
    collectives = np.where(np.array(names) == "gone", NONE, rank.collective)
    seen = replace(rank, collective=collectives)
    assert factor_of(replace(whole, ranks=(seen,))) == pytest.approx(1.5, rel=0.02)


def test_the_cost_is_that_of_the_kernels_that_slow_down() -> None:
    """Norms and activations, 0.75 of 6.75 ms alone, do not; as kinds they are two of five."""
    graph = blocks_beside_collectives([1.0] * 6, 1.5, 0.4, slowed=("gemm",))
    expected = (6 * 1.5 + 0.75) / 6.75
    assert factor_of(graph, by_time=True) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("beside", [0.0, 1.0])
def test_without_kernels_beside_and_alone_the_slowdown_is_unknown(beside: float) -> None:
    assert fit_slowdown(blocks_beside_collectives([1.0] * 6, 1.5, beside), ()) is None


def ranks_of(*compute_ms: list[float], second_gap_ms: float = 0.0) -> Graph:
    """Ranks that compute once in each of their steps."""
    count = len(compute_ms[0])
    ranks = []
    for number, each in enumerate(compute_ms):
        ends = np.cumsum(each) * MS
        work = np.stack([ends - np.array(each) * MS, ends], axis=1)
        gaps = np.full(count, second_gap_ms * MS if number == 1 else 0.0)
        ranks.append(
            replay_rank(
                ("gemm",) * count, (7,) * count, work, number=number, steps=np.arange(count), gaps_ns=gaps
            )
        )
    longest = np.max(compute_ms, axis=0).cumsum() * MS
    return graph_of(*ranks, measured_ns=np.tile(longest, (len(compute_ms), 1)))


def no_loading(graph: Graph) -> dict[int, np.ndarray]:
    return {rank.tasks.rank: np.zeros(len(rank.tasks)) for rank in graph.ranks}


EVEN = [10.0, 10.1, 10.0, 9.9]


@pytest.mark.parametrize(
    ("compute_ms", "slow"),
    [
        # A rank that is always slower, of two and of four.
        ([EVEN, [12.0, 12.1, 12.0, 12.1]], [[0] * 4, [1] * 4]),
        ([EVEN, EVEN, EVEN, [12.0, 12.1, 12.0, 12.1]], [[0] * 4] * 3 + [[1] * 4]),
        ([[12.0, 10.0, 12.0, 10.0], [10.0, 12.0, 10.0, 12.0]], [[1, 0, 1, 0], [0, 1, 0, 1]]),
        # A fast rank, and steps that are longer on all ranks, accuse nobody.
        ([EVEN, EVEN, EVEN, [8.0, 8.1, 8.0, 7.9]], [[0] * 4] * 4),
        ([[10.0, 15.0, 9.0, 20.0], [10.3, 15.4, 9.1, 20.2]], [[0] * 4] * 2),
    ],
)
def test_ranks_that_stand_out_in_each_step(compute_ms: list[list[float]], slow: list[list[int]]) -> None:
    graph = ranks_of(*compute_ms)
    assert mark_in_turn(find_excess(graph, no_loading(graph))).astype(int).tolist() == slow


def test_a_slow_host_stands_out_but_for_its_loader_and_for_the_start_of_the_profiler() -> None:
    graph = ranks_of([10.0] * 4, [10.0] * 4, second_gap_ms=5.0)
    loading = {0: np.zeros(4), 1: np.full(4, 5 * MS)}
    for has_start, first_ms in ((False, 5.0), (True, 0.0)):
        there = replace(graph, has_start=has_start)
        assert not find_excess(there, loading).any()
        excess_ms = find_excess(there, no_loading(graph))[1] / MS
        assert excess_ms.tolist() == [first_ms, 5.0, 5.0, 5.0]


def test_the_first_step_shows_which_device_is_slow_but_no_host() -> None:
    devices = ranks_of([12.0, 10.0], [10.0, 12.0], [10.0, 10.0], [10.0, 10.1])
    assert find_slowest(find_excess(devices, no_loading(devices), in_turn=True)).tolist() == [0, 1]
    hosts = np.array([[0.0, 5.0, 0.0], [0.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    assert find_slowest(hosts).tolist() == [0, NONE]


def test_turns_leave_out_what_a_rank_is_slower_in_all_of_its_steps() -> None:
    graph = ranks_of([12.0, 12.1, 12.0, 12.1], [10.0, 13.0, 10.0, 10.1], [10.0] * 4, [10.1] * 4)
    turns = find_excess(graph, no_loading(graph), in_turn=True)
    assert np.argwhere(turns > 0).tolist() == [[1, 1]]
