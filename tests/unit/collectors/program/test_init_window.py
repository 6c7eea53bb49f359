"""The window before the first step: it begins with the first parameter, and stays within its limits."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from zprof.collectors.profiler_session import is_profiler_running
from zprof.collectors.program.discovery import find_trained
from zprof.collectors.program.init_window import InitWindow


@pytest.fixture
def window() -> Iterator[InitWindow]:
    window = InitWindow()
    window.arm()
    yield window
    window.close()


def claimed(window: InitWindow, tenant: str) -> dict[int, int]:
    """Bytes of the lives that a tenant claimed, by generation."""
    alloc, role = window.tables()["init_alloc"], window.tables()["init_role"]
    mine = {g for g, name in zip(role["generation"], role["tenant"], strict=True) if name == tenant}
    return {g: b for g, b in zip(alloc["generation"], alloc["bytes"], strict=True) if g in mine}


def is_watched() -> bool:
    return is_profiler_running() or torch._C._len_torch_dispatch_stack() > 0


def train(model: nn.Module, window: InitWindow) -> Any:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 64)).sum().backward()
    window.know(find_trained([optimizer]))
    optimizer.step()
    window.close()
    return optimizer


def test_nothing_is_watched_before_there_is_a_parameter(window: InitWindow) -> None:
    torch.ones(5)
    assert not is_watched()
    nn.Linear(2, 2)
    assert is_watched()


def test_parameters_are_claimed_that_are_gone_when_the_model_is_known(window: InitWindow) -> None:
    """A full model that is built, and replaced by a part of it before anything trains."""
    full = nn.Linear(64, 64, bias=False)
    half = nn.Linear(64, 32, bias=False)
    del full
    train(half, window)
    assert sorted(claimed(window, "parameters").values()) == [64 * 32 * 4, 64 * 64 * 4]


def test_states_and_gradients_are_claimed_at_its_end(window: InitWindow) -> None:
    train(nn.Linear(64, 64, bias=False), window)
    size = 64 * 64 * 4
    assert sorted(claimed(window, "optimizer_state").values())[-2:] == [size, size]
    assert list(claimed(window, "gradients").values()) == [size]
    assert not is_watched()
    marks = window.marks()
    of_windows = [
        row for row in zip(marks["kind"], marks["number"], marks["name"], strict=True) if row[1] < 0
    ]
    assert of_windows == [("window_begin", -1, "init"), ("window_end", -1, "init")]
    assert not window.gaps()


def test_masters_of_an_engine_are_optimizer_state(window: InitWindow) -> None:
    model = nn.Linear(64, 64, bias=False)
    master = model.weight.detach().clone()
    master.grad = torch.ones(64, 64)
    optimizer = torch.optim.SGD([master], lr=0.1)
    window.know(find_trained([optimizer]))
    optimizer.step()
    window.close()
    assert list(claimed(window, "optimizer_state").values()) == [64 * 64 * 4]
    assert list(claimed(window, "parameters").values()) == [64 * 64 * 4]


def test_it_does_not_begin_within_a_mode_of_the_program(window: InitWindow) -> None:
    """The program would leave our mode in place of its own."""
    with torch._subclasses.FakeTensorMode():
        nn.Linear(2, 2)
    assert not is_watched()
    nn.Linear(2, 2)
    assert is_watched()


def test_beyond_its_limit_it_ends_at_the_next_module(window: InitWindow) -> None:
    window.close()
    window = InitWindow(max_rows=50)
    window.arm()
    model = nn.Linear(8, 8)
    deadline = time.monotonic() + 60
    while not window._over_limit and time.monotonic() < deadline:
        torch.ones(3) + 1
    assert is_watched(), "only a place between operators can end it"
    model(torch.ones(1, 8))
    assert not is_watched()
    assert not torch_module._global_forward_pre_hooks
    (gap,) = window.gaps()
    assert "rows" in gap.reason
    assert claimed(window, "parameters")


def test_a_program_with_a_profiler_of_its_own_keeps_it(window: InitWindow) -> None:
    with torch.profiler.profile() as own:
        nn.Linear(2, 2)
        torch.ones(3)
    assert any(event.key == "aten::ones" for event in own.key_averages())
    window.close()


def test_a_fork_is_left_alone(window: InitWindow) -> None:
    nn.Linear(2, 2)
    child = os.fork()
    if child == 0:
        window.abandon()
        os._exit(1 if is_watched() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_watched()


def test_where_no_module_registers_anything_that_is_said(window: InitWindow) -> None:
    window.close()
    assert not window.tables()
    assert [gap.what for gap in window.gaps()] == ["memory before the first step"]
