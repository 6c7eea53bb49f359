"""Stacks of allocations: where in the program the bytes were asked for, and that nothing is kept alive."""

import gc
import inspect
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from memory_window import record, small_model, train_step
from torch import nn

from zprof.collectors.memory import collector as collector_module
from zprof.collectors.memory import storages
from zprof.collectors.memory.collector import STACK_FROM_BYTES, MemoryCollector
from zprof.collectors.memory.tables import MAX_FRAMES, filter_program_frames
from zprof.integrations.program import in_process
from zprof.reference_engine import train as reference_train

Frame = tuple[str, int, str]
LARGE, SMALL = STACK_FROM_BYTES // 4, STACK_FROM_BYTES // 4 - 1


def tables_of(body: Callable[[], object], model: nn.Module | None = None) -> dict[str, Any]:
    collector = MemoryCollector(model, None)
    record(lambda: [body()].clear(), model, collector=collector)
    return dict(collector.tables())


def frames_by_size(tables: dict[str, Any]) -> dict[int, list[Frame]]:
    """Stack of the storage of each size; sizes in these tests are told apart."""
    stacks: dict[int, list[Frame]] = {}
    for number, _, *frame in zip(*tables["stack"].values(), strict=True):
        stacks.setdefault(number, []).append(tuple(frame))
    alloc = tables["alloc"]
    rows = zip(alloc["source"], alloc["bytes"], alloc["stack"], strict=True)
    return {size: stacks[stack] for _, size, stack in rows if stack is not None}


def make(count: int) -> torch.Tensor:
    return torch.empty(count)


def line_in(function: Callable[..., object], offset: int) -> int:
    return inspect.getsourcelines(function)[1] + offset


def test_the_stack_names_the_programs_lines_innermost_first() -> None:
    def caller() -> torch.Tensor:
        return make(LARGE)

    frames = frames_by_size(tables_of(caller))[4 * LARGE]
    assert frames[0] == (__file__, line_in(make, 1), "make")
    assert frames[1] == (__file__, line_in(caller, 1), "caller")


def test_neither_our_frames_nor_torchs_ways_to_a_forward_are_in_it() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 65))
    frames = frames_by_size(tables_of(lambda: model(torch.zeros(80, 64)), model))[80 * 65 * 4]
    functions = [function for _, _, function in frames]
    assert functions[:2] == ["forward", "forward"]  # of Linear, then of Sequential
    assert "_call_impl" not in functions
    assert not any("/memory/tap.py" in file or "/memory/storages.py" in file for file, _, _ in frames)


def test_equal_stacks_are_kept_once() -> None:
    tables = tables_of(lambda: [make(LARGE) for _ in range(50)])
    numbers = [number for number in tables["alloc"]["stack"] if number is not None]
    assert len(numbers) == 50
    assert len(set(numbers)) == 1
    assert set(tables["stack"]["stack"]) == set(numbers)
    depths = tables["stack"]["depth"]
    assert depths == list(range(len(depths)))


def test_only_what_is_large_has_one() -> None:
    sizes = set(frames_by_size(tables_of(lambda: (make(LARGE), make(SMALL)))))
    assert sizes == {4 * LARGE}


def test_a_deep_stack_is_cut_at_its_outer_end() -> None:
    def deep(left: int) -> torch.Tensor:
        return deep(left - 1) if left else make(LARGE)

    frames = frames_by_size(tables_of(lambda: deep(3 * MAX_FRAMES)))[4 * LARGE]
    assert len(frames) == MAX_FRAMES
    assert [function for _, _, function in frames] == ["make"] + ["deep"] * (MAX_FRAMES - 1)


def test_in_the_backward_it_leads_to_its_caller() -> None:
    x = torch.ones(LARGE, requires_grad=True)

    def backwards() -> None:
        (x * 2).sum().backward()

    alloc_and_stacks = tables_of(backwards)
    alloc = alloc_and_stacks["alloc"]
    stacks = {
        stack
        for phase, stack in zip(alloc["phase"], alloc["stack"], strict=True)
        if phase == "backward" and stack is not None
    }
    named = {
        number
        for number, function in zip(
            alloc_and_stacks["stack"]["stack"], alloc_and_stacks["stack"]["function"], strict=True
        )
        if function == "backwards"
    }
    assert stacks
    assert stacks <= named


def test_rows_of_the_allocator_and_of_the_time_before_have_none() -> None:
    held = make(LARGE)
    alloc = tables_of(lambda: make(LARGE))["alloc"]
    rows = zip(alloc["source"], alloc["before_window"], alloc["stack"], strict=True)
    assert {(source, before) for source, before, stack in rows if stack is not None} == {("storage", False)}
    assert held.numel() == LARGE


def test_neither_a_frame_nor_its_tensors_are_kept_alive() -> None:
    frames: list[Any] = []
    collector = MemoryCollector(None, None)
    collector.start()

    class Local:
        """Something that only the frame holds."""

    def body() -> Any:
        local, tensor = Local(), make(LARGE)
        frames.append(weakref.ref(local))
        return weakref.ref(tensor.untyped_storage())

    gc.disable()
    try:
        gone = body()
        assert gone() is None
        assert frames[0]() is None
    finally:
        gc.enable()
    collector.stop()
    assert any(birth.stack is not None for birth in collector._log.births())


@pytest.mark.parametrize(
    ("place", "name"), [(storages, "_gather_stack"), (collector_module, "AllocationStacks")]
)
def test_a_fault_while_stacks_are_taken_or_read_does_not_reach_training(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    class Failing:
        def __init__(self, *_: object) -> None:
            if _:
                raise RuntimeError("planted")

        def read(self, births: object) -> None:
            raise RuntimeError("planted")

        def of(self, generation: int) -> None:
            return None

        def table(self) -> dict[str, list[Any]]:
            return {}

    monkeypatch.setattr(place, name, Failing)
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    collector = MemoryCollector(model, optimizer)
    record(lambda: train_step(model, optimizer), model, optimizer, collector)
    assert [gap.reason for gap in collector.gaps()] == ["planted"]
    assert sys.getrefcount(model) >= 1


def test_frames_of_who_started_and_watches_the_program_are_left_out() -> None:
    ours = [in_process.__file__, collector_module.__file__, "<frozen runpy>"]
    program = [reference_train.__file__, "/home/me/train.py"]
    frames = [{"filename": file, "line": 1, "name": "f"} for file in (*ours, *program)]
    assert [file for file, _, _ in filter_program_frames(frames)] == program
