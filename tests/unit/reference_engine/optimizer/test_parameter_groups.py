"""Parameter groups: what ``zero`` takes and refuses, and what a checkpoint keeps of them."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_comm import FakeComm
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.checkpoints import load_checkpoint, save_checkpoint
from zprof.reference_engine.config import LossScale

STAGES = range(4)


class Pair(nn.Module):
    """Two layers and the rest, each with weight and bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def biases_apart(model: nn.Module, **numbers: Any) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    return [
        {"params": [parameter for name, parameter in named.items() if name.endswith("weight")]},
        {"params": [parameter for name, parameter in named.items() if name.endswith("bias")], **numbers},
    ]


def engine(**settings: Any) -> tuple[ZeroModel, ZeroOptimizer]:
    module = Pair()
    groups = settings.pop("groups", biases_apart(module, weight_decay=0.0, lr=0.02))
    return zero(module, ZeroConfig(weight_decay=0.1, **settings), FakeComm(1), groups=groups)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, scheduler: Any = None) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(torch.randn(3, 4, generator=torch.Generator().manual_seed(step))).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def half_for_biases(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.5**step])


@pytest.mark.parametrize("stage", STAGES)
def test_schedulers_drive_every_group_as_with_torch(stage):
    reference = Pair()
    groups = biases_apart(reference, weight_decay=0.0, lr=0.02)
    expected = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    model, optimizer = engine(stage=stage)
    train(reference, expected, range(4), half_for_biases(expected))
    train(model, optimizer, range(4), half_for_biases(optimizer))
    assert [group["lr"] for group in optimizer.param_groups] == [
        group["lr"] for group in expected.param_groups
    ]
    weights = model.state_dict()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-6, atol=1e-6)


def mixed_precision_by_torch(dtype: torch.dtype, steps: range) -> list[torch.Tensor]:
    """Low-precision weights and gradients, torch's AdamW on fp32 masters in the same groups."""
    model = Pair()
    masters = {parameter: nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()}
    groups = biases_apart(model, weight_decay=0.0, lr=0.02)
    groups = [{**group, "params": [masters[p] for p in group["params"]]} for group in groups]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    for parameter in masters:
        parameter.data = parameter.to(dtype)
    for step in steps:
        model.zero_grad()
        model(torch.randn(3, 4, generator=torch.Generator().manual_seed(step)).to(dtype)).backward()
        for parameter, master in masters.items():
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        for parameter, master in masters.items():
            parameter.data.copy_(master)
    return [master.detach() for master in masters.values()]


@pytest.mark.parametrize(("stage", "dtype"), [(1, torch.bfloat16), (3, torch.float16)])
def test_masters_of_low_precision_have_the_numbers_of_their_group(stage, dtype):
    module = Pair()
    groups = biases_apart(module, weight_decay=0.0, lr=0.02)
    config = ZeroConfig(stage=stage, dtype=dtype, weight_decay=0.1, loss_scale=LossScale(initial=1.0))
    model, optimizer = zero(module, config, FakeComm(1), groups=groups)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 4, generator=torch.Generator().manual_seed(step)).to(dtype)).backward()
        optimizer.step()
    found = model.state_dict(fp32=True)
    expected = mixed_precision_by_torch(dtype, range(4))
    for (name, _), value in zip(Pair().named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)


def test_groups_are_flat_units_of_their_own_and_keep_what_else_they_say():
    module = Pair()
    groups = biases_apart(module, name="biases")
    model, optimizer = zero(module, ZeroConfig(learning_rate=0.5), FakeComm(1), groups=groups)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    assert optimizer.param_groups[1]["name"] == "biases"
    assert [len(group["params"]) for group in optimizer.param_groups] == [3, 3]
    assert len({unit.name for unit in model.units}) == 6
    module = Pair()
    groups = [{"params": module.first.named_parameters()}, {"params": list(module.layers.parameters())}]
    model, _ = zero(module, ZeroConfig(), FakeComm(1), groups=groups)
    assert [unit.name for unit in model.units] == ["root", "layers.0", "layers.1"]


def test_frozen_parameters_need_no_group_and_may_be_in_one():
    module = Pair()
    module.first.requires_grad_(False)
    groups = [{"params": module.first.weight, "lr": 1.0}, {"params": module.layers.parameters()}]
    model, optimizer = zero(module, ZeroConfig(stage=3), FakeComm(1), groups=groups)
    train(model, optimizer, range(1))
    assert [len(group["params"]) for group in optimizer.param_groups] == [0, 2]
    assert torch.equal(model.state_dict()["first.weight"], Pair().first.weight)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (lambda model: [{"params": model.layers.parameters()}], ("first.weight", "1 more")),
        (
            lambda model: [{"params": model.parameters()}, {"params": [model.first.bias], "lr": 1.0}],
            ("first.bias", "groups[0] and [1]"),
        ),
        (lambda model: [{"params": [*model.parameters(), model.first.bias]}], ("first.bias",)),
        (lambda model: [{"params": [*model.parameters(), nn.Parameter(torch.ones(2, 3))]}], ("(2, 3)",)),
        (lambda model: biases_apart(model, lr=-1.0), ("lr",)),
        (lambda model: biases_apart(model, betas=(0.9, 1.0)), ("betas",)),
        (lambda model: biases_apart(model, eps=-1e-8), ("eps",)),
        (lambda model: biases_apart(model, weight_decay=float("nan")), ("weight_decay",)),
        (lambda model: biases_apart(model, amsgrad=True), ("amsgrad",)),
        (lambda model: list(model.parameters()), ("params",)),
        (lambda model: [{"params": ["first.weight"]}], ("str",)),
    ],
)
def test_groups_that_do_not_fit_the_model_are_refused(groups, words):
    module = Pair()
    with pytest.raises(ValueError, match=r".") as caught:
        zero(module, ZeroConfig(), FakeComm(1), groups=groups(module))
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)
    zero(module, ZeroConfig(), FakeComm(1))  # nothing was changed


def test_a_group_cannot_be_added_later():
    model, optimizer = engine()
    with pytest.raises(ValueError, match="groups"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    train(model, optimizer, range(1))


@pytest.mark.parametrize("stage", STAGES)
def test_a_checkpoint_brings_the_numbers_of_every_group_to_another_stage(tmp_path: Path, stage):
    model, optimizer = engine(stage=stage)
    scheduler = half_for_biases(optimizer)
    train(model, optimizer, range(2), scheduler)
    save_checkpoint(tmp_path / "x", model, optimizer)
    train(model, optimizer, range(2, 4), scheduler)
    module = Pair()
    groups = biases_apart(module, lr=9.0, betas=(0.1, 0.2))
    other, fresh = zero(
        module, ZeroConfig(stage=(stage + 1) % 4, learning_rate=7.0), FakeComm(1), groups=groups
    )
    load_checkpoint(tmp_path / "x", other, fresh)
    resumed = torch.optim.lr_scheduler.LambdaLR(fresh, scheduler.lr_lambdas, last_epoch=1)
    train(other, fresh, range(2, 4), resumed)
    assert fresh.scalar_state() == optimizer.scalar_state()
    weights = other.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-6, atol=1e-7)


def test_a_checkpoint_of_other_groups_is_refused_and_changes_nothing(tmp_path: Path):
    save_checkpoint(tmp_path / "x", *engine())
    module = Pair()
    named = dict(module.named_parameters())
    moved = named.pop("first.bias")
    groups = biases_apart(module)
    groups[1]["params"] = [p for p in groups[1]["params"] if p is not moved]
    groups[0]["params"].append(moved)
    other = zero(module, ZeroConfig(stage=1), FakeComm(1), groups=groups)
    with pytest.raises(ValueError, match=r"first\.bias: group is 1 .* 0"):
        load_checkpoint(tmp_path / "x", *other)
    with pytest.raises(ValueError, match="groups"):
        load_checkpoint(tmp_path / "x", *zero(Pair(), ZeroConfig(), FakeComm(1)))
    assert torch.equal(other[0].state_dict()["first.bias"], Pair().first.bias)


def test_a_checkpoint_without_groups_is_one_of_a_single_group(tmp_path: Path):
    model, optimizer = engine(groups=None)
    train(model, optimizer, range(1))
    save_checkpoint(tmp_path / "x", model, optimizer)
    file = tmp_path / "x" / "zero.json"
    whole = json.loads(file.read_text())
    for record in whole["content"]["parameters"].values():
        del record["group"]
    del whole["content"]["optimizer"]["steps"]
    whole["crc32"] = zlib.crc32(json.dumps(whole["content"], sort_keys=True).encode())
    file.write_text(json.dumps(whole))
    fresh = engine(groups=None)
    load_checkpoint(tmp_path / "x", *fresh)
    assert fresh[1].scalar_state() == optimizer.scalar_state()
