"""Stacks of allocations: where in the program the bytes were asked for, and that nothing is kept alive."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from memory_window import record
from torch import nn

from zprof.collectors.record.launch import in_process
from zprof.collectors.record.memory import collector as collector_module
from zprof.collectors.record.memory.collector import MIN_STACK_BYTES, MemoryCollector
from zprof.collectors.record.memory.tables import filter_program_frames
from zprof.reference_engine import train as reference_train

Frame = tuple[str, int, str]
LARGE, SMALL = MIN_STACK_BYTES // 4, MIN_STACK_BYTES // 4 - 1


def tables_of(body: Callable[[], object], model: nn.Module | None = None) -> dict[str, Any]:
    collector = MemoryCollector(model, None)
    record(lambda: [body()].clear(), model, collector=collector)
    return dict(collector.tables())


def frames_by_size(tables: dict[str, Any]) -> dict[int, list[Frame]]:
    """Return the stack of the storage of each size; sizes in these tests are told apart."""
    stacks: dict[int, list[Frame]] = {}
    for number, _, *frame in zip(*tables["stack"].values(), strict=True):
        stacks.setdefault(number, []).append(tuple(frame))
    alloc = tables["alloc"]
    rows = zip(alloc["source"], alloc["bytes"], alloc["stack"], strict=True)
    assert {source for source, _, stack in rows if stack is not None} <= {"storage"}
    rows = zip(alloc["bytes"], alloc["stack"], strict=True)
    return {size: stacks[stack] for size, stack in rows if stack is not None}


def make(count: int) -> torch.Tensor:
    return torch.empty(count)


def test_large_storages_have_the_programs_lines_innermost_first() -> None:
    held = make(2 * LARGE)  # from before the window: no stack

    def caller() -> list[torch.Tensor]:
        return [make(LARGE), make(SMALL)]

    frames = frames_by_size(tables_of(caller))
    assert list(frames) == [4 * LARGE]
    line = inspect.getsourcelines(make)[1] + 1
    assert frames[4 * LARGE][0] == (__file__, line, "make")
    assert frames[4 * LARGE][1][2] == "caller"
    assert held.numel() == 2 * LARGE


def test_frames_of_zprof_and_torch_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 65))
    frames = frames_by_size(tables_of(lambda: model(torch.zeros(80, 64)), model))[80 * 65 * 4]
    functions = [function for _, _, function in frames]
    assert functions[:2] == ["forward", "forward"]  # of Linear, then of Sequential
    assert "_call_impl" not in functions
    ours = [in_process.__file__, collector_module.__file__, "<frozen runpy>"]
    program = [reference_train.__file__, "/home/me/train.py"]
    gathered = [{"filename": file, "line": 1, "name": "f"} for file in (*ours, *program)]
    assert [file for file, _, _ in filter_program_frames(gathered)] == program
