"""Accelerators that are not understood: their lanes are named, and no time of the host stands for theirs."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.trace_folders import trace_document, write_trace
from zprof.analysis.analysis import analyse
from zprof.cli import main
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.gaps import GapKind
from zprof.run.reader import load

_HOST, _DEVICE = 4242, 77


def _span(pid: int | str, name: str, ts: float, dur: float, category: str | None = None) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "pid": pid, "tid": 1, "ts": ts, "dur": dur, "args": {}}
    return event if category is None else {**event, "cat": category}


def _name(pid: int | str, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def _host_events(pid: int | str = _HOST) -> list[dict[str, Any]]:
    steps = [_span(pid, f"ProfilerStep#{step}", 1000 * step, 1000, "user_annotation") for step in (1, 2, 3)]
    operators = [_span(pid, "aten::mm", 1000 + 100 * index, 20, "cpu_op") for index in range(30)]
    return [*steps, *operators]


def _import(tmp_path: Path, events: list[dict[str, Any]]) -> Any:
    path = write_trace(tmp_path / "trace_view.json", events)
    return load(import_paths([path], tmp_path / "run.zprof").run)


def _ascend_events() -> list[dict[str, Any]]:
    lanes = ((_DEVICE, "Ascend Hardware", "MatMulV2"), (78, "CANN", "launch"), (79, "Communication", "hcom"))
    return [
        *_host_events(),
        *(_name(pid, name) for pid, name, _ in lanes),
        *(_span(pid, name, 1005 + 100 * n, 60) for pid, _, name in lanes for n in range(30)),
    ]


def _events_of_word_processes() -> list[dict[str, Any]]:
    return [*_host_events("python"), *(_span("AICore", "MatMul", 1005 + 100 * n, 60) for n in range(30))]


def _other_events(category: str) -> list[dict[str, Any]]:
    return [*_host_events(), *(_span(0, "gemm", 1005 + 100 * n, 90, category) for n in range(30))]


_JAX = [
    *(_name(pid, name) for pid, name in ((1, "/host:CPU"), (2, "/device:TPU:0"))),
    *(_span(1 + n % 2, "fusion", 1000 + 100 * n, 90) for n in range(30)),
]


@pytest.mark.parametrize(
    ("events", "device", "lane", "count"),
    [
        (_ascend_events(), "npu", "Ascend Hardware", 30),
        (_other_events("mtia_ccp_events"), "mtia", "mtia_ccp_events", 30),
        (_other_events("hpu_op"), "hpu", "hpu_op", 30),
        (_other_events("privateuse1_runtime"), "privateuse1", "privateuse1_runtime", 30),
        (_other_events("a_new_accelerator"), "unknown", "a_new_accelerator", 30),
        (_events_of_word_processes(), "unknown", "a process without a name", 30),
        (_JAX, "unknown", "/device:TPU:0", 15),
    ],
)
def test_lanes_of_an_unknown_device_are_named_and_nothing_is_measured(
    tmp_path: Path, events: list[dict[str, Any]], device: str, lane: str, count: int
) -> None:
    run = _import(tmp_path, events)
    analysis = analyse(run)
    (gap,) = [gap for gap in analysis.gaps if gap.kind is GapKind.UNKNOWN_DEVICE]
    assert run.manifest.device == device
    assert not analysis.time.per_rank
    assert f"{lane} ({count} events)" in gap.reason
    assert gap.rank == 0
    assert gap.remedy


def test_the_answer_names_the_lanes_and_is_no_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_trace(tmp_path / "trace_view.json", _ascend_events())
    assert main(["diagnose", str(path)]) == 3
    printed = capsys.readouterr()
    assert "Ascend Hardware (30 events)" in printed.err
    assert not printed.out


@pytest.mark.parametrize(
    ("events", "device"),
    [
        (_host_events(), "cpu"),
        ([*_host_events(), _span(_HOST, "mine", 1100, 50, "my_category")], "cpu"),
        ([*_host_events(), _span(99, "stray", 1100, 50)], "cpu"),
        ([*_host_events(), *(_span("Spans", "PyTorch Profiler", 1000, 9, "Trace") for _ in range(9))], "cpu"),
        (trace_document()["traceEvents"], "cuda"),
        ([*trace_document()["traceEvents"], _span(10, "urEnqueue", 1000, 3, "xpu_runtime")], "xpu"),
    ],
)
def test_hosts_and_kernels_are_measured_as_before(
    tmp_path: Path, events: list[dict[str, Any]], device: str
) -> None:
    run = _import(tmp_path, events)
    analysis = analyse(run)
    assert run.manifest.device == device
    assert len(analysis.time.per_rank) == 1
    assert not [gap for gap in analysis.gaps if gap.kind is GapKind.UNKNOWN_DEVICE]
