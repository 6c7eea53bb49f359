"""The history of a CUDA allocator over a window, from a simulated one."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
import torch

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import MIB
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.snapshots import frames, random_history
from zprof.collectors.record.memory import collector as collector_module
from zprof.collectors.record.memory.allocator_events import (
    FIRST_STACK,
    CudaHistory,
    CudaMemory,
    merge_history,
)
from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.collectors.record.schedule import MemoryMode
from zprof.run.schema import TABLES

ALL = ["record", "snapshot", "end"]


class FakeCudaMemory(CudaMemory):
    """Records what is asked of it."""

    def __init__(self, *, used: bool = True, recorded: bool = False, fails: str = "") -> None:
        self.used, self.recorded, self.fails = used, recorded, fails
        self.allocator = random_history(3, 40)
        self.calls: list[str] = []

    def in_use(self) -> bool:
        return self.used

    def is_recorded(self) -> bool:
        return self.recorded

    def record(self, max_entries: int) -> None:
        self.recorded = True
        self.note("record")

    def snapshot(self) -> Mapping[str, Any]:
        self.note("snapshot")
        return snapshot_of(self.allocator)

    def end(self) -> None:
        self.recorded = False
        self.note("end")

    def note(self, name: str) -> None:
        self.calls.append(name)
        if self.fails == name:
            raise RuntimeError(f"{name} failed")


def recorded(memory: FakeCudaMemory) -> CudaHistory:
    history = CudaHistory(memory)
    history.start()
    history.stop()
    return history


def test_a_window_gives_tables_that_a_run_takes() -> None:
    memory = FakeCudaMemory()
    tables = recorded(memory).tables()
    assert memory.calls == ALL
    assert set(tables) == {"block", "segment", "stack"}
    for name, columns in tables.items():
        assert pa.table(dict(columns), schema=TABLES[name]).num_rows > 0


def test_stacks_of_the_history_do_not_clash_with_those_of_storages() -> None:
    memory = FakeCudaMemory()
    memory.allocator = Allocator()
    memory.allocator.begin_history()
    memory.allocator.alloc(MIB, frames=frames("made"))
    memory.allocator.alloc(MIB)
    tables = recorded(memory).tables()
    assert pa.array(tables["block"]["stack"]).to_pylist() == [FIRST_STACK, None]
    storages = {"stack": [0], "depth": [0], "file": ["a.py"], "line": [1], "function": ["f"]}
    together = merge_history({"alloc": {}, "stack": storages}, tables)
    assert set(together) == {"alloc", "stack", "block", "segment"}
    assert list(together["stack"]["stack"]) == [0, FIRST_STACK]
    assert list(together["stack"]["function"]) == ["f", "made"]
    assert merge_history({"stack": storages}, {}) == {"stack": storages}


@pytest.mark.parametrize(
    ("mode", "options", "calls", "gaps"),
    [
        (MemoryMode.FULL, {}, ALL, 0),
        (MemoryMode.FULL, {"used": False}, [], 0),
        (MemoryMode.FULL, {"recorded": True}, [], 1),  # by the program itself
        (MemoryMode.FULL, {"fails": "record"}, ALL, 1),
        (MemoryMode.FULL, {"fails": "snapshot"}, ALL, 1),
        (MemoryMode.LIGHT, {}, [], 1),  # for what light mode does not see
    ],
)
def test_a_memory_window_records_the_history_if_it_can(
    monkeypatch: pytest.MonkeyPatch, mode: MemoryMode, options: dict[str, Any], calls: list[str], gaps: int
) -> None:
    memory = FakeCudaMemory(**options)
    before = memory.recorded
    monkeypatch.setattr(collector_module, "CudaHistory", lambda: CudaHistory(memory))
    collector = MemoryCollector(None, None, mode)
    collector.start()
    torch.ones(1000)
    collector.stop()
    assert (memory.calls, memory.recorded) == (calls, before)
    assert len(collector.gaps()) == gaps
    tables = collector.tables()
    assert ("block" in tables) == (calls == ALL and options.get("fails") != "snapshot")
    assert (4 * 1000 in tables["alloc"]["bytes"]) == (mode is MemoryMode.FULL)
