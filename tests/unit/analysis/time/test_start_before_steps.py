"""Where a recording starts before its first step, the start is waited out there, and no step has it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.kineto_traces import MAIN, span
from tests.unit.analysis.time.test_one_step_window import ELEMENTS, MOVING_US, RANKS
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.integrations.imports.import_paths import import_paths
from zprof.run.reader import load

STEP_US = 20_000


def all_reduce(number: int, launch: float, late: float) -> list[Any]:
    described = {"Collective name": "allreduce", "In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS}
    described |= {
        "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": RANKS,
    }  # fmt: skip
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    ids = {"stream": 20, "correlation": number}
    end = launch + 4_000 + MOVING_US
    return [
        span("cudaLaunchKernelExC", launch, launch + 3, MAIN, "cuda_runtime", correlation=number),
        span(name, launch + 100 + late, end, 20, "kernel", **ids, **described),
    ]


def analysed(folder: Path, *, before: bool) -> TimeAnalysis:
    """Two steps of an all-reduce each; rank 1 is 3 ms late at the first collective of the recording."""
    launches = [5_000.0, *(10_000.0 + number * STEP_US for number in (0.5, 1.5))][0 if before else 1 :]
    for rank in range(RANKS):
        events = [
            span(f"ProfilerStep#{n + 3}", 10_000 + n * STEP_US, 10_000 + (n + 1) * STEP_US) for n in (0, 1)
        ]
        for number, launch in enumerate(launches):
            events += all_reduce(number + 1, launch, 3_000.0 * rank if number == 0 else 0.0)
        info: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": RANKS}
        info["pg_config"] = [{"pg_name": "0", "pg_desc": "group 0", "pg_size": RANKS, "ranks": [0, 1]}]
        trace = {
            "traceEvents": events,
            "baseTimeNanoseconds": 1_790_000_000_000_000_000,
            "distributedInfo": info,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return analyse_time(load(import_paths([folder], folder / "x.zprof").run))


@pytest.mark.parametrize("before", [False, True])
def test_the_first_collective_carries_the_start_wherever_it_was_launched(
    tmp_path: Path, *, before: bool
) -> None:
    found = analysed(tmp_path, before=before)
    waited = {entry.rank: entry.first_wait_ns for entry in found.time.per_rank}
    left_out = {tracks.rank: tracks.wait_before_ns for tracks in found.tracks}
    assert found.collectives["first_of_window"].tolist() == [not before, False] * RANKS
    assert (waited[0], left_out[0]) == pytest.approx((0, 3_000_000) if before else (1_500_000, 0), rel=0.01)
    assert (waited[1], left_out[1]) == (0, 0)
