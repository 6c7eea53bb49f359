"""Parameter groups: what ``zero`` takes and refuses, and what a checkpoint keeps of them."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_comm import FakeComm
from pitfall_models import Layers, train
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.checkpoints import load_checkpoint, save_checkpoint


def pair() -> Layers:
    return Layers(lambda _: nn.Linear(4, 4), count=2)


def biases_apart(model: nn.Module, **numbers: Any) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    return [
        {"params": [parameter for name, parameter in named.items() if name.endswith("weight")]},
        {"params": [parameter for name, parameter in named.items() if name.endswith("bias")], **numbers},
    ]


def engine(**settings: Any) -> tuple[ZeroModel, ZeroOptimizer]:
    module = pair()
    groups = settings.pop("groups", biases_apart(module, weight_decay=0.0, lr=0.02))
    return zero(module, ZeroConfig(weight_decay=0.1, **settings), FakeComm(1), groups=groups)


def test_groups_are_flat_units_of_their_own_and_keep_what_else_they_say():
    module = pair()
    groups = biases_apart(module, name="biases")
    model, optimizer = zero(module, ZeroConfig(learning_rate=0.5), FakeComm(1), groups=groups)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    assert optimizer.param_groups[1]["name"] == "biases"
    with pytest.raises(ValueError, match="groups"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert [len(group["params"]) for group in optimizer.param_groups] == [3, 3]
    assert len({unit.name for unit in model.units}) == 6
    module = pair()
    groups = [{"params": module.first.named_parameters()}, {"params": list(module.layers.parameters())}]
    model, _ = zero(module, ZeroConfig(), FakeComm(1), groups=groups)
    assert [unit.name for unit in model.units] == ["root", "layers.0", "layers.1"]


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
    module = pair()
    with pytest.raises(ValueError, match=r".") as caught:
        zero(module, ZeroConfig(), FakeComm(1), groups=groups(module))
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)
    zero(module, ZeroConfig(), FakeComm(1))  # nothing was changed


def test_a_checkpoint_of_other_groups_is_refused_and_changes_nothing(tmp_path: Path):
    save_checkpoint(tmp_path / "x", *engine())
    module = pair()
    named = dict(module.named_parameters())
    moved = named.pop("first.bias")
    groups = biases_apart(module)
    groups[1]["params"] = [p for p in groups[1]["params"] if p is not moved]
    groups[0]["params"].append(moved)
    other = zero(module, ZeroConfig(stage=1), FakeComm(1), groups=groups)
    with pytest.raises(ValueError, match=r"first\.bias: group is 1 .* 0"):
        load_checkpoint(tmp_path / "x", *other)
    with pytest.raises(ValueError, match="groups"):
        load_checkpoint(tmp_path / "x", *zero(pair(), ZeroConfig(), FakeComm(1)))
    assert torch.equal(other[0].state_dict()["first.bias"], pair().first.bias)


def test_a_checkpoint_without_groups_is_one_of_a_single_group(tmp_path: Path):
    model, optimizer = engine(groups=None)
    train(model, optimizer)
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
