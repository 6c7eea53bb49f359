"""What a program may do within a memory window as it may outside: copy, save, trace, compile, transform."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from memory_window import record, small_model
from torch import nn
from torch._subclasses import FakeTensorMode


def inside(body: Callable[[], None], model: nn.Module | None = None) -> None:
    """Run in a window; whatever it does must neither raise nor end the recording."""
    assert record(body, model or small_model()).gaps == []


@pytest.mark.parametrize("duplicate", [copy.deepcopy, torch.optim.swa_utils.AveragedModel])
def test_a_model_can_be_copied(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    model, x, copies = small_model(), torch.randn(4, 64), []
    inside(lambda: copies.append(duplicate(model)), model)
    assert torch.equal(copies[0](x), model(x))


def test_a_copy_within_the_window_is_not_taken_for_the_model() -> None:
    model, x = small_model(), torch.randn(4, 64)
    window = record(lambda: copy.deepcopy(model)(x), model)
    assert window.mark[window.mark["kind"] == "phase"].empty


@pytest.mark.filterwarnings("error")
def test_a_model_can_be_saved_and_read_where_this_package_is_missing() -> None:
    model, x, file = small_model(), torch.randn(4, 64), io.BytesIO()
    inside(lambda: torch.save(model, file), model)
    assert b"zprof" not in file.getvalue()
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), model(x))


def test_a_function_over_the_model_compiles_whole() -> None:
    torch._dynamo.reset()
    model, x = small_model(), torch.randn(4, 64)

    def body() -> None:
        compiled = torch.compile(lambda: model(x).sum(), backend="aot_eager", fullgraph=True)
        compiled().backward()

    inside(body, model)
    assert model[0].weight.grad is not None


def add_fake_tensors() -> None:
    with FakeTensorMode() as mode:
        made = torch.empty(3) + 1
    assert (made + 1).shape == (3,)
    assert mode.from_tensor(torch.ones(3)).sum().shape == ()


def export() -> None:
    program = torch.export.export(small_model(), (torch.randn(2, 64),))
    assert program.module()(torch.randn(2, 64)).shape == (2, 64)


def choose() -> None:
    chosen = torch.cond(torch.tensor(True), torch.sin, torch.cos, (torch.zeros(3),))
    assert torch.equal(chosen, torch.zeros(3))


@pytest.mark.parametrize("body", [add_fake_tensors, export, choose])
def test_tensors_without_memory_and_operators_of_operators_pass(body: Callable[[], None]) -> None:
    inside(body)


def saved_tensor_hooks() -> object:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def test_function_transforms_run_and_our_hooks_are_back_after_them() -> None:
    before: list[object] = []
    after: list[object] = []

    def body() -> None:
        before.append(saved_tensor_hooks())
        x = torch.ones(2, 3)
        assert torch.equal(torch.func.grad(lambda y: y.square().sum())(x), 2 * x)
        jacobian = torch.func.vmap(torch.func.jacrev(torch.func.grad(lambda y: y.square().sum())))(x)
        assert torch.equal(jacobian, 2 * torch.eye(3).expand(2, 3, 3))
        after.append(saved_tensor_hooks())

    inside(body)
    assert before == after
    assert before != [None]
    assert saved_tensor_hooks() is None


def test_torch_still_forbids_hooks_of_the_program_in_function_transforms() -> None:
    def body() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor):
            torch.func.grad(lambda y: y.square().sum())(torch.ones(3))

    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        inside(body)


def test_autograd_still_refuses_what_was_changed_in_place() -> None:
    def body() -> None:
        result = torch.ones(4, requires_grad=True).exp()
        result.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()

    inside(body)


def test_a_storage_may_be_freed_and_refilled_where_the_version_is_kept() -> None:
    """What an engine does with a parameter between its forward and its backward."""
    weight, x = torch.full((4, 4), 2.0, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    values, storage = weight.detach().clone(), weight.untyped_storage()

    def body() -> None:
        loss = (x * weight).sum()
        size = storage.nbytes()
        storage.resize_(0)
        storage.resize_(size)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
            weight.copy_(values)
        loss.backward()

    inside(body)
    assert x.grad is not None
    assert torch.equal(x.grad, values)


def test_in_place_operators_that_autograd_allows_pass() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 1))

    def body() -> None:
        x = torch.randn(4, 64, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sigmoid_().sum(), x, create_graph=True)
        gradient.square().sum().backward()

    inside(body, model)


class Marked(nn.Parameter):
    """A subclass that takes no part in dispatch."""


class Image(torch.Tensor):
    """The same of a tensor."""


@pytest.mark.parametrize(
    "use",
    [
        lambda: Marked(torch.ones(3)).data + 1,
        lambda: copy.deepcopy(Marked(torch.ones(3))),
        lambda: nn.LazyLinear(3)(torch.ones(2, 4)),
        lambda: torch.ones(3).as_subclass(Image).data + 1,
    ],
    ids=["data", "copy", "lazy", "tensor"],
)
def test_a_subclass_without_dispatch_is_used_as_outside(use: Callable[[], torch.Tensor]) -> None:
    used: list[torch.Tensor] = []
    inside(lambda: used.append(use()))
    assert type(used[0]) is type(use())


def test_tensors_of_zeros_that_hold_nothing() -> None:
    """Of torch's own, in derivatives: they have a size, and refuse to say where."""

    def body() -> None:
        zeros = torch._efficientzerotensor((3, 4))
        (zeros.t() * 2).sum()
        zeros.view(12)

    inside(body)
