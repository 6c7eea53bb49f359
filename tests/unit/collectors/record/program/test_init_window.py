"""The window before the first step: it begins with the first parameter, and stays within its limits."""

import os
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from zprof.collectors.record.program.discovery import find_trained
from zprof.collectors.record.program.recording import InitWindow
from zprof.collectors.record.torch_private import is_profiler_running

SIZE = 64 * 64 * 4


@pytest.fixture
def window() -> Iterator[InitWindow]:
    window = InitWindow()
    window.arm()
    yield window
    window.close()


def claimed(window: InitWindow, tenant: str) -> list[int]:
    """Return the bytes of the lives that a tenant claimed."""
    alloc, role = window.tables()["init_alloc"], window.tables()["init_role"]
    mine = {g for g, name in zip(role["generation"], role["tenant"], strict=True) if name == tenant}
    return sorted(b for g, b in zip(alloc["generation"], alloc["bytes"], strict=True) if g in mine)


def is_watched() -> bool:
    return is_profiler_running() or torch._C._len_torch_dispatch_stack() > 0


def test_watching_begins_with_the_first_parameter_outside_of_modes(window: InitWindow) -> None:
    torch.ones(5)
    with torch._subclasses.FakeTensorMode():  # the program would leave ours in place of its own
        nn.Linear(2, 2)
    assert not is_watched()
    nn.Linear(2, 2)
    assert is_watched()


def test_tenants_are_claimed_at_its_end_also_of_a_model_that_is_gone(window: InitWindow) -> None:
    full = nn.Linear(64, 64, bias=False)
    half = nn.Linear(64, 32, bias=False)
    del full
    optimizer = torch.optim.Adam(half.parameters())
    half(torch.ones(2, 64)).sum().backward()
    window.set_trained(find_trained([optimizer]))
    optimizer.step()
    window.close()
    assert not is_watched()
    assert claimed(window, "parameters") == [SIZE // 2, SIZE]
    assert claimed(window, "optimizer_state")[-2:] == [SIZE // 2, SIZE // 2]
    assert claimed(window, "gradients") == [SIZE // 2]
    marks = window.marks()
    rows = zip(marks["kind"], marks["number"], marks["name"], strict=True)
    assert [row for row in rows if row[1] < 0] == [("window_begin", -1, "init"), ("window_end", -1, "init")]
    assert not window.gaps()


def test_beyond_its_limit_it_ends_at_the_next_module(window: InitWindow) -> None:
    window.close()
    window = InitWindow(max_rows=50)
    window.arm()
    model = nn.Linear(8, 8)
    deadline = time.monotonic() + 60
    while is_watched() and time.monotonic() < deadline:
        model(torch.ones(1, 8))
        time.sleep(0.02)
    assert not is_watched()
    assert len(window.gaps()) == 1
    assert claimed(window, "parameters")


def test_a_fork_is_left_alone(window: InitWindow) -> None:
    nn.Linear(2, 2)
    child = os.fork()
    if child == 0:
        window.abandon()
        os._exit(1 if is_watched() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_watched()


def test_a_program_without_parameters_is_a_gap(window: InitWindow) -> None:
    window.close()
    assert not window.tables()
    assert len(window.gaps()) == 1
