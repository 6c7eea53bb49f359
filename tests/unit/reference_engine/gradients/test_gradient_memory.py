"""What gradients need besides themselves: buffers of constant size, and memory that is allocated once."""

import gc
from collections import Counter
from unittest.mock import Mock

import pytest
import torch
from engine_helpers import compute_zero_bytes, loss_of, storage_bytes, tiny_gpt
from fake_comm import FakeComm
from fast_pairs import pairs_fast
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.comm.collective import Handle
from zprof.reference_engine.gradients.unit_gradients import BucketPool
from zprof.reference_engine.program.gpt import GPTConfig

BF16, FP32 = torch.bfloat16, torch.float32
CPU = torch.device("cpu")
RANKS = 2
CONSTANT = 128
WIRES = [(FP32, None), (BF16, None), (BF16, FP32)]


class SilentComm(FakeComm):
    """Touches no tensor: what is allocated is the engine's."""

    def all_gather(self, *_: object) -> Handle:
        return Mock()

    reduce_scatter = all_reduce = all_gather


@pytest.fixture(autouse=True, scope="module")
def _only_new_objects_are_counted() -> None:
    gc.collect()
    gc.freeze()


def all_bytes() -> int:
    gc.collect()
    return storage_bytes(thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor))


def gpt(layers: int) -> nn.Module:
    return tiny_gpt(GPTConfig(layers=layers, hidden=8, heads=2, vocabulary=11, context=6))


def step(model: ZeroModel, optimizer: ZeroOptimizer) -> None:
    optimizer.zero_grad()
    for _ in range(model.facts.micro_batches):
        loss_of(model).backward()
    optimizer.step()
    model.synchronize()


def count_bytes_beyond_zero(layers: int, **settings: object) -> int:
    """Bytes that stay between steps beside parameters, gradients and optimizer state."""
    before = all_bytes()
    comm = FakeComm(RANKS)
    model, optimizer = zero(gpt(layers), ZeroConfig(**settings), comm)  # type: ignore[arg-type]
    for _ in range(2):
        step(model, optimizer)
    comm.take_events()
    facts = model.facts
    states = list(compute_zero_bytes(model, facts.parameter_bytes))
    psi = facts.parameters + facts.padding_elements
    states[1] = psi * facts.gradient_bytes // (RANKS if facts.stage >= 2 else 1)
    return all_bytes() - before - sum(states)


@pytest.mark.parametrize(
    ("stage", "each", "dtype", "reduce_dtype"),
    [
        pytest.param(stage, each, *wire, marks=marks)
        for (stage, each, wire), marks in pairs_fast(
            {"stage": range(4), "each": [None, False], "wire": WIRES}
        )
    ],
)
def test_nothing_is_kept_by_default(stage, each, dtype, reduce_dtype):
    kept = count_bytes_beyond_zero(
        2, stage=stage, dtype=dtype, reduce_dtype=reduce_dtype, micro_batches=2, reduce_each_micro_batch=each
    )
    assert kept == 0


@pytest.mark.parametrize(("dtype", "reduce_dtype"), WIRES)
@pytest.mark.parametrize("stage", range(4))
def test_constant_buffers_do_not_grow_with_the_layers(stage, dtype, reduce_dtype):
    settings = {"stage": stage, "dtype": dtype, "reduce_dtype": reduce_dtype, "constant_buffers": CONSTANT}
    in_place = stage == 0 and reduce_dtype is None
    wire = (reduce_dtype or dtype).itemsize
    for buckets, layers in ((1, 2), (3, 4)):
        expected = 0 if in_place else buckets * CONSTANT * wire
        assert count_bytes_beyond_zero(layers, reduce_buckets=buckets, **settings) == expected


def test_defragment_keeps_chunks_for_the_units_that_are_there_at_once():
    model, _ = zero(gpt(2), ZeroConfig(), FakeComm(RANKS))
    sizes = {unit.name: unit.layout.padded for unit in model.units}
    root, block = sizes["root"], sizes["blocks.0"]
    low = {"dtype": BF16, "reduce_dtype": FP32}
    accumulating = {"micro_batches": 2, "reduce_each_micro_batch": False}
    for settings, elements in (
        ({"stage": 0}, 0),
        ({"stage": 1}, 0),
        ({"stage": 1, **low}, 2 * max(root, block)),
        ({"stage": 2, "reduce_buckets": 1}, root + block),
        ({"stage": 3, "reduce_buckets": 3}, root + 3 * block),
        ({"stage": 3, **accumulating}, root + 4 * block),  # whole gradients, in one piece each
    ):
        assert count_bytes_beyond_zero(4, defragment=True, **settings) == 4 * elements, settings


#: Operators whose only work is to allocate, or to copy into new memory.
ALLOCATING = {
    "empty",
    "empty_like",
    "new_empty",
    "zeros",
    "zeros_like",
    "new_zeros",
    "full",
    "clone",
    "_to_copy",
}


class Allocations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.made: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.made[func.overloadpacket.__name__] += func.overloadpacket.__name__ in ALLOCATING
        return func(*args, **(kwargs or {}))


def made_by_a_backward(model: nn.Module) -> Counter[str]:
    """Allocations in the very first backward."""
    loss = loss_of(model)
    with Allocations() as allocations:
        loss.backward()
    return allocations.made


def made_by_the_engine(**settings: object) -> Counter[str]:
    """Allocations in a backward, beside those of the same model without an engine."""
    model, _ = zero(gpt(4), ZeroConfig(**settings), SilentComm(RANKS))  # type: ignore[arg-type]
    plain = gpt(4).to(model.units[0].full.dtype)
    return made_by_a_backward(model) - made_by_a_backward(plain)


FACTORS = {
    "stage": range(4),
    "each": [None, False],
    "constant": [None, CONSTANT],
    "wire": WIRES,
    "buckets": [1, 2],
}


@pytest.mark.parametrize(
    ("stage", "each", "constant", "dtype", "reduce_dtype", "buckets"),
    [
        pytest.param(stage, each, constant, *wire, buckets, marks=marks)
        for (stage, each, constant, wire, buckets), marks in pairs_fast(FACTORS)
    ],
)
def test_with_defragment_a_backward_allocates_nothing(stage, each, constant, dtype, reduce_dtype, buckets):
    made = made_by_the_engine(
        stage=stage,
        reduce_each_micro_batch=each,
        micro_batches=2,
        constant_buffers=constant,
        dtype=dtype,
        reduce_dtype=reduce_dtype,
        reduce_buckets=buckets,
        defragment=True,
    )
    assert not made
    assert stage < 2 or made_by_the_engine(stage=stage)


def test_a_pool_gives_the_smallest_chunk_that_fits_and_waits_when_there_is_none():
    large, small = Mock(), Mock()
    pool = BucketPool(9, FP32, CPU, chunk_sizes=[10, 6, 6])
    taken = [pool.acquire(5), pool.acquire(6), pool.acquire(4)]
    assert [bucket.untyped_storage().nbytes() // 4 for bucket in taken] == [6, 6, 10]
    pool.lend(taken[0], small)
    pool.lend(taken[2], large)
    assert pool.acquire(9).data_ptr() == taken[2].data_ptr()
    small.wait.assert_called_once()
    large.wait.assert_called_once()
    pool.drain()
