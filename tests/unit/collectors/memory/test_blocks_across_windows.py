"""A ``with`` block of the program around a window's begin or end: ours goes, the program's stays."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from zprof.collectors.memory.collector import WITHOUT_MODEL, MemoryCollector


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def state() -> tuple[Any, ...]:
    """What blocks of modes and hooks change on this thread."""
    return (
        torch._C._len_torch_dispatch_stack(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        _python_dispatch._is_in_torch_dispatch_mode,
        _python_dispatch._is_in_non_infra_torch_dispatch_mode,
        _python_dispatch._is_in_any_mode_without_ignore_compile_internals,
    )


BLOCKS: list[Callable[[], contextlib.AbstractContextManager[Any]]] = [
    Counting,
    torch.autograd.graph.save_on_cpu,
    lambda: FlopCounterMode(display=False),
]


def work() -> None:
    nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward()


@pytest.mark.parametrize("block", BLOCKS)
def test_a_window_ends_within_a_block(block: Callable[[], Any]) -> None:
    before, collector = state(), MemoryCollector(None, None)
    collector.start()
    with block(), block():
        work()
        collector.stop()
        work()
    assert state() == before
    assert collector.gaps() in ([], [WITHOUT_MODEL])


@pytest.mark.parametrize("block", BLOCKS)
def test_a_window_begins_within_a_block(block: Callable[[], Any]) -> None:
    before, collector = state(), MemoryCollector(None, None)
    with block(), block():
        within = state()
        collector.start()
        work()
    assert state() != within
    work()
    collector.stop()
    assert state() == before
    assert collector.gaps() in ([], [WITHOUT_MODEL])


def test_a_mode_counts_on_after_a_window_within_it() -> None:
    with Counting() as mode:
        collector = MemoryCollector(None, None)
        collector.start()
        torch.ones(3)
        inside = mode.count
        collector.stop()
        after = mode.count
        torch.ones(3)
    assert inside == 1
    assert mode.count == after + 1
    torch.ones(3)
    assert mode.count == after + 1
