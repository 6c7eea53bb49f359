"""Samples of the training thread: its lines are seen, reads are noted, and nothing stays behind."""

import time

import pytest
import torch

from zprof.collectors.record.host_stacks import READ, TIMER, HostStacks


def sleep_here() -> None:
    time.sleep(0.2)


def lines_of(stacks: HostStacks, kind: str) -> set[str]:
    """Functions on the sampled stacks of this kind."""
    tables = stacks.tables()
    numbers = {
        stack
        for each, stack in zip(tables["host_sample"]["kind"], tables["host_sample"]["stack"], strict=True)
        if each == kind
    }
    frames = tables["host_stack"]
    return {
        function
        for stack, function in zip(frames["stack"], frames["function"], strict=True)
        if stack in numbers
    }


def test_the_line_that_takes_time_is_sampled() -> None:
    stacks = HostStacks()
    stacks.start()
    sleep_here()
    stacks.stop()
    assert "sleep_here" in lines_of(stacks, TIMER)


def test_reads_are_noted_with_their_callers_and_methods_are_restored() -> None:
    before = dict(vars(torch.Tensor))
    stacks = HostStacks()
    stacks.start()

    def read_back() -> float:
        value = torch.ones(1)
        return value.item() + float(value) + int(value) + bool(value)

    assert read_back() == 4
    stacks.stop()
    read_back()
    assert "read_back" in lines_of(stacks, READ)
    assert stacks.tables()["host_sample"]["kind"].count(READ) == 4
    assert dict(vars(torch.Tensor)) == before


def test_a_method_that_the_program_replaced_meanwhile_is_left_alone() -> None:
    stacks = HostStacks()
    stacks.start()
    wrapped = torch.Tensor.item
    try:
        torch.Tensor.item = lambda tensor: wrapped(tensor)  # type: ignore[method-assign]
        stacks.stop()
        assert torch.ones(1).item() == 1
    finally:
        del torch.Tensor.item


def test_samples_are_bounded() -> None:
    stacks = HostStacks()
    stacks.start()
    value = torch.ones(1)
    for _ in range(10_000):
        value.item()
    stacks.stop()
    assert len(stacks.tables()["host_sample"]["kind"]) < 5_000


def test_a_compiled_program_sees_the_method_of_the_tensor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "capture_scalar_outputs", True)

    def scale(values: torch.Tensor) -> torch.Tensor:
        return values * values.sum().item()

    stacks = HostStacks()
    stacks.start()
    try:  # fullgraph: whatever the compiler cannot trace is an error
        scaled = torch.compile(scale, backend="eager", fullgraph=True)(torch.ones(4))
    finally:
        stacks.stop()
    assert torch.equal(scaled, scale(torch.ones(4)))
