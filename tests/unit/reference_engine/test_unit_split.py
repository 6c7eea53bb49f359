import pytest
import torch
from engine_helpers import BLOCKS, TINY, tiny_gpt
from fake_comm import FakeComm
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.unit_split import split_by_dtype, split_into_units


def names(model: nn.Module) -> dict[str, list[str]]:
    return {spec.name: [name for name, _ in spec.parameters] for spec in split_into_units(model)}


def test_blocks_are_units_and_the_rest_is_the_root():
    table = names(tiny_gpt())
    assert tuple(table) == ("root", *BLOCKS)
    assert table["root"] == [
        "token_embedding.weight",
        "position_embedding.weight",
        "final_norm.weight",
        "final_norm.bias",
        "head.weight",
    ]
    assert all(name.startswith("blocks.1.") for name in table["blocks.1"])


def test_every_parameter_belongs_to_one_unit_tied_ones_to_the_root():
    model = GPT(GPTConfig(layers=2, hidden=8, heads=2, vocabulary=11, context=6, tied=True))
    model.blocks[1].expand.weight = model.blocks[0].expand.weight
    table = names(model)
    assert sorted(name for unit in table.values() for name in unit) == sorted(dict(model.named_parameters()))
    assert table["root"].count("token_embedding.weight") == 1
    assert "head.weight" not in table["root"]
    assert "blocks.0.expand.weight" in table["root"]


def test_containers_are_no_units_and_a_nested_unit_owns_its_own():
    inner = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model = nn.Sequential(nn.ModuleList([inner, nn.Linear(2, 2)]))
    assert tuple(names(model)) == ("root", "0.0.0", "0.0.1", "0.1")


def test_frozen_and_other_dtypes_are_flat_units_of_their_own():
    named = [(str(index), nn.Parameter(torch.zeros(1))) for index in range(2)]
    named.append(("2", nn.Parameter(torch.zeros(1), requires_grad=False)))
    assert [(name, len(members)) for name, members in split_by_dtype(named, "u")] == [
        ("u", 2),
        ("u.frozen", 1),
    ]
    named.append(("3", nn.Parameter(torch.zeros(1, dtype=torch.float64))))
    assert [name for name, _ in split_by_dtype(named, "u")] == ["u.float32", "u.frozen", "u.float64"]


def sparse() -> nn.Module:
    return nn.Embedding(3, 2, sparse=True)


def frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


def on_meta() -> nn.Module:
    return nn.Linear(2, 2, device="meta")


def lazy() -> nn.Module:
    return nn.LazyLinear(2)


def taken() -> nn.Module:
    model = tiny_gpt(TINY)
    zero(model, ZeroConfig(stage=3), FakeComm())
    return model


def of_integers() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_parameter("count", nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False))
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (sparse, "sparse gradients"),
        (frozen, "no trainable parameters"),
        (on_meta, "meta device"),
        (lazy, "no shape yet"),
        (taken, "already in a ZeRO engine"),
        (of_integers, "floating point"),
    ],
)
def test_a_model_that_cannot_work_is_refused_in_one_line(make, said):
    with pytest.raises(ValueError, match=said) as caught:
        zero(make(), ZeroConfig(), FakeComm())
    assert "\n" not in str(caught.value)


def test_a_unit_from_another_model_is_refused():
    with pytest.raises(ValueError, match="not a module of the model"):
        zero(tiny_gpt(), ZeroConfig(), FakeComm(), units=[nn.Linear(2, 2)])
