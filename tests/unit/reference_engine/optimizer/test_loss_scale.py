"""The dynamic loss scale: what it multiplies, how it moves, and what float16 training gains by it."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from engine_helpers import engine, loss_of, tiny_gpt, train_step
from fake_comm import FakeComm
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, zero
from zprof.reference_engine.config import LossScale
from zprof.reference_engine.optimizer.scale_and_clip import MIN_LOSS_SCALE, DynamicLossScale

STAGES = range(4)
FLOAT16 = {"dtype": torch.float16}
SMALL = LossScale(initial=1024.0)


def scale_of(**settings: Any) -> DynamicLossScale:
    return DynamicLossScale(LossScale(**settings), torch.device("cpu"))


def leaf(values: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((3,), values, dtype=dtype, requires_grad=True)


@dataclass
class Output:
    loss: torch.Tensor


def test_every_floating_point_output_is_scaled_once_and_nothing_else_is_touched():
    x = leaf()
    tokens, hidden = torch.arange(3), x * 2
    outputs = {"loss": (hidden * 5).sum(), "more": [hidden, None], "tokens": tokens, "plain": x.detach()}
    scaled = scale_of(initial=8.0).scale_output_gradients(outputs)
    assert scaled["tokens"] is tokens
    assert scaled["plain"] is outputs["plain"]
    assert scaled["more"][1] is None
    scaled["loss"].backward(retain_graph=True)
    assert x.grad.tolist() == [8.0 * 2 * 5] * 3
    scaled["more"][0].sum().backward()
    assert x.grad.tolist() == [8.0 * 2 * 5 + 8.0 * 2] * 3
    with pytest.raises(TypeError, match="register_dataclass"):
        scale_of().scale_output_gradients(Output(leaf() * 1))


def test_an_output_may_be_changed_in_place():
    x = leaf()
    loss = scale_of(initial=8.0).scale_output_gradients((x * 3).sum())
    loss /= 2
    loss.backward()
    assert float(loss.detach()) == 4.5
    assert x.grad.tolist() == [12.0] * 3


def test_a_scale_beyond_float16_does_not_overflow_small_gradients():
    x = leaf(dtype=torch.float16)
    output = scale_of(initial=2.0**20).scale_output_gradients(x * 1)
    output.backward(torch.full((3,), 2.0**-14, dtype=torch.float16))
    assert x.grad.tolist() == [64.0] * 3


def test_growth_after_good_steps_in_a_row_and_backoff_at_once():
    scale = scale_of(initial=16.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=3)
    seen = []
    for overflow in (0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1):
        scale.update(torch.tensor(float(overflow)))
        seen.append((float(scale.value), int(scale.good_steps)))
    for _ in range(200):
        scale.update(torch.tensor(1.0))
    assert [value for value, _ in seen] == [16, 16, 64, 64, 64, 16, 16, 16, 64, 16, 4]
    assert float(scale.value) == MIN_LOSS_SCALE
    assert [good for _, good in seen] == [1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0]


@pytest.mark.parametrize(("stage", "scale"), [(0, 64.0), (1, 1024.0), (2, 64.0), (3, 1024.0)])
def test_float16_training_equals_float64_adamw_on_unscaled_gradients(stage, scale):
    plain = tiny_gpt()
    masters = {name: parameter.detach().double() for name, parameter in plain.named_parameters()}
    adamw = torch.optim.AdamW(masters.values(), lr=1e-3, weight_decay=0.01)
    plain = plain.half()
    model, optimizer, _ = engine(1, stage=stage, loss_scale=LossScale(initial=scale), **FLOAT16)
    for step in range(4):
        plain.zero_grad()
        loss = loss_of(plain, step)
        loss.backward(torch.full_like(loss, scale))
        for name, parameter in plain.named_parameters():
            masters[name].grad = parameter.grad.double() / scale
        adamw.step()
        for name, parameter in plain.named_parameters():
            parameter.data.copy_(masters[name])
        assert train_step(model, optimizer, step) == pytest.approx(float(loss.detach()), rel=2e-3)
        for name, weights in model.state_dict(fp32=True).items():
            torch.testing.assert_close(weights.double(), masters[name], rtol=1e-5, atol=1e-6)


class Faint(nn.Module):
    """Its gradients, 2^-26 of the input, are below float16's smallest number, 2^-24."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self) -> torch.Tensor:
        return (self.weight * 2.0**-13).sum() * 2.0**-13


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_too_small_for_float16_survive(stage):
    config = ZeroConfig(stage=stage, loss_scale=SMALL, **FLOAT16)
    model, optimizer = zero(Faint(), config, FakeComm())
    optimizer.zero_grad()
    model().backward()
    optimizer.step()
    assert float(optimizer.gradient_norm) == pytest.approx(2 * 2.0**-26, rel=1e-6)
    first = optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"]
    assert first[:4].tolist() == pytest.approx([0.1 * 2.0**-26] * 4, rel=1e-5)


def plant_inf(model: ZeroModel) -> None:
    weight = model.module.blocks[1].expand.weight
    handle = weight.register_hook(lambda gradient: handle.remove() or torch.full_like(gradient, torch.inf))


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("stage", STAGES)
def test_an_overflow_skips_the_step_and_halves_the_scale(stage, clip):
    model, optimizer, _ = engine(1, stage=stage, clip_norm=clip, loss_scale=SMALL, **FLOAT16)
    train_step(model, optimizer, 0)
    weights, numbers = model.state_dict(fp32=True), optimizer.state_dict()["state"]
    before = [value.clone() for entry in numbers.values() for value in entry.values()]
    plant_inf(model)
    train_step(model, optimizer, 1)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict(fp32=True).items())
    after = [value for entry in optimizer.state.values() for value in entry.values()]
    assert all(map(torch.equal, before, after))
    assert float(optimizer.loss_scale) == 512
    train_step(model, optimizer, 2)
    assert {float(entry["step"]) for entry in optimizer.state.values()} == {2.0}
    assert float(optimizer.loss_scale) == 512
    assert optimizer.gradient_norm.isfinite()
    for way in ("state_dict", "scalar_state"):
        _, other, _ = engine(1, stage=stage, clip_norm=clip, loss_scale=SMALL, **FLOAT16)
        getattr(other, f"load_{way}")(getattr(optimizer, way)())
        assert other.scalar_state() == optimizer.scalar_state()
