"""What gradients need besides themselves: buffers of constant size, and memory that is allocated once."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from engine_helpers import law, loss_of, storage_bytes, tiny_gpt
from fake_comm import FakeComm
from fast_pairs import pairs_fast
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.comm.collective import Handle
from zprof.reference_engine.gradients.reductions import ReductionPass
from zprof.reference_engine.gradients.storage import BucketPool, PersistentBucketMemory, TransientBucketMemory
from zprof.reference_engine.program.gpt import GPTConfig

BF16, FP32 = torch.bfloat16, torch.float32
CPU = torch.device("cpu")
RANKS = 2
CONSTANT = 128
WIRES = [(FP32, None), (BF16, None), (BF16, FP32)]


class SilentComm(FakeComm):
    """Touches no tensor: what is allocated is the engine's."""

    def _launch(self, kind: str, unit: str, deliver: object) -> Handle:
        return super()._launch(kind, unit, lambda: None)

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        return self._launch("reduce_scatter", unit, None)

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        return self._launch("all_reduce", unit, None)


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


def kept_beside_the_law(layers: int, **settings: object) -> int:
    """Bytes that stay between steps beside parameters, gradients and optimizer state."""
    before = all_bytes()
    comm = FakeComm(RANKS)
    model, optimizer = zero(gpt(layers), ZeroConfig(**settings), comm)  # type: ignore[arg-type]
    for _ in range(2):
        step(model, optimizer)
    comm.take_events()
    facts = model.facts
    states = list(law(model, facts.parameter_bytes))
    psi = facts.parameters + facts.padding_elements
    states[1] = psi * facts.gradient_bytes // (RANKS if facts.stage >= 2 else 1)
    return all_bytes() - before - sum(states)


@pytest.mark.parametrize(("dtype", "reduce_dtype"), WIRES)
@pytest.mark.parametrize("each", [None, False])
@pytest.mark.parametrize("stage", range(4))
def test_nothing_is_kept_by_default(stage, each, dtype, reduce_dtype):
    kept = kept_beside_the_law(
        2, stage=stage, dtype=dtype, reduce_dtype=reduce_dtype, micro_batches=2, reduce_each_micro_batch=each
    )
    assert kept == 0


@pytest.mark.parametrize(("dtype", "reduce_dtype"), WIRES)
@pytest.mark.parametrize("stage", range(4))
def test_constant_buffers_do_not_grow_with_the_layers(stage, dtype, reduce_dtype):
    settings = {"stage": stage, "dtype": dtype, "reduce_dtype": reduce_dtype, "constant_buffers": CONSTANT}
    in_place = stage == 0 and reduce_dtype is None
    wire = (reduce_dtype or dtype).itemsize
    for buckets, layers in ((1, 2), (1, 4), (3, 4)):
        expected = 0 if in_place else buckets * CONSTANT * wire
        assert kept_beside_the_law(layers, reduce_buckets=buckets, **settings) == expected


def test_stage_1_that_reduces_each_micro_batch_keeps_the_sum_of_its_part():
    settings = {"stage": 1, "micro_batches": 2, "reduce_each_micro_batch": True}
    root, block = units_bytes(2)
    assert kept_beside_the_law(2, **settings) == 4 * (root + 2 * block) // RANKS


def units_bytes(model_layers: int) -> tuple[int, int]:
    """Elements of the root and of a block."""
    model, _ = zero(gpt(model_layers), ZeroConfig(), FakeComm(RANKS))
    sizes = {unit.name: unit.layout.padded for unit in model._units}
    return sizes["root"], sizes["blocks.0"]


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("stage", range(4))
def test_defragment_keeps_chunks_for_the_units_that_are_there_at_once(stage, buckets):
    for layers in (2, 4):
        root, block = units_bytes(layers)
        expected = 4 * (root + buckets * block) if stage >= 2 else 0
        assert kept_beside_the_law(layers, stage=stage, defragment=True, reduce_buckets=buckets) == expected


@pytest.mark.parametrize("stage", [0, 1])
def test_defragment_keeps_the_buffers_of_another_type_too(stage):
    root, block = units_bytes(2)
    kept = kept_beside_the_law(2, stage=stage, dtype=BF16, reduce_dtype=FP32, defragment=True)
    assert kept == 2 * 4 * max(root, block)


@pytest.mark.parametrize("stage", [2, 3])
def test_defragment_without_sync_keeps_whole_gradients_in_one_piece_a_unit(stage):
    layers = 3  # more than reduce_buckets: chunks for those would be smaller
    root, block = units_bytes(layers)
    kept = kept_beside_the_law(
        layers, stage=stage, defragment=True, micro_batches=2, reduce_each_micro_batch=False
    )
    assert kept == 4 * (root + layers * block)


class Allocations(TorchDispatchMode):
    """Storages that operators made."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.known = known
        self.made: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.known:
                self.known.add(tensor.untyped_storage()._cdata)
                self.made.append(str(func))
        return out


@contextmanager
def allocations() -> Iterator[list[str]]:
    tensors = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
    with Allocations({tensor.untyped_storage()._cdata for tensor in tensors}) as mode:
        yield mode.made


def made_by_a_backward(**settings: object) -> list[str]:
    """Operators that allocate while gradients are taken and reduced, in the very first backward."""
    model, _ = zero(gpt(4), ZeroConfig(**settings), SilentComm(RANKS))  # type: ignore[arg-type]
    reducer = model._reducer
    root, *blocks = list(reducer._gradients)
    produced = {
        unit: [torch.ones(slot.shape, dtype=unit.full.dtype) for slot in unit.layout.slots]
        for unit in reducer._gradients
    }
    with torch.no_grad(), allocations() as made:
        give(root, reducer._gradients[root], produced[root][-1:])  # the head's gradient comes first
        for unit in [*reversed(blocks), root]:
            give(unit, reducer._gradients[unit], produced[unit])
            reducer._handles.append(reducer._gradients[unit].reduce([], ReductionPass()))
        reducer._wait()
    return made


def give(unit, gradients, produced) -> None:  # type: ignore[no-untyped-def]
    first = len(unit.parameters) - len(produced)
    for index, gradient in enumerate(produced, start=first):
        if unit.parameters[index].grad is None:
            unit.parameters[index].grad = gradient
        else:
            unit.parameters[index].grad.add_(gradient)
        gradients.take(index)


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
    made = made_by_a_backward(
        stage=stage,
        reduce_each_micro_batch=each,
        micro_batches=2,
        constant_buffers=constant,
        dtype=dtype,
        reduce_dtype=reduce_dtype,
        reduce_buckets=buckets,
        defragment=True,
    )
    assert made == []


@pytest.mark.parametrize("stage", [2, 3])
def test_without_defragment_buckets_are_allocated_by_the_backward(stage):
    made = set(made_by_a_backward(stage=stage))
    assert made == {"aten.empty.memory_format", "aten.empty_like.default"}  # buckets, and gradient shards


class Noted:
    """A reduction that notes when it was waited for."""

    def __init__(self, waited: list[int], number: int) -> None:
        self._waited = waited
        self._number = number

    def wait(self) -> None:
        self._waited.append(self._number)


def test_kept_memory_gives_the_smallest_chunk_that_fits_and_waits_when_there_is_none():
    waited: list[int] = []
    pool = BucketPool(PersistentBucketMemory([10, 6, 6], FP32, CPU), limit=9)
    small = [pool.take(5), pool.take(6)]
    large = pool.take(4)
    assert [bucket.untyped_storage().nbytes() // 4 for bucket in (*small, large)] == [6, 6, 10]
    pool.lend(small[0], Noted(waited, 0))
    pool.lend(large, Noted(waited, 1))
    again = pool.take(9)
    assert waited == [0, 1]
    assert again.data_ptr() == large.data_ptr()
    pool.drain()


def test_kept_memory_grows_once_if_all_of_it_is_being_filled():
    memory = PersistentBucketMemory([6], FP32, CPU)
    pool = BucketPool(memory, limit=1)
    for _ in range(2):
        first, second = pool.take(6), pool.take(6)
        assert first.data_ptr() != second.data_ptr()
        pool.give_back(first)
        pool.give_back(second)
        pool.drain()
    assert [chunk.numel() for chunk in memory._chunks] == [6, 6]


def test_what_a_broken_off_backward_held_is_free_after_a_drain():
    pool = BucketPool(PersistentBucketMemory([6], FP32, CPU), limit=1)
    held = pool.take(6)
    pool.drain()
    assert pool.take(6).data_ptr() == held.data_ptr()


def test_fresh_memory_is_used_again_within_a_backward_and_freed_at_its_end():
    waited: list[int] = []
    pool = BucketPool(TransientBucketMemory(FP32, CPU), limit=1)
    first = pool.take(6)
    pool.lend(first, Noted(waited, 0))
    assert pool.take(6).data_ptr() == first.data_ptr()
    assert waited == [0]
    pool.drain()
    before = all_bytes()
    del first
    assert before - all_bytes() == 24
