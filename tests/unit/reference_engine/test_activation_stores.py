"""What is put into a store comes back bit by bit; chunks are allocated once, and nothing in them is lost."""

import gc
from collections.abc import Iterator
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_comm import ThreadComm, launches, on_ranks

from zprof.reference_engine.activation_checkpointing import (
    ALIGNMENT_BYTES,
    ChunkedBuffers,
    CopyStore,
    DeviceTransfer,
    HostTransfer,
    PartitionedStore,
    ReferenceStore,
    SeparateBuffers,
    Store,
    allocate_device_memory,
    allocate_host_memory,
)

CPU = torch.device("cpu")
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
KINDS = list(product([False, True], repeat=3))


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def store_of(kind: tuple[bool, bool, bool], mp: ThreadComm, slots: int = 4) -> Store:
    partition, host, contiguous = kind
    allocate = allocate_host_memory if host else allocate_device_memory
    copies = CopyStore(
        ChunkedBuffers(allocate, slots) if contiguous else SeparateBuffers(allocate),
        HostTransfer() if host else DeviceTransfer(),
    )
    return PartitionedStore(copies, mp) if partition else copies


@settings(max_examples=40)
@given(
    shapes=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=5),
    dtype=st.sampled_from(list(BITS)),
    kind=st.sampled_from(KINDS),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_every_bit_comes_back_in_any_order(
    shapes: list[list[int]], dtype: torch.dtype, kind: tuple[bool, bool, bool], ranks: int, seed: int
):
    generator = torch.Generator().manual_seed(seed)
    info = torch.iinfo(BITS[dtype])
    # Random bits, so that NaNs with a payload, denormals and minus zero are among them.
    bits = [torch.randint(info.min, info.max, shape, generator=generator).to(BITS[dtype]) for shape in shapes]

    def work(mp: ThreadComm) -> None:
        store = store_of(kind, mp)
        kept = [store.put(one.clone().view(dtype), f"block {index}") for index, one in enumerate(bits)]
        for one, there in zip(reversed(bits), reversed(kept), strict=True):
            back = there.get()
            assert back.dtype == dtype
            assert torch.equal(back.view(BITS[dtype]), one)
            assert torch.equal(there.get().view(BITS[dtype]), one)  # as with retain_graph
        gathers = 2 * len(bits) if kind[0] else 0
        assert [name for name, _ in launches(mp)] == ["all_gather"] * gathers

    on_ranks(ranks, work)


class Counted:
    """Allocates, and notes how often and how much."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size_bytes: int, device: torch.device) -> torch.Tensor:
        self.sizes.append(size_bytes)
        return allocate_device_memory(size_bytes, device)


def test_the_whole_store_copies_nothing_and_refuses_a_change_in_place():
    x = torch.ones(3)
    kept = ReferenceStore().put(x, "blocks.1")
    assert kept.get().data_ptr() == x.data_ptr()
    x.add_(1)
    with pytest.raises(RuntimeError, match=r"blocks\.1"):
        kept.get()


def test_host_memory_is_not_torchs_and_goes_back_with_its_tensor():
    with torch.profiler.profile(profile_memory=True) as profiled:
        tensor = allocate_host_memory(1 << 20, CPU)
    assert max((event.cpu_memory_usage for event in profiled.events()), default=0) < 1 << 10
    part = tensor.fill_(7)[3:5]
    del tensor
    assert part.tolist() == [7, 7]


@pytest.mark.usefixtures("_no_garbage_collection")
def test_a_chunk_is_allocated_once_and_used_again_by_the_next_forwards():
    counted = Counted()
    buffers = ChunkedBuffers(counted, 3)
    store = CopyStore(buffers, DeviceTransfer())
    addresses = []
    for step in range(4):
        kept = [store.put(torch.full((64,), float(step + index)), "block") for index in range(3)]
        assert [float(there.get()[0]) for there in kept] == [step, step + 1, step + 2]
        addresses.append([there.get().data_ptr() for there in kept])
        while kept:
            kept.pop()  # as the backward drops them, last first
    assert counted.sizes == [3 * 256]
    assert addresses == [addresses[0]] * 4
    assert addresses[0] == [addresses[0][0] + 256 * index for index in range(3)]  # side by side
    assert buffers.chunk_bytes == 3 * 256


@settings(max_examples=40)
@given(
    slots=st.integers(1, 4),
    actions=st.lists(st.tuples(st.booleans(), st.integers(1, 200)), min_size=1, max_size=20),
)
def test_nothing_in_a_chunk_is_overwritten_whatever_is_put_and_dropped(slots: int, actions):
    counted = Counted()
    store = CopyStore(ChunkedBuffers(counted, slots), DeviceTransfer())
    kept = []
    for number, (drops, size) in enumerate(actions):
        if drops and kept:
            kept.pop(size % len(kept))
        else:
            kept.append((store.put(torch.full((size,), float(number)), "block"), number, size))
        for there, value, elements in kept:
            assert there.get().tolist() == [value] * elements
    spans = sorted((there.get().data_ptr(), 4 * elements) for there, _, elements in kept)
    assert all(4 * there.get().storage_offset() % ALIGNMENT_BYTES == 0 for there, *_ in kept)
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))
    assert len(counted.sizes) <= len(actions)
