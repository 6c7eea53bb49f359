"""The user's loop in one process: numbers against torch's AdamW, and what happens off the beaten track."""

import copy

import pytest
import torch
from engine_helpers import engine, loss_of, storage_bytes, tiny_gpt, train_step
from fake_comm import FakeComm
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.program.modelled_compute import ComputeModel, attach_modelled_compute

STAGES = range(4)


def adamw_losses(model: nn.Module, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("stage", STAGES)
def test_losses_and_weights_equal_adamw(stage):
    reference = tiny_gpt()
    expected = adamw_losses(reference, 5)
    model, optimizer, _ = engine(1, stage=stage)
    assert [train_step(model, optimizer, step) for step in range(5)] == pytest.approx(expected, rel=1e-6)
    weights = model.state_dict()
    assert set(weights) == set(reference.state_dict())
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_learning_rate_of_the_group_holds_from_the_next_step(stage):
    model, optimizer, _ = engine(1, stage=stage, weight_decay=0.0)
    optimizer.param_groups[0]["lr"] = 0.0
    before = model.state_dict()
    train_step(model, optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("stage", STAGES)
def test_optimizer_hooks_of_torch_fire(stage):
    model, optimizer, _ = engine(1, stage=stage)
    fired: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: fired.append("before"))
    optimizer.register_step_post_hook(lambda *_: fired.append("after"))
    train_step(model, optimizer)
    assert fired == ["before", "after"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_second_backward_before_zero_grad_is_refused(stage):
    model, optimizer, _ = engine(1, stage=stage)
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="call zero_grad"):
        loss_of(model).backward()
    assert train_step(model, optimizer) > 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_without_backward_is_refused(stage):
    model, optimizer, _ = engine(1, stage=stage)
    with pytest.raises(RuntimeError, match="call backward"):
        optimizer.step()
    train_step(model, optimizer)
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="call backward"):
        optimizer.step()


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_that_somebody_dropped_come_back_into_their_memory(stage):
    expected = adamw_losses(tiny_gpt(), 3)
    model, optimizer, _ = engine(1, stage=stage)
    losses = []
    for step in range(3):
        losses.append(train_step(model, optimizer, step))
        model.module.zero_grad(set_to_none=True)
    assert losses == pytest.approx(expected, rel=1e-6)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.extra = nn.Parameter(torch.ones(2))
        self.use_extra = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return (x * self.extra).sum() if self.use_extra else x.sum()


@pytest.mark.parametrize("stage", STAGES)
def test_an_unused_parameter_is_left_alone_and_its_unit_is_reduced_all_the_same(stage):
    module = Branching()
    comm = FakeComm()
    model, optimizer = zero(module, ZeroConfig(stage=stage, weight_decay=0.1), comm)

    def run(x: float) -> None:
        optimizer.zero_grad()
        model(torch.full((1, 2), x)).backward()
        optimizer.step()

    run(1.0)
    comm.take_events()
    module.use_extra = False
    module.zero_grad(set_to_none=True)
    weights = optimizer.param_groups[0]["params"][0]  # of the root, which has nothing else
    kept = [weights, optimizer.state[weights]["exp_avg"], optimizer.state[weights]["exp_avg_sq"]]
    model.synchronize()
    before = [tensor.detach().clone() for tensor in kept]
    run(1.0)
    model.synchronize()
    assert all(torch.equal(now, then) for now, then in zip(kept, before, strict=True))
    assert optimizer.scalar_state()["steps"] == {"extra": 1}
    kind = "reduce_scatter" if stage else "all_reduce"
    assert comm.launches(kind) == ["layers.1", "layers.0", "root"]


@pytest.mark.parametrize("stage", STAGES)
def test_evaluation_without_gradients_gives_the_memory_back(stage):
    model, optimizer, comm = engine(1, stage=stage)
    train_step(model, optimizer)
    with torch.no_grad():
        loss = loss_of(model, 7)
    assert not loss.requires_grad
    if stage == 3:
        assert storage_bytes(model.module.parameters()) == 0
    comm.take_events()
    train_step(model, optimizer)
    if stage == 3:
        assert len(comm.launches("all_gather")) == 2 * len(model.facts.units)


class Failing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.blocks = inner.blocks
        self.fail_in = ""

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.inner(*arguments)
        if self.fail_in == "forward":
            raise KeyError("planted")
        return loss


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("stage", STAGES)
def test_after_an_exception_training_goes_on(stage, where):
    expected = adamw_losses(tiny_gpt(), 2)
    failing = Failing(tiny_gpt())
    model, optimizer = zero(failing, ZeroConfig(stage=stage), FakeComm())

    def fail(_: torch.Tensor) -> None:
        if failing.fail_in == "backward":
            raise KeyError("planted")

    failing.blocks[1].expand.weight.register_hook(fail)
    first = train_step(model, optimizer, 0)
    failing.fail_in = where
    with pytest.raises(KeyError, match="planted"):
        train_step(model, optimizer, 1)
    failing.fail_in = ""
    assert [first, train_step(model, optimizer, 1)] == pytest.approx(expected, rel=1e-6)
    if stage == 3:
        assert storage_bytes(model.module.parameters()) == 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_module_that_is_called_twice(stage):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](torch.tanh(self.layers[0](x))).sum()

    torch.manual_seed(0)
    reference = Twice()
    twin = copy.deepcopy(reference)
    expected = torch.optim.AdamW(reference.parameters(), lr=0.1)
    model, optimizer = zero(twin, ZeroConfig(stage=stage, learning_rate=0.1), FakeComm())
    for _ in range(3):
        for module, update in ((reference, expected), (model, optimizer)):
            update.zero_grad()
            module(torch.ones(1, 2)).backward()
            update.step()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


@pytest.mark.parametrize("stage", STAGES)
def test_frozen_parameters_are_kept_as_they_are(stage):
    module = tiny_gpt()
    for parameter in module.blocks[1].parameters():
        parameter.requires_grad_(False)
    module.blocks[0].expand.weight.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    trainable = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    model, optimizer = zero(module, ZeroConfig(stage=stage), FakeComm())
    for step in range(2):
        train_step(model, optimizer, step)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == trainable
    assert len(optimizer.state) == 3


@pytest.mark.parametrize("stage", STAGES)
def test_low_precision_keeps_fp32_master_weights_of_the_original_values(stage):
    original = tiny_gpt().state_dict()
    model, optimizer, _ = engine(1, stage=stage, dtype=torch.bfloat16)
    assert all(torch.equal(v, original[k].bfloat16()) for k, v in model.state_dict().items())
    masters = torch.cat([p.detach() for p in optimizer.param_groups[0]["params"]])
    assert masters.double().sum() == pytest.approx(sum(v.double().sum() for v in original.values()), abs=1e-9)
    train_step(model, optimizer)
    rounded = torch.cat([p.detach().bfloat16() for p in optimizer.param_groups[0]["params"]])
    total = sum(value.double().sum() for value in model.state_dict().values())
    assert rounded.double().sum() == pytest.approx(total, abs=1e-9)


def test_modelled_compute_changes_no_number():
    expected = [train_step(*engine(1, stage=3)[:2])]
    module = tiny_gpt()
    blocks = {str(index): block for index, block in enumerate(module.blocks)}
    attach_modelled_compute(blocks, ComputeModel(forward_s=1e-4, backward_s=1e-4, straggler_rank=0), rank=0)
    model, optimizer = zero(module, ZeroConfig(stage=3), FakeComm())
    assert [train_step(model, optimizer)] == expected


@pytest.mark.parametrize("stage", STAGES)
def test_the_model_cannot_be_moved_afterwards(stage):
    model, _, _ = engine(1, stage=stage)
    with pytest.raises(RuntimeError, match=r"before zero\(\)"):
        model.half()
    with pytest.raises(ValueError, match="assign"):
        model.load_state_dict(model.state_dict(), assign=True)
