"""Light mode: hooks alone, exact for the first step's activations, with gaps for the rest."""

import pytest
import torch
from memory_window import Window, record, small_model, train_step
from torch import nn

from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.collectors.record.schedule import MemoryMode
from zprof.model.gap_texts import make_gap

LIGHT = MemoryMode.LIGHT


def saved_tensor_hooks() -> object:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def window_of(steps: int, mode: MemoryMode = LIGHT, *, compiled: bool = False) -> Window:
    model = small_model()
    if compiled:
        torch._dynamo.reset()
        model.compile(backend="eager")
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer)

    def body() -> None:
        for number in range(steps):
            train_step(model, optimizer, number)

    return record(body, model, optimizer, MemoryCollector(model, optimizer, mode))


def claimed_bytes(window: Window, sub: str) -> int:
    own = window.claimed(sub)
    return int(own.ints("bytes")[~own.bools("before_window")].sum())


def test_activations_are_those_of_the_first_step() -> None:
    light, full = (claimed_bytes(window_of(2, mode), "saved") for mode in (LIGHT, MemoryMode.FULL))
    assert 2 * light == full > 0


def test_what_is_not_seen_is_a_gap() -> None:
    assert window_of(1).gaps == [make_gap("operators_not_recorded")]
    assert window_of(2).gaps == [make_gap("operators_not_recorded"), make_gap("saved_tensors_of_first_step")]
    assert make_gap("saved_tensors_of_first_step") in window_of(2, compiled=True).gaps


class Watcher(nn.Module):
    """Notes from within the forward what a program could notice of zprof."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.seen: list[tuple[int, bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        modes, profiler = torch._C._len_torch_dispatch_stack(), torch.autograd._profiler_enabled()
        self.seen.append((modes, profiler, saved_tensor_hooks() is not None))
        return self.inner(x)


@pytest.mark.parametrize("optimizers", [1, 2])
def test_saved_tensor_hooks_are_there_until_all_optimizers_have_stepped(optimizers: int) -> None:
    model = Watcher()
    parts = [model.inner] if optimizers == 1 else [model.inner[0], model.inner[2:]]
    each = [torch.optim.SGD(part.parameters()) for part in parts]

    def body() -> None:
        for _ in range(2):
            for optimizer in each:
                train_step(model, optimizer)

    record(body, model, each, MemoryCollector(model, each, LIGHT))
    assert model.seen == [(0, False, True)] * optimizers + [(0, False, False)] * optimizers


def test_a_gradient_that_no_hook_saw_is_claimed_before_the_optimizer_steps() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters())

    def body() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()  # or the last scan of the window would find them

    window = record(body, model, optimizer, MemoryCollector(model, optimizer, LIGHT))
    assert claimed_bytes(window, "grad") == sum(p.nbytes for p in model.parameters())
