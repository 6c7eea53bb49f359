"""Units of a shape against the engine's own model: its elements, and what autograd saves in its forward."""

import pytest
import torch

from tests.support.saved_bytes import saved_bytes
from zprof.model.job import Batch, ElementBytes, Job, Shape
from zprof.planner.gpt_units import with_units
from zprof.reference_engine.program.gpt import GPT, Block, GPTConfig
from zprof.reference_engine.unit_split import split_into_units

SAMPLES, SEQUENCE = 3, 10
CONFIGS = [
    GPTConfig(layers=2, hidden=24, heads=4, vocabulary=40, context=10),
    GPTConfig(layers=3, hidden=16, heads=2, vocabulary=33, context=12, tied=True),
]


def job_of(config: GPTConfig, dtype: torch.dtype, samples: int | None = SAMPLES) -> Job:
    shape = Shape(
        layers=config.layers,
        hidden=config.hidden,
        vocabulary=config.vocabulary,
        context=config.context,
        heads=config.heads,
        tied=config.tied,
    )
    return with_units(
        Job(
            parameters=1,
            shape=shape,
            batch=Batch(samples=samples, sequence=SEQUENCE),
            element_bytes=ElementBytes(parameter=dtype.itemsize, gradient=dtype.itemsize),
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS)
def test_units_keep_what_autograd_saves(config: GPTConfig, dtype: torch.dtype) -> None:
    units = job_of(config, dtype).units
    x = torch.randn(SAMPLES, SEQUENCE, config.hidden, dtype=dtype, requires_grad=True)
    block = Block(config).to(dtype)
    assert units[-1].saved_bytes == saved_bytes(block, lambda: block(x))
    assert units[-1].checkpoint_bytes == x.untyped_storage().nbytes()
    model = GPT(config).to(dtype)
    tokens = torch.randint(config.vocabulary, (SAMPLES, SEQUENCE + 1))
    whole = saved_bytes(model, lambda: model(tokens[:, :-1], tokens[:, 1:]))
    assert sum(unit.saved_bytes or 0 for unit in units) == whole


@pytest.mark.parametrize("config", CONFIGS)
def test_elements_are_those_of_the_engine(config: GPTConfig) -> None:
    owned = {
        spec.name: sum(parameter.numel() for _, parameter in spec.parameters)
        for spec in split_into_units(GPT(config))
    }
    units = job_of(config, torch.float32, samples=None).units
    assert [(unit.name, unit.elements) for unit in units] == list(owned.items())
    unknown = {(unit.saved_bytes, unit.checkpoint_bytes, unit.forward_flop) for unit in units}
    assert unknown == {(None, None, None)}
