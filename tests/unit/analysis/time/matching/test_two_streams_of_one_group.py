"""Collectives of one group on two streams, whose kernels start in another order on each rank."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.kineto_traces import MAIN, span
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.integrations.imports.import_paths import import_paths
from zprof.model.time import WindowPolicy
from zprof.run.reader import load

RANKS, STEPS, EACH = 3, 3, 5
GATHER, REDUCE = 20, 24
#: When the kernels of a gather, and of the reduction launched behind it, start on each rank, before the last.
EARLY = ((80.0, 5.0), (10.0, 60.0), (0.0, 30.0))


def _collective(number: int, stream: int, launch: float, start: float, end: float, launched: bool) -> Any:
    kind = "_allgather_base" if stream == GATHER else "_reduce_scatter_base"
    described = {
        "Collective name": kind,
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "dtype": "Float",
        "Group size": RANKS,
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(RANKS))),
    }
    ids = {"stream": stream, "correlation": number}
    name = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
    yield span(name, start, end, stream, "kernel", **ids, **described)
    if launched:
        yield span("cudaLaunchKernelExC", launch, launch + 3, MAIN, "cuda_runtime", correlation=number)


def trace(rank: int, launched: bool) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    number = 0
    for step in range(STEPS):
        begin = 200_000.0 * (1 + step)  # further apart than clocks of two hosts
        events.append(span(f"ProfilerStep#{step}", begin, begin + 199_900))
        for index in range(EACH):
            # Both are in flight at once.
            last = begin + 400 + 300 * index
            for stream, early in zip((GATHER, REDUCE), EARLY[(rank + index) % RANKS], strict=True):
                number += 1
                end = last + (100 + 7 * index if stream == GATHER else 120) + 0.1 * rank
                launch = last - 200 + (stream - GATHER)
                events += _collective(number, stream, launch, last - early, end, launched)
        number += 1
        events.append(span("gemm", begin + 2_500, begin + 3_000, 7, "kernel", stream=7, correlation=number))
        if launched:
            call = span("cudaLaunchKernel", begin + 100, begin + 105, MAIN, "cuda_runtime")
            events.append(call | {"args": {"correlation": number}})
    info = {"backend": "nccl", "rank": rank, "world_size": RANKS}
    return {"traceEvents": events, "baseTimeNanoseconds": 1_790_000_000_000_000_000, "distributedInfo": info}


def analysed(folder: Path, launched: bool) -> TimeAnalysis:
    (folder / "t").mkdir()
    for rank in range(RANKS):
        (folder / f"t/rank{rank}.json.gz").write_bytes(
            gzip.compress(json.dumps(trace(rank, launched)).encode())
        )
    policy = WindowPolicy.STEP if launched else WindowPolicy.TRACE
    return analyse_time(load(import_paths([folder / "t"], folder / "x.zprof").run), policy)


@pytest.mark.parametrize("launched", [True, False], ids=["launches known", "kernels alone"])
def test_each_collective_is_matched_with_itself(tmp_path: Path, launched: bool) -> None:
    rows = analysed(tmp_path, launched).collectives
    assert len(rows) == RANKS * STEPS * 2 * EACH
    assert rows["matched"].all()
    assert (rows.groupby("instance")["kind"].nunique() == 1).all()
    ends = rows.groupby("instance")["end_ns"]
    assert (ends.max() - ends.min()).max() < 1_000, "what ends together is one collective"


def test_collectives_are_numbered_by_launch(tmp_path: Path) -> None:
    found = analysed(tmp_path, True)
    assert found.time.alignment is not None
    assert set(found.time.alignment.rungs) == {"order"}
    rows = found.collectives.sort_values(["rank", "sequence"])
    for _, mine in rows.groupby("rank"):
        assert mine["launch_start_ns"].is_monotonic_increasing
        assert mine["sequence"].tolist() == list(range(STEPS * 2 * EACH))
