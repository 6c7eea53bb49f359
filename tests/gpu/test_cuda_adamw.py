"""The CUDA kernel on a GPU: against float64 and torch's rounding, on torch's stream, without a host sync."""

import itertools

import pytest
import torch
from msgspec.structs import replace

from tests.support.adamw_kernel.cases import (
    GRADIENT_TYPES,
    LOW_TYPES,
    around,
    check,
    control,
    numbers,
    same_bits,
    same_numbers,
    shard,
    tensors,
    wanted,
)
from tests.support.adamw_kernel.shim import ShimRuntime, build, compiler
from zprof.reference_engine.optimizer.cuda import CudaAdamW, explain_unavailable

REASON = explain_unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=f"no CUDA kernel: {REASON}")]

TYPES = list(itertools.product(GRADIENT_TYPES, LOW_TYPES))
LENGTHS = (0, 1, 7, 8, 9, 5003, 1_000_003)
OFFSETS = ((0, 0, 0, 0, 0), (3, 3, 3, 3, 3), (1, 2, 3, 4, 5), (4, 0, 4, 0, 8))


@pytest.fixture(scope="module")
def gpu() -> CudaAdamW:
    return CudaAdamW(torch.device("cuda"))


@pytest.mark.parametrize(("gradient", "low"), TYPES)
def test_equals_float64_for_every_type(gpu, gradient, low):
    for elements, offsets in itertools.product(LENGTHS, OFFSETS):
        state = shard(elements, gradient, low, offsets=offsets, step=3, device="cuda")
        want = wanted(state, numbers(), 3.0)
        gpu.adamw([state], numbers(), control(3.0, device="cuda"))
        check(state, want)
        if low is not None:
            assert same_bits(state.low_precision, state.weights.to(low))
        for tensor, offset in zip(tensors(state), offsets, strict=False):
            outside = torch.cat([around(tensor)[:offset], around(tensor)[offset + elements :]])
            assert bool((outside == 7).all())


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_every_exponent_rounds_as_on_a_cpu(gpu, low):
    patterns = torch.randint(0, 2**32, (4_000_000,), generator=torch.Generator().manual_seed(1))
    floats = patterns.to(torch.int32).view(torch.float32)
    state = shard(floats.numel(), torch.float32, low, device="cuda")
    state.weights.copy_(floats)
    state.gradient.zero_()
    state.exp_avg.zero_()
    gpu.adamw([state], numbers(learning_rate=0.0), None)
    assert same_numbers(state.low_precision.cpu(), floats.to(low))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_every_pattern_of_a_gradient_is_read(gpu, half):
    gradient = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(half)
    state = shard(gradient.numel(), half, None, device="cuda")
    state.gradient.copy_(gradient)
    state.exp_avg.zero_()
    gpu.adamw([state], numbers(beta1=0.0), None)
    torch.testing.assert_close(state.exp_avg.cpu(), gradient.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("gradient", "low"), TYPES)
def test_a_skipped_step_changes_no_bit(gpu, gradient, low):
    state = shard(5003, gradient, low, step=0, device="cuda")
    before = [around(tensor).clone() for tensor in tensors(state)]
    gpu.adamw([state], numbers(), control(0.0, 1.0, device="cuda"))
    assert all(same_bits(around(tensor), was) for tensor, was in zip(tensors(state), before, strict=True))


@pytest.mark.parametrize("dtype", GRADIENT_TYPES)
def test_sums_have_the_bits_of_the_same_source_on_a_cpu(gpu, dtype, tmp_path):
    if compiler() is None:
        pytest.skip("no C++ compiler")
    cpu = CudaAdamW(torch.device("cpu"), ShimRuntime(build(tmp_path), threads=256))
    for elements, offset in itertools.product((0, 1, 9, 50_003), (0, 3)):
        gradient = shard(elements, dtype, None, offsets=(offset,) * 5).gradient
        there = shard(elements, dtype, None, offsets=(offset,) * 5, device="cuda").gradient
        assert gpu.sum_of_squares([there]).item() == cpu.sum_of_squares([gradient]).item()


@pytest.mark.parametrize(("gradient", "low"), TYPES)
def test_many_small_shards_of_one_call_equal_float64(gpu, gradient, low):
    shards = [
        replace(
            shard(elements, gradient, low, offsets=offsets, step=1 + index, device="cuda", seed=index),
            skip=(None, torch.zeros((), device="cuda"), torch.ones((), device="cuda"))[index % 3],
        )
        for index, (elements, offsets) in enumerate(itertools.product((1, 130, 5003, 70_001) * 10, OFFSETS))
    ]
    wants = [wanted(state, numbers(), 3.0) for state in shards]
    before = [state.weights.clone() for state in shards]
    exact = sum(state.gradient.double().square().sum() for state in shards)
    assert gpu.sum_of_squares([state.gradient for state in shards]).item() == pytest.approx(
        exact.item(), rel=2**-17
    )
    for _ in range(2):  # the second time by the table of the first
        gpu.adamw(shards, numbers(), control(3.0, found_inf=1.0, device="cuda"))
    gpu.adamw(shards, numbers(), control(3.0, device="cuda"))
    for index, (state, want) in enumerate(zip(shards, wants, strict=True)):
        if index % 3 == 2:
            assert same_bits(state.weights, before[index])
        else:
            check(state, want)


def test_inf_and_nan_show_in_a_sum(gpu):
    gradient = torch.ones(1_000_003, device="cuda")
    gradient[777_777] = float("inf")
    assert gpu.sum_of_squares([gradient]).item() == float("inf")
    gradient[3] = float("nan")
    assert gpu.sum_of_squares([gradient]).isnan().item()


def test_nothing_waits_for_the_gpu_and_the_current_stream_orders_it(gpu):
    state = shard(5003, torch.bfloat16, torch.bfloat16, device="cuda")
    small, warm_up = (
        [shard(size, torch.bfloat16, torch.bfloat16, device="cuda") for size in range(1, 20)]
        for _ in range(2)
    )
    late = shard(5003, torch.bfloat16, None, device="cuda", seed=9).gradient.clone()
    want_state = shard(5003, torch.bfloat16, torch.bfloat16)
    want_state.gradient.copy_(late)
    want = wanted(want_state, numbers())
    by = control(device="cuda")
    gpu.adamw([shard(9, torch.bfloat16, torch.bfloat16, device="cuda")], numbers(), by)  # loaded before
    gpu.adamw(warm_up, numbers(), by)  # pinned memory for a table: allocating it may wait
    gpu.sum_of_squares([late])
    gpu.sum_of_squares([one.gradient for one in warm_up])
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            state.gradient.copy_(late)
            gpu.adamw([state], numbers(), by)
            gpu.sum_of_squares([state.gradient])
            gpu.adamw(small, numbers(), by)  # by a table that is made while the stream is busy
            gpu.sum_of_squares([one.gradient for one in small])
            assert not side.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    side.synchronize()
    check(state, want)
