"""Each GPU check ends as a row: without a GPU, without a package, after a crash, after a hang."""

import json
import os
import select
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.device import isolate
from benchmarks.device.checks import CHECKS, Check, CheckFailed, NotMeasured, Row, Status
from benchmarks.device.gpu_tests import count_outcomes as counted_tests
from benchmarks.device.isolate import isolated
from benchmarks.device.torch_recordings import count_history as counted_history
from benchmarks.device.torch_recordings import count_trace_events as counted_trace


class Measures:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.name = "planted"

    def measure(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"seen": 1}


def test_without_a_gpu_every_row_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "no_device", lambda: gpu.NO_DEVICE)
    output = tmp_path / "gpu.json"
    assert gpu.main(["--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["check"] for row in rows] == [check.name for check in CHECKS]
    assert {(row["status"], row["reason"]) for row in rows} == {("not measured", "no CUDA device")}
    assert capsys.readouterr().out.count("not measured: no CUDA device") == len(CHECKS)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (None, Status.OK, None),
        (NotMeasured("no NCCL\nhere"), Status.NOT_MEASURED, "no NCCL here"),
        (ModuleNotFoundError("No module named 'cuda'", name="cuda"), Status.NOT_MEASURED, "cuda is missing"),
        (CheckFailed("off by 2", {"off": 2}), Status.FAILED, "off by 2"),
        (RuntimeError("CUDA error: illegal"), Status.FAILED, "RuntimeError: CUDA error: illegal"),
    ],
)
def test_a_check_always_gives_a_row(error: Exception | None, status: Status, reason: str | None) -> None:
    row = isolate.make_row(Measures(error))  # type: ignore[arg-type]
    assert row.status is status
    assert row.reason is None if reason is None else (row.reason or "").startswith(reason)
    assert row.figures == ({"seen": 1} if error is None else getattr(error, "figures", {}))


def test_a_crash_is_a_row(tmp_path: Path) -> None:
    script = "import os, sys; print('Fatal: gone', file=sys.stderr, flush=True); os.abort()"
    row = isolated("crash", tmp_path, 60, [sys.executable, "-c", script])
    assert (row.status, row.reason) == (Status.FAILED, "ended with code -6: Fatal: gone")


def test_a_hang_is_a_row_and_leaves_no_process(tmp_path: Path) -> None:
    held = tmp_path / "held"  # by the process that the check started, until it ends
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    inner = f"import time; file = open({str(held)!r}, 'w'); file.write('here'); file.flush(); time.sleep(600)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    try:
        row = isolated("hang", tmp_path, 3, [sys.executable, "-c", script])
        assert (row.status, row.reason) == (Status.FAILED, "took longer than 3 s")
        assert os.read(reader, 4) == b"here"
        assert select.select([reader], [], [], 30)[0], "the process still runs"
        assert os.read(reader, 1) == b""  # nobody has it open any more
    finally:
        os.close(reader)


def test_checks_beyond_the_budget_are_not_made(tmp_path: Path) -> None:
    seen: list[int] = []
    checks = [Check(name="late", module="nowhere", function="measure", limit_s=1)]
    rows = gpu.rows_of(checks, tmp_path, reason=None, budget_s=0, seen=lambda rows: seen.append(len(rows)))
    assert [(row.status, row.reason) for row in rows] == [(Status.NOT_MEASURED, "no time left in the budget")]
    assert seen == [1]


def test_the_budget_is_8_minutes() -> None:
    assert gpu.BUDGET_S < 480
    assert all(check.limit_s < gpu.BUDGET_S for check in CHECKS)


def test_every_check_is_there() -> None:
    for check in CHECKS:
        path = Path(gpu.__file__).parent / "device" / f"{check.module.rpartition('.')[2]}.py"
        assert f"def {check.function}()" in path.read_text(), check.name


def test_a_failed_row_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "no_device", lambda: None)
    failed = Row(check="nvml", status=Status.FAILED, reason="planted")
    monkeypatch.setattr(gpu, "isolated", lambda name, folder, limit_s: failed)
    output = tmp_path / "gpu.json"
    assert gpu.main(["--output", str(output), "--only", "nvml"]) == 1
    assert json.loads(output.read_text())["rows"][0]["reason"] == "planted"


def test_tests_are_counted_from_their_junit_file() -> None:
    junit = """<testsuites><testsuite>
        <testcase classname="a" name="good"/>
        <testcase classname="a" name="bad"><failure message="off"/></testcase>
        <testcase classname="a" name="broken"><error message="off"/></testcase>
        <testcase classname="a" name="left"><skipped message="no device"/></testcase>
    </testsuite></testsuites>"""
    assert counted_tests(junit) == {
        "passed": 1, "failed": ["a::bad", "a::broken"], "skipped": {"a::left": "no device"}
    }  # fmt: skip


def test_a_trace_is_counted_by_category_stream_and_copy() -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "args": {"stream": 7}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "args": {"stream": 20}},
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_gather"},
        {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "args": {"Collective name": "allgather"}},
        {"ph": "M", "name": "thread_name"},
    ]
    seen = counted_trace(events)
    assert seen["events"] == {"kernel": 1, "gpu_memcpy": 1, "user_annotation": 1, "cpu_op": 1}
    assert seen["streams"] == {"7": 1, "20": 1}
    assert seen["copies"] == {"Memcpy DtoH": 1}
    assert seen["collectives"] == {"gloo:all_gather": 1, "record_param_comms": 1}
    assert seen["with_collective_arguments"] == 1


def test_a_snapshot_is_counted_by_state_and_action() -> None:
    blocks = [{"state": "active_allocated", "size": 512}, {"state": "inactive", "size": 1024}]
    snapshot = {
        "segments": [{"blocks": blocks}],
        "device_traces": [[{"action": "alloc"}, {"action": "alloc"}]],
    }
    seen = counted_history(snapshot)
    assert (seen["segments"], seen["blocks"]["inactive"], seen["block_bytes"]["inactive"]) == (1, 1, 1024)
    assert seen["actions"] == {"alloc": 2}


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="no load average here")
def test_conditions_name_the_machine_and_the_commit() -> None:
    from benchmarks.conditions import conditions

    seen = conditions()
    assert {"torch", "python", "cpu", "cores", "load_average", "commit", "date"} <= set(seen)
    assert len(seen["load_average"]) == 3
