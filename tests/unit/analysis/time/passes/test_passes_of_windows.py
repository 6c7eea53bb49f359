"""Steps and micro-batches within a window that is one stretch over several steps."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.kineto_traces import MAIN, span
from zprof.analysis.time.analyse import analyse_time
from zprof.integrations.imports.import_paths import import_paths
from zprof.model.time import WindowPolicy
from zprof.run.reader import load

AUTOGRAD = MAIN + 1


def micro_batch(begin: float, number: int) -> list[dict[str, Any]]:
    """A forward, and a backward that reduces what it has."""
    described = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20}
    described |= {
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
    }
    reduction, gemm = 10 * number + 1, 10 * number + 2
    node = "autograd::engine::evaluate_function: MmBackward0"
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return [
        *(
            span("aten::mm", begin + 20 * place, begin + 20 * place + 15, MAIN, "cpu_op")
            for place in range(10)
        ),
        span("cudaLaunchKernel", begin + 5, begin + 8, MAIN, "cuda_runtime", correlation=gemm),
        span("gemm", begin + 10, begin + 300, 7, "kernel", stream=7, correlation=gemm),
        span(node, begin + 300, begin + 600, AUTOGRAD, "cpu_op"),
        span(
            "cudaLaunchKernelExC", begin + 400, begin + 405, AUTOGRAD, "cuda_runtime", correlation=reduction
        ),
        span(kernel, begin + 450, begin + 650, 20, "kernel", stream=20, correlation=reduction, **described),
    ]


def passes(folder: Path, steps: int, micro_batches: int, optimizer: bool, marked: bool) -> pd.DataFrame:
    events: list[dict[str, Any]] = []
    for step in range(steps):
        begin = 10_000.0 * (1 + step)
        for index in range(micro_batches):
            events += micro_batch(begin + 1_000 * index, step * micro_batches + index)
        end = begin + 1_000 * micro_batches
        if optimizer:
            events.append(span("Optimizer.step#SGD.step", end, end + 50))
        if marked:
            events.append(span(f"ProfilerStep#{step}", begin - 10, end + 60))
    info = {"backend": "nccl", "rank": 0, "world_size": 2}
    text = {"traceEvents": events, "baseTimeNanoseconds": 1_790_000_000_000_000_000, "distributedInfo": info}
    (folder / "rank0.json").write_text(json.dumps(text))
    run = load(import_paths([folder / "rank0.json"], folder / "x.zprof").run)
    return analyse_time(run, WindowPolicy.TRACE).passes


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "unmarked"])
def test_five_optimizer_steps_are_five_steps(tmp_path: Path, marked: bool) -> None:
    found = passes(tmp_path, steps=5, micro_batches=1, optimizer=True, marked=marked)
    assert found["micro_batch"].tolist() == [0] * len(found)
    assert found["step"].nunique() == len(found) == (5 if marked else 4)


@pytest.mark.parametrize("steps", [1, 3])
def test_micro_batches_of_a_step_stay_what_they_are(tmp_path: Path, steps: int) -> None:
    found = passes(tmp_path, steps=steps, micro_batches=2, optimizer=True, marked=False)
    assert found["micro_batch"].tolist() == [0, 1] * max(1, steps - 1)


def test_without_marks_and_optimizer_nobody_knows(tmp_path: Path) -> None:
    found = passes(tmp_path, steps=3, micro_batches=1, optimizer=False, marked=False)
    assert len(found) == 3
    assert found["micro_batch"].isna().all()


def test_one_backward_needs_no_marks(tmp_path: Path) -> None:
    found = passes(tmp_path, steps=1, micro_batches=1, optimizer=False, marked=False)
    assert found["micro_batch"].tolist() == [0]
