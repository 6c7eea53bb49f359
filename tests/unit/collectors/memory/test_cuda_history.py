"""The history of a CUDA allocator over a window, from a simulated one."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
import torch

from tests.support.snapshots import MIB, Allocator, frames, random_history, snapshot_of
from zprof.collectors.memory.collector import MemoryCollector
from zprof.collectors.memory.cuda_history import FIRST_STACK, CudaHistory, TorchCudaMemory, merge_history
from zprof.collectors.schedule import MemoryMode
from zprof.run.schema import TABLES


class FakeCudaMemory:
    """Records what is asked of it."""

    def __init__(
        self, *, used: bool = True, recorded: bool = False, allocator: Allocator | None = None
    ) -> None:
        self.used, self.recorded = used, recorded
        self.allocator = allocator or random_history(3, 40)
        self.calls: list[str] = []
        self.fails = ""

    def in_use(self) -> bool:
        return self.used

    def is_recorded(self) -> bool:
        return self.recorded

    def record(self, max_entries: int) -> None:
        self._call("record")
        self.recorded = True

    def snapshot(self) -> Mapping[str, Any]:
        self._call("snapshot")
        return snapshot_of(self.allocator)

    def end(self) -> None:
        self._call("end")
        self.recorded = False

    def _call(self, name: str) -> None:
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
    assert memory.calls == ["record", "snapshot", "end"]
    assert set(tables) == {"block", "segment", "stack"}
    for name, columns in tables.items():
        assert pa.table(dict(columns), schema=TABLES[name]).num_rows > 0


def test_stacks_of_the_history_do_not_clash_with_those_of_storages() -> None:
    allocator = Allocator()
    allocator.begin_history()
    allocator.alloc(MIB, frames=frames("made"))
    allocator.alloc(MIB)
    tables = recorded(FakeCudaMemory(allocator=allocator)).tables()
    assert pa.array(tables["block"]["stack"]).to_pylist() == [FIRST_STACK, None]
    storages = {"stack": [0], "depth": [0], "file": ["a.py"], "line": [1], "function": ["f"]}
    together = merge_history({"alloc": {}, "stack": storages}, tables)
    assert set(together) == {"alloc", "stack", "block", "segment"}
    assert list(together["stack"]["stack"]) == [0, FIRST_STACK]
    assert list(together["stack"]["function"]) == ["f", "made"]
    assert pa.table(dict(together["stack"]), schema=TABLES["stack"]).num_rows == 2
    assert merge_history({"stack": storages}, {}) == {"stack": storages}


def test_without_a_device_in_use_nothing_is_touched() -> None:
    memory = FakeCudaMemory(used=False)
    history = recorded(memory)
    assert (memory.calls, history.tables(), history.gaps()) == ([], {}, [])


def test_a_program_that_records_its_own_history_is_left_alone() -> None:
    memory = FakeCudaMemory(recorded=True)
    history = recorded(memory)
    assert memory.calls == []
    assert memory.recorded
    assert history.tables() == {}
    assert "its own" in history.gaps()[0].reason


def test_a_program_that_turns_it_off_in_the_window_leaves_a_gap() -> None:
    memory = FakeCudaMemory()
    history = CudaHistory(memory)
    history.start()
    memory.recorded = False
    history.stop()
    assert memory.calls == ["record"]
    assert history.tables() == {}
    assert "turned it off" in history.gaps()[0].reason


def test_what_began_and_then_failed_is_turned_off() -> None:
    memory = FakeCudaMemory()
    memory.fails = "record"
    history = CudaHistory(memory)
    with pytest.raises(RuntimeError):
        history.start()
    memory.recorded = True  # it had begun
    history.stop()
    assert memory.calls == ["record", "snapshot", "end"]


def test_a_snapshot_that_fails_leaves_nothing_on() -> None:
    memory = FakeCudaMemory()
    memory.fails = "snapshot"
    history = CudaHistory(memory)
    history.start()
    with pytest.raises(RuntimeError):
        history.stop()
    assert not memory.recorded
    assert history.tables() == {}
    history.stop()
    assert memory.calls == ["record", "snapshot", "end"]


def test_a_snapshot_of_another_shape_is_a_gap() -> None:
    memory = FakeCudaMemory()
    history = CudaHistory(memory)
    history.start()
    memory.snapshot = lambda: {"segments": 7, "device_traces": []}  # type: ignore[method-assign]
    history.stop()
    assert history.tables() == {}
    assert [gap.what for gap in history.gaps()] == ["memory: allocator history"]


def test_torch_without_a_device_says_that_none_is_in_use() -> None:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        assert not TorchCudaMemory().in_use()


def test_the_collector_of_a_window_records_it_and_gives_its_tables() -> None:
    memory = FakeCudaMemory()
    collector = MemoryCollector(None, None)
    collector._history = CudaHistory(memory)
    collector.start()
    collector.stop()
    assert memory.calls == ["record", "snapshot", "end"]
    gaps, tables = collector.gaps(), collector.tables()
    assert {"alloc", "block", "segment", "stack"} <= set(tables)
    assert not [gap for gap in gaps if "history" in gap.what]


def test_a_history_that_fails_is_a_gap_and_the_window_goes_on() -> None:
    memory = FakeCudaMemory()
    memory.fails = "record"
    collector = MemoryCollector(None, None)
    collector._history = CudaHistory(memory)
    collector.start()
    torch.ones(1000)
    collector.stop()
    assert any("record failed" in gap.reason for gap in collector.gaps())
    assert len(collector.tables()["alloc"]["bytes"]) > 0


def test_a_light_window_records_no_history() -> None:
    memory = FakeCudaMemory()
    collector = MemoryCollector(None, None, MemoryMode.LIGHT)
    collector._history = CudaHistory(memory)
    collector.start()
    collector.stop()
    assert memory.calls == []
