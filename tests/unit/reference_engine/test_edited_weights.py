"""Weights that the user writes after zero(): training goes on from them, in fp32 master weights too."""

from collections.abc import Callable

import pytest
import torch
from engine_helpers import engine, loss_of, tiny_gpt, train_step
from thread_comm import ThreadComm, on_ranks

from zprof.reference_engine import ZeroConfig, ZeroModel, zero

STAGES = range(4)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FROZEN_STEP = {"learning_rate": 0.0, "weight_decay": 0.0}


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


@pytest.mark.parametrize("edit", [copy_each, load_module, load_model])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
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
