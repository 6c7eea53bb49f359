"""A window of a single step: only the start of the profiler is set apart, all other waiting is judged."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.kineto_traces import MAIN, span
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.integrations.imports.import_paths import import_paths
from zprof.run.reader import load

RANKS = 2
ELEMENTS, MOVING_US = 1_000_000, 100.0


def collective(number: int, kind: str, group: str, launch: float, start: float, last: float) -> list[Any]:
    described = {"Collective name": kind, "In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS}
    described |= {
        "dtype": "Float",
        "Process Group Name": group,
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
    }
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    ids = {"stream": 20, "correlation": number}
    return [
        span("cudaLaunchKernelExC", launch, launch + 3, MAIN, "cuda_runtime", correlation=number),
        span(name, start, last + MOVING_US, 20, "kernel", **ids, **described),
    ]


def analysed(folder: Path, began: tuple[float, float], first_call: float = 4.0) -> TimeAnalysis:
    """Rank 1 is 3 ms late at two collectives of two groups; it began, or its first call ended, that late."""
    for rank, begin in enumerate(began):
        late = 3_000.0 * rank
        events = [
            span("aten::mm", 10_000 + begin, 10_000 + begin + 20, MAIN, "cpu_op"),
            span(
                "cudaLaunchKernel",
                10_001 + begin,
                10_001 + begin + (first_call if rank else 4),
                MAIN,
                "cuda_runtime",
                correlation=1,
            ),
            span("gemm", 13_200 + begin, 13_400 + begin, 7, "kernel", stream=7, correlation=1),
            *collective(2, "all_to_all", "0", 14_000 + late, 14_500 + late, 17_500),
            *collective(3, "allreduce", "1", 20_000 + late, 20_500 + late, 23_500),
            span("ProfilerStep#3", 9_990 + begin, 40_000),
        ]
        info: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": RANKS}
        info["pg_config"] = [
            {"pg_name": name, "pg_desc": f"group {name}", "pg_size": RANKS, "ranks": [0, 1]} for name in "01"
        ]
        trace = {
            "traceEvents": events,
            "baseTimeNanoseconds": 1_790_000_000_000_000_000,
            "distributedInfo": info,
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return analyse_time(load(import_paths([folder], folder / "x.zprof").run))


def set_apart(analysis: TimeAnalysis) -> list[str]:
    rows = analysis.collectives
    assert rows["matched"].all()
    return sorted(rows.loc[rows["first_of_window"], "kind"].unique())


def test_first_collectives_of_a_single_step_are_judged(tmp_path: Path) -> None:
    found = analysed(tmp_path, (0.0, 0.0))
    assert set_apart(found) == []
    waiting = {entry.rank: entry for entry in found.time.per_rank}[0]
    assert waiting.exposed_wait_ns == pytest.approx(6_000_000, rel=0.01)
    assert waiting.first_wait_ns == 0
    assert found.time.blame is not None
    assert found.time.blame.unjudged_ns == 0


def test_an_all_to_all_of_a_single_step_has_its_bus_bandwidth(tmp_path: Path) -> None:
    (entry,) = [e for e in analysed(tmp_path, (0.0, 0.0)).time.collectives if e.kind == "all_to_all"]
    assert entry.busbw_bytes_per_s == pytest.approx(4 * ELEMENTS / (MOVING_US * 1e-6) / 2, rel=0.01)


@pytest.mark.parametrize(
    ("began", "first_call"), [((0.0, 7_000.0), 4.0), ((0.0, 0.0), 7_000.0)], ids=["recording", "first call"]
)
def test_waiting_for_a_profiler_that_starts_is_set_apart(
    tmp_path: Path, began: tuple[float, float], first_call: float
) -> None:
    """Rank 1 is recorded from 17 ms on: what made it late at the first collective is not in the trace."""
    found = analysed(tmp_path, began, first_call)
    assert set_apart(found) == ["all_to_all"]
    waiting = {entry.rank: entry for entry in found.time.per_rank}[0]
    assert waiting.first_wait_ns == pytest.approx(3_000_000, rel=0.01)
    assert waiting.exposed_wait_ns == pytest.approx(6_000_000, rel=0.01)
