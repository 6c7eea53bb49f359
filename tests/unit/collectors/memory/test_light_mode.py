"""Light mode: hooks alone, exact for what persists, honest about the rest, and nothing left behind."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from memory_window import Window, record, small_model, train_step
from torch import nn
from torch.optim import optimizer as optimizer_module
from torch.utils._python_dispatch import TorchDispatchMode

from zprof.collectors.memory.collector import MemoryCollector
from zprof.collectors.memory.hooks import Hooks
from zprof.collectors.memory.light import FIRST_STEP_ONLY, OPERATORS_UNSEEN, SEEN_BY_HOOK, LightScans
from zprof.collectors.schedule import MemoryMode
from zprof.model.tenants import Tenant

STATES = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)


def window_of_steps(mode: MemoryMode, steps: int = 1, *, warm: bool = True) -> Window:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    if warm:
        train_step(model, optimizer)

    def body() -> None:
        for number in range(steps):
            train_step(model, optimizer, number)

    return record(body, model, optimizer, MemoryCollector(model, optimizer, mode))


def saved_tensor_hooks() -> object:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


@pytest.mark.parametrize("warm", [True, False], ids=["states are there", "states are made"])
def test_states_are_those_of_full_mode_to_the_byte(*, warm: bool) -> None:
    windows = [window_of_steps(mode, warm=warm) for mode in (MemoryMode.LIGHT, MemoryMode.FULL)]
    light_peak, full_peak = (window.lives.states() for window in windows)
    assert light_peak == full_peak
    size = sum(parameter.nbytes for parameter in small_model().parameters())
    scalars = 4 * len(list(small_model().parameters()))
    assert light_peak is not None
    assert light_peak[Tenant.PARAMETERS] == light_peak[Tenant.GRADIENTS] == size
    assert light_peak[Tenant.OPTIMIZER_STATE] == 2 * size + scalars


def test_activations_of_the_first_step_are_those_of_full_mode() -> None:
    windows = {mode: window_of_steps(mode, steps=2) for mode in MemoryMode}
    saved = {mode: claimed_bytes(window, "activations", "saved") for mode, window in windows.items()}
    # Full mode saw both steps, light mode one: the same storages, and no others.
    assert 2 * saved[MemoryMode.LIGHT] == saved[MemoryMode.FULL] > 0


def claimed_bytes(window: Window, tenant: str, sub: str) -> int:
    rows = window.role[(window.role["tenant"] == tenant) & (window.role["sub"] == sub)]
    own = window.alloc[window.alloc["generation"].isin(set(rows["generation"]))]
    return int(own.loc[~own["before_window"], "bytes"].sum())


def test_what_is_not_seen_is_said() -> None:
    assert window_of_steps(MemoryMode.LIGHT).gaps == [OPERATORS_UNSEEN]
    assert window_of_steps(MemoryMode.LIGHT, steps=2).gaps == [OPERATORS_UNSEEN, FIRST_STEP_ONLY]


def test_the_tables_hold_no_row_of_an_allocator_and_no_stack() -> None:
    window = window_of_steps(MemoryMode.LIGHT)
    assert set(window.alloc["source"]) == {"storage"}
    assert window.alloc["stack"].isna().all()
    inside = window.alloc[~window.alloc["before_window"]]
    assert set(inside["operator"]) == {SEEN_BY_HOOK}
    phases = list(window.mark.loc[window.mark["kind"] == "phase", "name"])
    assert phases == ["forward", "backward", "optimizer", "other"]


class Watcher(nn.Module):
    """Notes from within the forward what a program could notice of us."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.seen: list[tuple[int, bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        modes, profiler = torch._C._len_torch_dispatch_stack(), torch.autograd._profiler_enabled()
        self.seen.append((modes, profiler, saved_tensor_hooks() is not None))
        return self.inner(x)


def test_no_mode_no_profiler_and_saved_tensor_hooks_in_the_first_step_only() -> None:
    model = Watcher()
    optimizer = torch.optim.AdamW(model.parameters())
    group = torch._C._distributed_c10d.ProcessGroup if dist.is_available() else object
    before = getattr(group, "allreduce", None)

    def body() -> None:
        train_step(model, optimizer)
        assert getattr(group, "allreduce", None) is before
        train_step(model, optimizer)

    record(body, model, optimizer, MemoryCollector(model, optimizer, MemoryMode.LIGHT))
    assert model.seen == [(0, False, True), (0, False, False)]


def test_several_optimizers_make_one_step() -> None:
    model = Watcher()
    halves = list(model.inner[0].parameters()), list(model.inner[2:].parameters())
    optimizers = [torch.optim.SGD(half) for half in halves]

    def body() -> None:
        for _ in range(2):
            for optimizer in optimizers:
                model(torch.randn(8, 64)).square().mean().backward()
                optimizer.step()

    record(body, model, optimizers, MemoryCollector(model, optimizers, MemoryMode.LIGHT))
    assert [saving for _, _, saving in model.seen] == [True, True, False, False]


def test_an_optimizer_that_steps_within_the_backward_does_not_end_the_first_step_there() -> None:
    model = small_model()
    optimizers = {parameter: torch.optim.SGD([parameter]) for parameter in model.parameters()}
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
        for parameter in model.parameters()
    ]
    window = record(
        lambda: model(torch.randn(8, 64)).square().mean().backward(),
        model,
        collector=MemoryCollector(model, list(optimizers.values()), MemoryMode.LIGHT),
    )
    assert saved_tensor_hooks() is None
    assert window.gaps == [OPERATORS_UNSEEN]
    for handle in handles:  # a cycle through torch, which would stay
        handle.remove()


def test_nothing_stays_in_place() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    window_hooks = optimizer_module._global_optimizer_post_hooks
    before = len(window_hooks)
    record(
        lambda: train_step(model, optimizer),
        model,
        optimizer,
        MemoryCollector(model, optimizer, MemoryMode.LIGHT),
    )
    assert len(window_hooks) == before
    assert saved_tensor_hooks() is None
    assert "resize_" not in torch.UntypedStorage.__dict__
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_neither_model_nor_optimizer_is_kept_alive() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    collector = MemoryCollector(model, optimizer, MemoryMode.LIGHT)
    collector.start()
    train_step(model, optimizer)
    train_step(model, optimizer)
    collector.stop()
    gone = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert collector.gaps() == [OPERATORS_UNSEEN, FIRST_STEP_ONLY]


def test_a_gathered_parameter_is_seen_from_its_gathering_to_its_release() -> None:
    model = nn.Linear(64, 64, bias=False)
    storage, full = model.weight.untyped_storage(), model.weight.nbytes
    storage.resize_(0)
    model.register_forward_pre_hook(lambda *_: storage.resize_(full) and None)

    def body() -> None:
        with torch.no_grad():
            model(torch.zeros(4, 64))
        storage.resize_(0)

    window = record(body, model, collector=MemoryCollector(model, None, MemoryMode.LIGHT))
    gathered = window.role.loc[window.role["sub"] == "gathered_param", "generation"]
    rows = window.alloc[window.alloc["generation"].isin(set(gathered))]
    assert list(rows["bytes"]) == [full]
    assert rows["freed_ns"].notna().all()


def test_a_swapped_parameter_is_seen() -> None:
    model = nn.Linear(64, 64, bias=False)
    model.weight.data = torch.empty(1).expand(64, 64)

    def gather(*_: object) -> None:
        model.weight.data = torch.zeros(64, 64)

    model.register_forward_pre_hook(gather)
    window = record(
        lambda: model(torch.zeros(4, 64)).sum().backward(),
        model,
        collector=MemoryCollector(model, None, MemoryMode.LIGHT),
    )
    assert "gathered_param" in window.subs("communication_buffers")


def test_a_gradient_that_no_hook_saw_is_claimed_before_the_optimizer_steps() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters())

    def body() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()  # or the last scan of the window would find them

    window = record(body, model, optimizer, MemoryCollector(model, optimizer, MemoryMode.LIGHT))
    assert claimed_bytes(window, "gradients", "grad") == sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize(
    ("place", "method"),
    [(Hooks, "_claim"), (LightScans, "before_optimizer"), (LightScans, "gathered"), (Hooks, "end_saving")],
)
def test_a_fault_of_ours_ends_the_recording_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch, place: type, method: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    collector = MemoryCollector(model, optimizer, MemoryMode.LIGHT)

    def body() -> None:
        with monkeypatch.context() as planted:
            planted.setattr(place, method, fail)
            train_step(model, optimizer)
            train_step(model, optimizer)

    window = record(body, model, optimizer, collector)
    assert [gap.reason for gap in window.gaps[:1]] == ["planted"]
    assert saved_tensor_hooks() is None


def test_training_is_the_same_bit_by_bit() -> None:
    def weights(mode: MemoryMode | None) -> list[torch.Tensor]:
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters())
        body: Callable[[], None] = lambda: [train_step(model, optimizer, n) for n in range(3)] and None  # noqa: E731
        if mode is None:
            body()
        else:
            record(body, model, optimizer, MemoryCollector(model, optimizer, mode))
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(map(torch.equal, weights(None), weights(MemoryMode.LIGHT)))


def test_a_mode_of_the_program_sees_none_of_our_operators() -> None:
    names: list[str] = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    def seen(collector: MemoryCollector | None) -> list[str]:
        names.clear()
        torch.manual_seed(0)
        x, y = torch.ones(4, requires_grad=True), torch.ones(4)

        def body() -> None:
            with Names():
                (x.exp() * y).sum().backward()

        if collector is None:
            body()
        else:
            record(body, collector=collector)
        return list(names)

    unwatched, watched = seen(None), seen(MemoryCollector(None, None, MemoryMode.LIGHT))
    # Without hooks torch itself detaches what it saves of exp's output; ours do so out of the mode's sight.
    unwatched.remove("aten.detach.default")
    assert watched == unwatched


def test_later_steps_of_a_compiled_model_are_not_passed_over() -> None:
    """No hook tells of its forward: what its later steps save is unseen all the same."""
    torch._dynamo.reset()
    model = small_model()
    model.compile(backend="eager")
    optimizer = torch.optim.AdamW(model.parameters())

    def body() -> None:
        for number in range(2):
            train_step(model, optimizer, number)

    window = record(body, model, optimizer, MemoryCollector(model, optimizer, MemoryMode.LIGHT))
    assert FIRST_STEP_ONLY in window.gaps
