"""Units of a shape against the engine's own model: its elements, and what autograd saves in its forward.

The oracle of what is saved is torch's: the storages behind all tensors that a real forward hands to
``saved_tensors_hooks``, each once, parameters left out.
"""

from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from zprof.model.job import Batch, ElementBytes, Job, Shape
from zprof.planner.gpt_units import with_units
from zprof.reference_engine.program.gpt import GPT, Block, GPTConfig
from zprof.reference_engine.unit_split import split_into_units

SAMPLES, SEQUENCE = 3, 10
SIZES = [
    GPTConfig(layers=2, hidden=24, heads=4, vocabulary=40, context=10),
    GPTConfig(layers=3, hidden=16, heads=2, vocabulary=33, context=12, tied=True),
]
DTYPES = (torch.float32, torch.bfloat16)


def job_of(config: GPTConfig, dtype: torch.dtype, *, samples: int | None = SAMPLES) -> Job:
    shape = Shape(
        layers=config.layers,
        hidden=config.hidden,
        vocabulary=config.vocabulary,
        context=config.context,
        heads=config.heads,
        tied=config.tied,
    )
    size = dtype.itemsize
    return with_units(
        Job(
            parameters=1,
            shape=shape,
            batch=Batch(samples=samples, sequence=SEQUENCE),
            element_bytes=ElementBytes(parameter=size, gradient=size),
        )
    )


class Saved:
    """Bytes of the storages that autograd saves while it is entered; parameters do not count."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._seen: dict[int, tuple[int, torch.Tensor]] = {}
        self._hooks = saved_tensors_hooks(self._pack, lambda packed: packed)

    def __enter__(self) -> "Saved":
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self._seen.values())

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._own:
            self._seen[storage.data_ptr()] = (storage.nbytes(), tensor)  # held: no address is used twice
        return tensor


@pytest.mark.parametrize("config", SIZES)
def test_elements_are_those_of_the_engine(config: GPTConfig) -> None:
    specs = split_into_units(GPT(config))  # small enough: tensors of the meta device cost seconds of imports
    owned = {spec.name: sum(parameter.numel() for _, parameter in spec.parameters) for spec in specs}
    assert {unit.name: unit.elements for unit in job_of(config, torch.float32).units} == owned
    assert list(owned) == [unit.name for unit in job_of(config, torch.float32).units]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", SIZES)
def test_a_block_keeps_what_autograd_saves(config: GPTConfig, dtype: torch.dtype) -> None:
    block = Block(config).to(dtype)
    x = torch.randn(SAMPLES, SEQUENCE, config.hidden, dtype=dtype, requires_grad=True)
    with Saved(block.parameters()) as saved:
        block(x)
    unit = job_of(config, dtype).units[-1]
    assert unit.saved_bytes == saved.bytes
    assert unit.checkpoint_bytes == x.untyped_storage().nbytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", SIZES)
def test_a_model_keeps_what_its_units_keep(config: GPTConfig, dtype: torch.dtype) -> None:
    model = GPT(config).to(dtype)
    tokens = torch.randint(config.vocabulary, (SAMPLES, SEQUENCE + 1))
    with Saved(model.parameters()) as saved:
        model(tokens[:, :-1], tokens[:, 1:])
    assert sum(unit.saved_bytes or 0 for unit in job_of(config, dtype).units) == saved.bytes


def test_without_a_batch_units_know_their_elements_only() -> None:
    for unit in job_of(SIZES[0], torch.float32, samples=None).units:
        assert unit.elements > 0
        assert (unit.saved_bytes, unit.checkpoint_bytes, unit.forward_flop) == (None, None, None)
