"""Collectives of one group on two streams, whose kernels start in another order on each rank."""

from pathlib import Path

import pytest

from tests.support.nccl_traces import Events, analysed, gemm, nccl, step
from zprof.model.time import WindowPolicy

RANKS, STEPS, EACH = 3, 3, 5
GATHER, REDUCE = 20, 24
#: How long before the last rank the gather, and the reduction launched behind it, start on each rank.
EARLY = ((80.0, 5.0), (10.0, 60.0), (0.0, 30.0))


def trace(rank: int, launched: bool) -> Events:
    events, number = [], 0
    for index in range(STEPS):
        begin = 200_000.0 * (1 + index)  # further apart than clocks of two hosts
        events.append(step(index, begin, begin + 199_900))
        for place in range(EACH):
            last = begin + 400 + 300 * place
            for stream, early in zip((GATHER, REDUCE), EARLY[(rank + place) % RANKS], strict=True):
                number += 1
                kind = "_allgather_base" if stream == GATHER else "_reduce_scatter_base"
                end = last + (100 + 7 * place if stream == GATHER else 120) + 0.1 * rank
                launch = last - 200 + (stream - GATHER) if launched else None
                events += nccl(
                    number, kind, launch, last - early, end, stream=stream, ranks=range(RANKS), elements=1000
                )
        number += 1
        compute = gemm(number, begin + 100, begin + 2_500, begin + 3_000)
        events += compute if launched else compute[1:]
    return events


@pytest.mark.parametrize("launched", [True, False], ids=["launches known", "kernels alone"])
def test_each_collective_is_matched_with_itself(tmp_path: Path, launched: bool) -> None:
    policy = WindowPolicy.STEP if launched else WindowPolicy.TRACE
    found = analysed(tmp_path, {rank: trace(rank, launched) for rank in range(RANKS)}, policy=policy)
    rows = found.collectives
    assert len(rows) == RANKS * STEPS * 2 * EACH
    assert rows["matched"].all()
    assert (rows.groupby("instance")["kind"].nunique() == 1).all()
    ends = rows.groupby("instance")["end_ns"]
    assert (ends.max() - ends.min()).max() < 1_000, "rows that end together are one collective"
    if launched:
        assert found.time.alignment is not None
        assert set(found.time.alignment.rungs) == {"order"}
        for _, mine in rows.sort_values(["rank", "sequence"]).groupby("rank"):
            assert mine["launch_start_ns"].is_monotonic_increasing
