"""The user's loop in one process: numbers against torch's AdamW, and weights that the user edits."""

import copy
from collections.abc import Callable

import pytest
import torch
from engine_helpers import engine, loss_of, tiny_gpt, train_step
from fake_comm import FakeComm
from thread_comm import ThreadComm, on_ranks
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, zero
from zprof.reference_engine.program.modelled_compute import ComputeModel, attach_modelled_compute

STAGES = range(4)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FROZEN_STEP = {"learning_rate": 0.0, "weight_decay": 0.0}


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
def test_losses_and_weights_equal_adamw_and_frozen_parameters_stay(stage):
    def frozen() -> nn.Module:
        module = tiny_gpt()
        module.blocks[1].requires_grad_(False)
        module.blocks[0].expand.weight.requires_grad_(False)
        return module

    for make in (tiny_gpt, frozen):
        reference = make()
        before = copy.deepcopy(reference.state_dict())
        expected = adamw_losses(reference, 5)
        model, optimizer = zero(make(), ZeroConfig(stage=stage), FakeComm())
        assert [train_step(model, optimizer, step) for step in range(5)] == pytest.approx(expected, rel=1e-6)
        weights = model.state_dict()
        assert set(weights) == set(reference.state_dict())
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)
            assert reference.get_parameter(name).requires_grad != torch.equal(weights[name], before[name])


@pytest.mark.parametrize("stage", STAGES)
def test_the_optimizer_is_one_of_torch(stage):
    model, optimizer, _ = engine(1, stage=stage, weight_decay=0.0)
    fired: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: fired.append("before"))
    optimizer.register_step_post_hook(lambda *_: fired.append("after"))
    optimizer.param_groups[0]["lr"] = 0.0
    before = model.state_dict()
    train_step(model, optimizer)
    assert fired == ["before", "after"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


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


def test_modelled_compute_changes_no_number():
    expected = [train_step(*engine(1, stage=3)[:2])]
    module = tiny_gpt()
    blocks = {str(index): block for index, block in enumerate(module.blocks)}
    attach_modelled_compute(blocks, ComputeModel(forward_s=1e-4, backward_s=1e-4, straggler_rank=0), rank=0)
    model, optimizer = zero(module, ZeroConfig(stage=3), FakeComm())
    assert [train_step(model, optimizer)] == expected


@pytest.mark.parametrize("stage", STAGES)
def test_a_loaded_state_dict_goes_on_where_it_was(stage):
    model, optimizer, _ = engine(1, stage=stage, clip_norm=0.1)
    twin, loaded, _ = engine(1, stage=stage, clip_norm=0.1)
    train_step(model, optimizer)
    train_step(twin, loaded)
    for entry in loaded.state.values():
        for value in entry.values():
            value.fill_(7)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = [train_step(model, optimizer, step) for step in (1, 2)]
    assert [train_step(twin, loaded, step) for step in (1, 2)] == expected


def other_weights() -> dict[str, torch.Tensor]:
    values = tiny_gpt().state_dict()
    random = torch.Generator().manual_seed(5)
    return {name: torch.randn(value.shape, generator=random) for name, value in values.items()}


def copy_each(model: ZeroModel, values: dict[str, torch.Tensor]) -> None:
    with model.gathered() as module, torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values[name])


def load_module(model: ZeroModel, values: dict[str, torch.Tensor]) -> None:
    with model.gathered() as module:
        module.load_state_dict(values)


def load_model(model: ZeroModel, values: dict[str, torch.Tensor]) -> None:
    model.load_state_dict(values)


@pytest.mark.parametrize(
    ("dtype", "edit"),
    [
        (torch.float32, copy_each),
        (torch.bfloat16, load_module),
        (torch.float16, load_model),
        (torch.bfloat16, load_model),
    ],
)
@pytest.mark.parametrize("stage", STAGES)
def test_edited_weights_are_those_that_are_trained(
    stage: int, dtype: torch.dtype, edit: Callable[[ZeroModel, dict[str, torch.Tensor]], None]
):
    model, optimizer, _ = engine(1, stage=stage, dtype=dtype, **FROZEN_STEP)
    train_step(model, optimizer)
    values = other_weights()
    edit(model, values)
    train_step(model, optimizer)
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name].to(dtype)), name


@pytest.mark.parametrize("stage", range(3))
def test_weights_edited_outside_of_gathered_in_stages_that_keep_them(stage: int):
    model, optimizer, _ = engine(1, stage=stage, dtype=torch.bfloat16, **FROZEN_STEP)
    train_step(model, optimizer)
    before = model.state_dict(fp32=True)
    name, parameter = next(iter(model.module.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[1] = 3.0
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
    after = model.state_dict(fp32=True)
    before[name].view(-1)[1] = 3.0  # the elements beside it keep their fp32 values
    assert all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_fp32_weights_can_be_read_and_come_back_exactly(stage: int, dtype: torch.dtype):
    def run(comm: ThreadComm) -> None:
        config = ZeroConfig(stage=stage, dtype=dtype)
        model, optimizer = zero(tiny_gpt(), config, comm)
        train_step(model, optimizer)
        weights, rounded = model.state_dict(fp32=True), model.state_dict()
        assert weights.keys() == rounded.keys()
        assert {value.dtype for value in weights.values()} == {torch.float32}
        assert all(torch.equal(weights[name].to(dtype), rounded[name]) for name in rounded)
        exact = all(torch.equal(weights[name], rounded[name].float()) for name in rounded)
        assert exact == (dtype == torch.float32)
        again, _ = zero(tiny_gpt(), config, comm)
        again.load_state_dict(weights)
        back = again.state_dict(fp32=True)
        assert all(torch.equal(weights[name], back[name]) for name in weights)

    on_ranks(2, run)
