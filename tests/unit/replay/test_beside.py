"""How much slower kernels run beside collectives, whatever their names hide."""

import numpy as np
import pytest

from tests.support.replay_ranks import replay_rank
from zprof.replay.graph import Graph
from zprof.replay.slowdown import fit_slowdown
from zprof.replay.tasks import NONE

MS = 1e6
COMPUTE, LINK = 7, 20
#: One name for matrices of several sizes, as GEMMs have.
BLOCK = (("gemm", 1.0), ("gemm", 3.0), ("norm", 0.5), ("gemm", 2.0), ("gelu", 0.25))


def blocks(sizes: list[float], slowdown: float, *, beside: float, seed: int = 0) -> Graph:
    """Blocks of such sizes in four steps; so many of their kernels run beside a collective."""
    draw = np.random.default_rng(seed)
    kernels: list[str] = []
    streams: list[int] = []
    work: list[tuple[float, float]] = []
    steps: list[int] = []
    now = 0.0
    for step in range(4):
        passes = [("embedding", 1.0), *((name, ms * size) for size in sizes for name, ms in BLOCK)]
        for name, ms in passes:
            is_beside = bool(draw.random() < beside)
            took = ms * draw.normal(1.0, 0.01) * (slowdown if is_beside else 1.0)
            for kernel, stream in [("ncclDevKernel", LINK)] * is_beside + [(name, COMPUTE)]:
                kernels.append(kernel)
                streams.append(stream)
                work.append((now, now + took))
                steps.append(step)
            now += took
    is_collective = np.array([stream == LINK for stream in streams])
    collectives = np.where(is_collective, np.cumsum(is_collective) - 1, NONE)
    rank = replay_rank(kernels, streams, np.array(work) * MS, collectives=collectives, steps=np.array(steps))
    count = int(is_collective.sum())
    return Graph(
        ranks=(rank,),
        transfer_ns=np.zeros(count),
        members=np.ones(count, dtype=np.int64),
        lane=np.full(count, NONE),
        measured_ns=np.array([[now * MS] * 4]),
        steps=4,
        origin_ns=0,
    )


@pytest.mark.parametrize("slowdown", [1.0, 1.2, 1.8])
@pytest.mark.parametrize("sizes", [[1.0] * 6, [1.0, 1.0, 2.0, 2.0, 0.5, 1.5]])
def test_the_slowdown_is_found_in_blocks_of_one_size_and_of_several(
    sizes: list[float], slowdown: float
) -> None:
    assert fit_slowdown(blocks(sizes, slowdown, beside=0.4), ()) == pytest.approx(slowdown, rel=0.02)


@pytest.mark.parametrize("beside", [0.0, 1.0])
def test_without_kernels_beside_and_alone_nothing_is_known(beside: float) -> None:
    assert fit_slowdown(blocks([1.0] * 6, 1.5, beside=beside), ()) is None
