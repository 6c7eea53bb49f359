"""A memory window changes nothing of the program: its results, modes, hooks, compiled code, or torch."""

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from memory_window import record, small_model, train_step
from torch import nn
from torch.optim import optimizer as optimizer_module
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from zprof.collectors.record.memory import storages
from zprof.collectors.record.memory.collector import LightScans, MemoryCollector
from zprof.collectors.record.memory.hooks import Hooks
from zprof.collectors.record.memory.owners import OwnerScanner
from zprof.collectors.record.schedule import MemoryMode

modes = pytest.mark.parametrize("mode", list(MemoryMode))
FULL, LIGHT = MemoryMode.FULL, MemoryMode.LIGHT


def saved_tensor_hooks() -> object:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def process_state(model: nn.Module) -> list[Any]:
    """Return every place that the collector touches, as it is now."""
    group = torch._C._distributed_c10d.ProcessGroup if dist.is_available() else object
    modules, parameters = list(model.modules()), list(model.parameters())
    return [
        torch._C._len_torch_dispatch_stack(),
        _python_dispatch._is_in_torch_dispatch_mode,
        _python_dispatch._is_in_any_mode_without_ignore_compile_internals,
        saved_tensor_hooks(),
        torch._C._autograd._push_saved_tensors_default_hooks,
        torch._C._autograd._saved_tensors_hooks_disable,
        dict(vars(torch.autograd.function.BackwardCFunction)),
        dict(vars(torch.UntypedStorage)),
        dict(vars(group)),
        torch.get_rng_state,
        len(optimizer_module._global_optimizer_pre_hooks),
        len(optimizer_module._global_optimizer_post_hooks),
        [dict(vars(module)[name]) for module in modules for name in ("_forward_hooks", "_forward_pre_hooks")],
        [dict(module._forward_hooks_always_called) for module in modules],
        [len(parameter._backward_hooks or ()) for parameter in parameters],
        torch.autograd._profiler_enabled(),
    ]


@modes
@pytest.mark.parametrize("calls", [["start", "stop"], ["start", "stop", "stop"], ["stop"]], ids="-".join)
def test_the_process_is_restored(mode: MemoryMode, calls: list[str]) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    before = process_state(model)
    collector = MemoryCollector(model, optimizer, mode)
    for call in calls:
        getattr(collector, call)()
        if call == "start":
            assert process_state(model) != before
            train_step(model, optimizer)
    assert process_state(model) == before


@pytest.mark.parametrize(
    ("mode", "place", "method"),
    [
        (FULL, storages.StorageTracker, "claim"),
        (FULL, OwnerScanner, "after_optimizer"),
        (LIGHT, LightScans, "before_optimizer"),
        (LIGHT, LightScans, "on_module_called"),
        (LIGHT, Hooks, "remove_saved_tensor_hooks"),
    ],
)
def test_a_fault_of_zprof_ends_the_recording_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch, mode: MemoryMode, place: type, method: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    before = process_state(model)

    def body() -> None:
        with monkeypatch.context() as planted:
            planted.setattr(place, method, fail)
            train_step(model, optimizer)
            train_step(model, optimizer)

    window = record(body, model, optimizer, MemoryCollector(model, optimizer, mode))
    assert [gap.reason for gap in window.gaps[:1]] == ["planted"]
    assert process_state(model) == before


@modes
def test_training_is_the_same_bit_by_bit(mode: MemoryMode) -> None:
    def weights(*, watched: bool) -> list[torch.Tensor]:
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters())

        def body() -> None:
            for number in range(3):
                train_step(model, optimizer, number)

        if watched:
            record(body, model, optimizer, MemoryCollector(model, optimizer, mode))
        else:
            body()
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(map(torch.equal, weights(watched=False), weights(watched=True)))


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def work() -> None:
    nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward()


@pytest.mark.parametrize("within", ["start", "stop"])
@pytest.mark.parametrize("block", [Counting, torch.autograd.graph.save_on_cpu])
def test_a_window_may_start_or_stop_within_a_block_of_the_program(
    block: Callable[[], contextlib.AbstractContextManager[Any]], within: str
) -> None:
    model = nn.Linear(3, 3)
    before, collector = process_state(model), MemoryCollector(model, None)
    if within == "stop":
        collector.start()
    with block(), block():
        work()
        getattr(collector, within)()
        work()
    if within == "start":
        work()
        collector.stop()
    assert process_state(model) == before
    assert collector.gaps() == []


def copy_the_model() -> None:
    model, x = small_model(), torch.randn(4, 64)
    for duplicate in (copy.deepcopy, torch.optim.swa_utils.AveragedModel):
        assert torch.equal(duplicate(model)(x), model(x))


def save_the_model() -> None:
    model, x, file = small_model(), torch.randn(4, 64), io.BytesIO()
    torch.save(model, file)
    assert b"zprof" not in file.getvalue()
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), model(x))


def transform_functions() -> None:
    before, x = saved_tensor_hooks(), torch.ones(2, 3)
    assert torch.equal(torch.func.grad(lambda y: y.square().sum())(x), 2 * x)
    jacobian = torch.func.vmap(torch.func.jacrev(torch.func.grad(lambda y: y.square().sum())))(x)
    assert torch.equal(jacobian, 2 * torch.eye(3).expand(2, 3, 3))
    assert saved_tensor_hooks() == before is not None


def refill_a_storage_between_forward_and_backward() -> None:
    weight, x = torch.full((4, 4), 2.0, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    values, storage = weight.detach().clone(), weight.untyped_storage()
    loss, size = (x * weight).sum(), storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
        weight.copy_(values)
    loss.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, values)


@pytest.mark.parametrize(
    "body",
    [
        copy_the_model,
        save_the_model,
        transform_functions,
        refill_a_storage_between_forward_and_backward,
    ],
)
def test_a_program_does_in_a_window_what_it_does_outside(body: Callable[[], None]) -> None:
    assert record(body, small_model()).gaps == []


def test_compiled_code_still_runs_compiled() -> None:
    calls: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        return lambda *args: calls.append(1) or graph.forward(*args)

    torch._dynamo.reset()
    model = torch.compile(small_model(), backend=backend)
    x = torch.randn(4, 64)
    model(x)
    record(lambda: model(x).sum().backward(), model)
    assert len(calls) == 2
