"""Legal traces with odd step marks: a report, or one line, but never an internal error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_calls import Call
from tests.support.kineto_traces import span
from tests.support.nccl_traces import Events, gemm, nccl, step

STEP_US, STEPS = 1_000, 3
END_US = STEP_US * STEPS
COPY = span("Memcpy HtoD (Pinned -> Device)", 10, 20, 7, "gpu_memcpy", stream=7, correlation=1, bytes=100)


def work(rank: int) -> Events:
    events: Events = []
    for number in range(STEPS):
        at, first = number * STEP_US, 10 * number
        events += nccl(first + 1, "_allgather_base", at, at + 10 + rank, at + 200)
        events += gemm(first + 2, at + 5, at + 200, at + 500)
        events += nccl(first + 3, "_reduce_scatter_base", at + 300, at + 500, at + 900, stream=21)
    return events


def whole(rank: int) -> Events:
    return [
        *work(rank),
        *(step(number, number * STEP_US, (number + 1) * STEP_US - 1) for number in range(STEPS)),
    ]


ODD: dict[str, Callable[[int], Events]] = {
    "empty steps after the work": lambda rank: [
        *whole(rank), *(step(STEPS + n, END_US + 50 * n, END_US + 50 * n + 40) for n in range(20))
    ],
    "empty steps before the work": lambda rank: [
        *whole(rank), *(step(100 + n, -1_000 + 50 * n, -1_000 + 50 * n + 40) for n in range(20))
    ],
    "steps of zero length": lambda rank: [
        *whole(rank), *(step(STEPS + n, END_US + n, END_US + n) for n in range(20))
    ],
    "only steps of zero length": lambda rank: [
        *work(rank), *(step(n, n * STEP_US, n * STEP_US) for n in range(STEPS))
    ],
    "ranks without a common step": lambda rank: [
        *work(rank), step(1 + 2 * rank, rank * STEP_US + 1, (rank + 1) * STEP_US - 1)
    ],
    "only marks": lambda rank: whole(rank)[-STEPS:],
    "only a copy": lambda rank: [COPY],
    "one kernel": lambda rank: work(rank)[:1],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_marks_are_no_internal_error(call: Call, tmp_path: Path, name: str) -> None:
    for rank in range(2):
        info: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": 2}
        info["pg_config"] = [{"pg_name": "0", "pg_desc": "all", "pg_size": 2, "ranks": [0, 1]}]
        content = {"traceEvents": ODD[name](rank), "distributedInfo": info, "baseTimeNanoseconds": 10**18}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
    code, out, err = call("report", "-f", "json", tmp_path)
    assert code in (0, 2, 3), err
    if code == 0:
        assert json.loads(out)["run"]["world_size"] == 2


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_a_trace_in_which_nothing_ran_is_exit_3(call: Call, tmp_path: Path, command: str) -> None:
    event = {"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    (tmp_path / "a.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    code, out, err = call(command, tmp_path / "a.json")
    assert (code, out, len(err.splitlines())) == (3, "", 2)  # what is imported, and why it is refused
