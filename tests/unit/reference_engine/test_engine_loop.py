"""The user's loop in one process: numbers against torch's AdamW, and weights that the user edits."""

import copy

import pytest
import torch
from engine_helpers import engine, loss_of, tiny_gpt, train_step
from fake_comm import FakeComm
from thread_comm import ThreadComm, on_ranks
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, zero
from zprof.reference_engine.program.modelled_compute import ComputeModel, attach_modelled_compute

STAGES = range(4)
FROZEN_STEP = {"learning_rate": 0.0, "weight_decay": 0.0}


def partly_frozen() -> nn.Module:
    module = tiny_gpt()
    module.blocks[1].requires_grad_(False)
    module.blocks[0].expand.weight.requires_grad_(False)
    return module


@pytest.mark.parametrize("make", [tiny_gpt, partly_frozen])
@pytest.mark.parametrize("stage", STAGES)
def test_losses_and_weights_equal_adamw_and_frozen_parameters_stay(stage, make):
    reference, module = make(), make()
    before = copy.deepcopy(reference.state_dict())
    adamw = torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.01)
    compute = ComputeModel(forward_s=1e-4, backward_s=1e-4, straggler_rank=0)  # changes no number
    attach_modelled_compute({str(n): block for n, block in enumerate(module.blocks)}, compute, rank=0)
    model, optimizer = zero(module, ZeroConfig(stage=stage), FakeComm())
    for step in range(5):
        adamw.zero_grad()
        loss = loss_of(reference, step)
        loss.backward()
        adamw.step()
        assert train_step(model, optimizer, step) == pytest.approx(float(loss.detach()), rel=1e-6)
    weights = model.state_dict()
    assert set(weights) == set(reference.state_dict())
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-4, atol=1e-6)
        assert parameter.requires_grad != torch.equal(weights[name], before[name])


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
    optimizer.param_groups[0]["lr"] = 1e-3
    twin, loaded, _ = engine(1, stage=stage, weight_decay=0.0)
    for entry in loaded.state.values():
        for value in entry.values():
            value.fill_(7)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = [train_step(model, optimizer, step) for step in (1, 2)]
    assert [train_step(twin, loaded, step) for step in (1, 2)] == expected


def copy_each(model: ZeroModel, values: dict[str, torch.Tensor]) -> None:
    with model.gathered() as module, torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values[name])


def load_module(model: ZeroModel, values: dict[str, torch.Tensor]) -> None:
    with model.gathered() as module:
        module.load_state_dict(values)


@pytest.mark.parametrize(
    ("dtype", "edit"),
    [(torch.float32, copy_each), (torch.bfloat16, load_module), (torch.float16, ZeroModel.load_state_dict)],
)
@pytest.mark.parametrize("stage", STAGES)
def test_edited_weights_are_those_that_are_trained(stage, dtype, edit):
    model, optimizer, _ = engine(1, stage=stage, dtype=dtype, **FROZEN_STEP)
    train_step(model, optimizer)
    values = {name: torch.randn(value.shape) for name, value in tiny_gpt().state_dict().items()}
    edit(model, values)
    train_step(model, optimizer)
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name].to(dtype)), name


@pytest.mark.parametrize("stage", range(3))
def test_weights_edited_outside_of_gathered_in_stages_that_keep_them(stage: int):
    model, optimizer, _ = engine(1, stage=stage, dtype=torch.bfloat16, **FROZEN_STEP)
    train_step(model, optimizer)
    expected = model.state_dict(fp32=True)
    name, parameter = next(iter(model.module.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[1] = 3.0
    train_step(model, optimizer)
    expected[name].view(-1)[1] = 3.0  # the elements beside it keep their fp32 values
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict(fp32=True).items())


def copy_data(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    parameter.data.copy_(values)


def swap_data(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    parameter.data = values.to(parameter.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("edit", [copy_data, swap_data])
@pytest.mark.parametrize("stage", range(3))
def test_each_parameter_edited_through_data_is_trained(stage: int, edit, dtype: torch.dtype):
    def run(comm: ThreadComm) -> None:
        model, optimizer = zero(tiny_gpt(), ZeroConfig(stage=stage, dtype=dtype, **FROZEN_STEP), comm)
        train_step(model, optimizer)
        expected = model.state_dict(fp32=True)
        for step, (name, parameter) in enumerate(model.module.named_parameters()):
            values = torch.full(parameter.shape, 0.1 + step).to(dtype)
            edit(parameter, values)
            train_step(model, optimizer)
            expected[name] = values.float()  # all others keep their fp32 values
        actual = model.state_dict(fp32=True)
        assert all(torch.equal(value, expected[key]) for key, value in actual.items())
        named = model.module.named_parameters()
        assert all(torch.equal(parameter, expected[key].to(dtype)) for key, parameter in named)

    on_ranks(2, run)


@pytest.mark.parametrize("stage", range(3))
def test_a_single_element_edited_through_data_is_found_when_all_are_compared(stage: int):
    model, optimizer, _ = engine(
        1, stage=stage, dtype=torch.bfloat16, compare_all_weights=True, **FROZEN_STEP
    )
    expected = model.state_dict(fp32=True)
    for name, parameter in model.module.named_parameters():
        parameter.data.view(-1)[1] = 3.0
        expected[name].view(-1)[1] = 3.0
    train_step(model, optimizer)
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict(fp32=True).items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_edits_through_data_inside_gathered_are_kept(stage: int, dtype: torch.dtype):
    model, optimizer, _ = engine(1, stage=stage, dtype=dtype, **FROZEN_STEP)
    expected = model.state_dict(fp32=True)
    with model.gathered() as module:
        for name, parameter in module.named_parameters():
            parameter.data.view(-1)[1] = 3.0
            expected[name].view(-1)[1] = 3.0
    train_step(model, optimizer)
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict(fp32=True).items())


def test_data_of_another_shape_names_the_parameter():
    model, optimizer, _ = engine(1)
    name, parameter = next(iter(model.module.named_parameters()))
    loss_of(model).backward()
    parameter.data = torch.zeros(3)
    with pytest.raises(RuntimeError, match=name):
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_fp32_weights_can_be_read_and_come_back_exactly(stage: int, dtype: torch.dtype):
    def run(comm: ThreadComm) -> None:
        config = ZeroConfig(stage=stage, dtype=dtype)
        model, optimizer = zero(tiny_gpt(), config, comm)
        train_step(model, optimizer)
        weights, rounded = model.state_dict(fp32=True), model.state_dict()
        assert {value.dtype for value in weights.values()} == {torch.float32}
        assert all(torch.equal(weights[name].to(dtype), rounded[name]) for name in rounded)
        exact = all(torch.equal(weights[name], rounded[name].float()) for name in rounded)
        assert exact == (dtype == torch.float32)
        again, _ = zero(tiny_gpt(), config, comm)
        again.load_state_dict(weights)
        assert all(torch.equal(weights[name], value) for name, value in again.state_dict(fp32=True).items())

    on_ranks(2, run)
