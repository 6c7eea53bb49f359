"""What the collector sees in a program of one process, and that it leaves nothing behind."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from memory_window import record, small_model, train_step
from torch import nn
from torch.optim import optimizer as optimizer_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from zprof.collectors.memory import dispatch_mode
from zprof.collectors.memory.collector import WITHOUT_MODEL, MemoryCollector
from zprof.collectors.memory.hooks import Hooks
from zprof.collectors.memory.owners import OwnerScanner
from zprof.collectors.memory.storages import StorageTracker
from zprof.model.tenants import Tenant


def traces_of_us(model: nn.Module) -> dict[str, object]:
    """Every place that the collector touches, as it is now."""
    group = torch._C._distributed_c10d.ProcessGroup if dist.is_available() else object
    return {
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "saved-tensor push": torch._C._autograd._push_saved_tensors_default_hooks,
        "saved-tensor switch": torch._C._autograd._saved_tensors_hooks_disable,
        "saved tensors of functions": "saved_tensors" in torch.autograd.function.BackwardCFunction.__dict__,
        "storage class": "resize_" in torch.UntypedStorage.__dict__,
        "group class": getattr(group, "allreduce", None),
        "optimizer pre hooks": len(optimizer_module._global_optimizer_pre_hooks),
        "optimizer post hooks": len(optimizer_module._global_optimizer_post_hooks),
        "module hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()),
        "always-called hooks": sum(len(m._forward_hooks_always_called) for m in model.modules()),
        "parameter hooks": sum(len(p._backward_hooks or ()) for p in model.parameters()),
        "profiler": torch.autograd._profiler_enabled(),
    }


def start_and_stop(collector: MemoryCollector) -> None:
    collector.start()
    collector.stop()


def fail_in_the_step(collector: MemoryCollector) -> None:
    collector.start()
    with pytest.raises(ZeroDivisionError):
        _ = 1 / 0
    collector.stop()


def stop_twice(collector: MemoryCollector) -> None:
    collector.start()
    collector.stop()
    collector.stop()


def stop_without_start(collector: MemoryCollector) -> None:
    collector.stop()


@pytest.mark.parametrize("use", [start_and_stop, fail_in_the_step, stop_twice, stop_without_start])
def test_nothing_stays_in_place(use: Callable[[MemoryCollector], None]) -> None:
    model = small_model()
    before = traces_of_us(model)
    use(MemoryCollector(model, torch.optim.AdamW(model.parameters())))
    assert traces_of_us(model) == before


@pytest.mark.parametrize(
    ("place", "method"),
    [(Hooks, "install"), (OwnerScanner, "boundary"), (dispatch_mode.OperatorTap, "__enter__")],
)
def test_nothing_stays_in_place_where_the_start_fails(
    monkeypatch: pytest.MonkeyPatch, place: type, method: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    model = small_model()
    before = traces_of_us(model)
    monkeypatch.setattr(place, method, fail)
    with pytest.raises(RuntimeError, match="planted"):
        MemoryCollector(model, None).start()
    monkeypatch.undo()
    assert traces_of_us(model) == before


def test_a_fault_of_ours_ends_the_recording_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1_000_000))
    see = StorageTracker.see

    def fail_later(self: StorageTracker, *args: Any, before_window: bool = False) -> object:
        # Not while the window begins: how many tensors are there by then depends on the tests before.
        if not before_window and next(calls) > 20:
            raise RuntimeError("planted")
        return see(self, *args, before_window=before_window)

    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer)
    monkeypatch.setattr(StorageTracker, "see", fail_later)
    window = record(lambda: train_step(model, optimizer), model, optimizer)
    assert [gap.reason for gap in window.gaps] == ["planted"]


def test_training_is_the_same_bit_by_bit() -> None:
    def weights(*, watched: bool) -> list[torch.Tensor]:
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters())
        train_step(model, optimizer)
        if watched:
            record(lambda: train_step(model, optimizer, 2), model, optimizer)
        else:
            train_step(model, optimizer, 2)
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(watched=False), weights(watched=True), strict=True))


def test_no_tensor_is_kept_alive() -> None:
    collector = MemoryCollector(None, None)
    collector.start()
    tensor = torch.ones(10) * 2
    gone = weakref.ref(tensor.untyped_storage())
    del tensor
    assert gone() is None
    collector.stop()
    model = small_model()
    weight = weakref.ref(model)
    start_and_stop(held := MemoryCollector(model, torch.optim.AdamW(model.parameters())))
    del model
    gc.collect()
    assert weight() is None
    assert held.gaps() == []


def test_module_names_reach_into_the_backward() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer)
    window = record(lambda: train_step(model, optimizer), model, optimizer)
    made = window.births("aten.mm.default")
    backward = made[made["phase"] == "backward"]
    assert set(backward["module"]) == {"0", "2"}
    assert set(window.births("aten.addmm.default")["module"]) == {"0", "2"}


def test_phases_follow_each_other() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    window = record(lambda: train_step(model, optimizer), model, optimizer)
    phases = window.mark.loc[window.mark["kind"] == "phase", "name"].tolist()
    assert phases == ["forward", "backward", "optimizer", "other"]


def test_recomputing_is_a_phase_of_its_own() -> None:
    model = small_model()

    def body() -> None:
        checkpoint(model, torch.randn(8, 64), use_reentrant=False).sum().backward()

    window = record(body, model)
    phases = window.mark.loc[window.mark["kind"] == "phase", "name"].tolist()
    assert phases == ["forward", "backward", "recompute", "backward"]
    assert "recomputed" in set(window.lives.segments.sub)


def test_a_resized_storage_lives_twice() -> None:
    tensor = torch.empty(0)

    def body() -> None:
        for size in (400, 0, 800):
            tensor.untyped_storage().resize_(size)

    window = record(body)
    assert window.births("storage.resize_")["bytes"].tolist() == [400, 800]
    assert window.births("storage.resize_")["freed_ns"].isna().tolist() == [False, True]


def test_foreign_memory_is_told_apart() -> None:
    keep: list[torch.Tensor] = []

    def body() -> None:
        keep.append(torch.from_numpy(np.zeros(1000)).view(10, 100))

    window = record(body)
    assert window.alloc.loc[window.alloc["source"] == "foreign", "bytes"].tolist() == [8000]


def test_a_custom_function_retains_what_autograd_never_saved() -> None:
    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            ctx.kept = x * 3  # type: ignore[attr-defined]
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * ctx.kept  # type: ignore[attr-defined]

    model = nn.Linear(64, 64)
    window = record(lambda: Keep.apply(model(torch.randn(50, 64))).sum().backward(), model)
    rows = window.lives.segments.sub == "retained"
    assert 50 * 64 * 4 in window.lives.segments.bytes[rows]


def test_states_of_an_optimizer_that_steps_for_the_first_time() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    window = record(lambda: train_step(model, optimizer), model, optimizer)
    states = window.lives.states()
    assert states is not None
    size = sum(parameter.nbytes for parameter in model.parameters())
    steps = 4 * len(list(model.parameters()))
    assert states == {
        Tenant.PARAMETERS: size,
        Tenant.GRADIENTS: size,
        Tenant.OPTIMIZER_STATE: 2 * size + steps,
    }


def test_masters_are_optimizer_state_and_their_gradients_gradients() -> None:
    model = nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    master = model.weight.detach().float().requires_grad_()
    optimizer = torch.optim.SGD([master], lr=0.1)

    def body() -> None:
        model(torch.randn(8, 64, dtype=torch.bfloat16)).sum().backward()
        assert model.weight.grad is not None
        master.grad = model.weight.grad.float()
        optimizer.step()

    window = record(body, model, optimizer)
    assert window.lives.states() == {
        Tenant.PARAMETERS: 64 * 64 * 2,
        Tenant.GRADIENTS: 64 * 64 * (2 + 4),
        Tenant.OPTIMIZER_STATE: 64 * 64 * 4,
    }


def test_buffers_and_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("mask", torch.ones(100))
    window = record(lambda: model(torch.arange(8)).sum().backward(), model)
    assert window.lives.peak().tenants[Tenant.PARAMETERS] == 32 * 16 * 4 + 400
    states = window.lives.states()
    assert states is not None
    assert states[Tenant.PARAMETERS] == 32 * 16 * 4


def test_a_parameter_that_is_gathered_for_its_use_is_communication() -> None:
    model = nn.Linear(64, 64, bias=False)
    full = model.weight.untyped_storage().nbytes()
    shard = nn.Parameter(model.weight.detach()[:32].clone())
    model.register_parameter("shard", shard)
    storage = model.weight.untyped_storage()
    storage.resize_(0)

    def gather(*_: object) -> None:
        storage.resize_(full)

    model.register_forward_pre_hook(gather)

    def body() -> None:
        with torch.no_grad():
            model(torch.zeros(4, 64))
        storage.resize_(0)

    window = record(body, model)
    assert window.lives.peak().tenants[Tenant.PARAMETERS] == full // 2
    assert window.lives.peak().tenants[Tenant.COMMUNICATION_BUFFERS] == full
    assert "gathered_param" in window.subs("communication_buffers")


def test_a_parameter_that_is_swapped_for_its_use_is_communication() -> None:
    model = nn.Linear(64, 64, bias=False)
    model.weight.data = torch.empty(1).expand(64, 64)

    def gather(*_: object) -> None:
        model.weight.data = torch.zeros(64, 64)

    def release(*_: object) -> None:
        model.weight.data = torch.empty(1).expand(64, 64)

    model.register_forward_pre_hook(gather)
    model.register_forward_hook(release)

    def body() -> None:
        with torch.no_grad():
            model(torch.zeros(4, 64))

    window = record(body, model)
    assert window.lives.peak().tenants[Tenant.COMMUNICATION_BUFFERS] == 64 * 64 * 4


def test_a_hook_that_frees_the_gradient_first_does_not_hide_it() -> None:
    model = nn.Linear(64, 64, bias=False)

    def drop(parameter: torch.Tensor) -> None:
        parameter.grad = None

    model.weight.register_post_accumulate_grad_hook(drop)
    window = record(lambda: model(torch.randn(8, 64)).sum().backward(), model)
    assert window.subs("gradients") == {"unreduced"}


class Unwilling(torch.Tensor):
    @property
    def layout(self) -> torch.layout:
        raise RuntimeError("do not ask")


def test_a_subclass_that_refuses_questions_is_a_gap_and_no_more() -> None:
    held = [torch.ones(10).as_subclass(Unwilling)]
    model = small_model()
    window = record(lambda: None, model)
    assert [gap.reason for gap in window.gaps] == ["do not ask"]
    assert window.lives.peak().tenants[Tenant.PARAMETERS] == sum(p.nbytes for p in model.parameters())
    assert held


def test_sparse_tensors_are_no_fault() -> None:
    model = nn.Embedding(32, 16, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())

    def body() -> None:
        model(torch.arange(8)).sum().backward()
        optimizer.step()

    window = record(body, model, optimizer)
    assert window.gaps == []
    assert window.lives.peak().tenants[Tenant.GRADIENTS] >= 8 * 16 * 4


def test_other_threads_may_compute() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())

    def body() -> None:
        threads = [
            threading.Thread(target=lambda: [torch.ones(100) + 1 for _ in range(50)]) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        train_step(model, optimizer)
        for thread in threads:
            thread.join()

    assert record(body, model, optimizer).gaps == []


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


@pytest.fixture
def left_open() -> Iterator[_Mode]:
    mode = _Mode()
    yield mode
    while torch._C._len_torch_dispatch_stack():
        torch._C._pop_torch_dispatch_stack(None)


def test_a_mode_that_the_program_left_open_is_not_taken_from_it(left_open: _Mode) -> None:
    collector = MemoryCollector(None, None)
    collector.start()
    left_open.__enter__()
    collector.stop()
    assert torch._C._len_torch_dispatch_stack() == 1
    assert torch._C._get_dispatch_stack_at(0) is left_open
    assert collector.gaps() == []
    assert torch.ones(3).sum() == 3


def test_compiled_code_still_runs_compiled() -> None:
    calls: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        def run(*args: object) -> object:
            calls.append(1)
            return graph.forward(*args)

        return run

    torch._dynamo.reset()
    model = torch.compile(small_model(), backend=backend)
    x = torch.randn(4, 64)
    model(x)
    before = len(calls)
    record(lambda: model(x).sum().backward(), model)
    assert len(calls) == before + 1


def test_without_a_mode_that_lets_it_compiled_code_would_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case that the test above must be able to see."""
    monkeypatch.setattr(dispatch_mode.OperatorTap, "ignore_compile_internals", classmethod(lambda cls: False))
    with pytest.raises(AssertionError):
        test_compiled_code_still_runs_compiled()


@pytest.mark.parametrize("known", [True, False])
def test_without_the_model_what_is_optimized_counts_as_parameters_and_a_gap_says_so(*, known: bool) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train_step(model, optimizer)
    window = record(lambda: train_step(model, optimizer), None, optimizer if known else None)
    assert window.gaps == [WITHOUT_MODEL]
    states = window.lives.states()
    assert states is not None
    size = sum(parameter.nbytes for parameter in model.parameters())
    assert states[Tenant.PARAMETERS] == size
    assert states[Tenant.OPTIMIZER_STATE] == 2 * size + 4 * len(list(model.parameters()))


@pytest.mark.parametrize("kind", [list, tuple])
def test_several_optimizers(kind: Callable[..., Sequence[torch.optim.Optimizer]]) -> None:
    model = small_model()
    optimizers = kind(torch.optim.AdamW(part.parameters()) for part in (model[0], model[2]))
    for optimizer in optimizers:
        train_step(model, optimizer)
    window = record(lambda: None, model, optimizers)
    assert window.gaps == []
    states = window.lives.states()
    assert states is not None
    parameters = [*model[0].parameters(), *model[2].parameters()]
    assert states[Tenant.OPTIMIZER_STATE] == sum(2 * one.nbytes + 4 for one in parameters)


def test_a_window_without_training_misses_no_model() -> None:
    assert record(lambda: None).gaps == []
