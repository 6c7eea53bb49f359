"""The CUDA kernel's arithmetic, run on the CPU: against float64 and torch, and where nothing may change."""

import ctypes
import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.support.adamw_kernel.shim import ShimRuntime
from zprof.reference_engine.optimizer.adamw import TorchAdamW
from zprof.reference_engine.optimizer.cuda import CudaAdamW
from zprof.reference_engine.optimizer.cuda.launch import THREADS

TYPES = list(itertools.product(GRADIENT_TYPES, LOW_TYPES))
LENGTHS = (0, 1, 7, 8, 9, 5003)
#: For w, g, m, v, low: all alike, each at its own distance from a 16-byte boundary, and two that share one.
OFFSETS = (
    (0, 0, 0, 0, 0),
    (3, 3, 3, 3, 3),
    (8, 8, 8, 8, 8),
    (1, 2, 3, 4, 5),
    (1, 5, 1, 1, 5),
    (4, 0, 4, 0, 8),
)


@pytest.mark.parametrize(("gradient", "low"), TYPES)
def test_equals_float64_for_every_type(kernel, gradient, low):
    for elements, offsets in itertools.product(LENGTHS, OFFSETS):
        state = shard(elements, gradient, low, offsets=offsets, step=3)
        gradients = state.gradient.clone()
        want = wanted(state, numbers(), 4.0)
        kernel.adamw([state], numbers(), control(4.0))
        check(state, want)
        assert same_bits(state.gradient, gradients)
        if low is not None:
            assert same_bits(state.low_precision, state.weights.to(low))


@pytest.mark.parametrize(("gradient", "low"), TYPES)
def test_writes_nothing_outside_the_shard(kernel, gradient, low):
    for elements, offsets in itertools.product((1, 7, 9, 100), OFFSETS):
        state = shard(elements, gradient, low, offsets=offsets)
        kernel.adamw([state], numbers(), None)
        for tensor, offset in zip(tensors(state), offsets, strict=False):
            memory = around(tensor)
            assert bool((memory[:offset] == 7).all())
            assert bool((memory[offset + elements :] == 7).all())


@pytest.mark.parametrize(("gradient", "low"), TYPES)
@pytest.mark.parametrize(("threads", "resident"), [(16, 2), (4, 7), (16, 100)])
def test_many_shards_with_counts_of_their_own_equal_float64(make_kernel, gradient, low, threads, resident):
    kernel = make_kernel(threads=threads, resident=resident)
    shards = [
        replace(
            shard(elements, gradient, low, offsets=offsets, step=1 + index, seed=index),
            skip=(None, torch.zeros(()), torch.ones(()))[index % 3],
        )
        for index, (elements, offsets) in enumerate(itertools.product((1, 5, 130, 0, 1003), OFFSETS))
    ]
    wants = [wanted(state, numbers(), 4.0) for state in shards]
    before = [[around(tensor).clone() for tensor in tensors(state)] for state in shards]
    kernel.adamw(shards, numbers(), control(4.0))
    for index, (state, want) in enumerate(zip(shards, wants, strict=True)):
        if index % 3 == 2:
            assert all(map(same_bits, map(around, tensors(state)), before[index]))
            continue
        check(state, want)
        assert low is None or same_bits(state.low_precision, state.weights.to(low))


@pytest.mark.parametrize("offset", [0, 3])
def test_equals_torchs_fused_kernel_over_steps(kernel, offset):
    mine = shard(5003, torch.float32, None, offsets=(offset,) * 5, step=0)
    theirs = shard(5003, torch.float32, None, step=0)
    for step in range(1, 21):
        gradient = torch.randn(5003, generator=torch.Generator().manual_seed(step))
        for state, update in ((mine, kernel), (theirs, TorchAdamW())):
            state.gradient.copy_(gradient)
            state.step.fill_(step)
            update.adamw([state], numbers(), None)
    for name in ("exp_avg", "exp_avg_sq", "weights"):
        torch.testing.assert_close(getattr(mine, name), getattr(theirs, name), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize(("gradient", "low"), TYPES)
def test_equals_torchs_fused_kernel_with_a_divisor(kernel, gradient, low):
    mine, theirs = (shard(1003, gradient, low, step=7) for _ in range(2))
    kernel.adamw([mine], numbers(), control(1024.0))
    TorchAdamW().adamw([theirs], numbers(), control(1024.0))
    for name in ("exp_avg", "exp_avg_sq", "weights"):
        torch.testing.assert_close(getattr(mine, name), getattr(theirs, name), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("found_inf", [1.0, 3.0, float("inf"), float("nan")])
@pytest.mark.parametrize(("gradient", "low"), TYPES)
def test_a_skipped_step_changes_no_bit(kernel, gradient, low, found_inf):
    state = shard(37, gradient, low, step=0)
    state.gradient[5] = float("inf")
    state.exp_avg[3] = float("nan")
    before = [around(tensor).clone() for tensor in tensors(state)]
    kernel.adamw([state], numbers(), control(0.0, found_inf))
    for tensor, was in zip(tensors(state), before, strict=True):
        assert same_bits(around(tensor), was)


@pytest.mark.parametrize("step", [1, 2, 10, 1000, 2**20, 2**24])
def test_bias_corrections_hold_at_any_step(kernel, step):
    for changes in ({}, {"beta1": 0.0, "beta2": 0.0}, {"beta1": 0.999, "beta2": 0.9999999}):
        state = shard(100, torch.float32, None, step=step)
        want = wanted(state, numbers(**changes), 1.0)
        kernel.adamw([state], numbers(**changes), None)
        check(state, want)


def test_one_step_in_figures(kernel):
    # w 1, g 2, m v 0, t 1: m/(1-b1) = 2, sqrt(v/(1-b2)) = 2; w = 1 (1 - 0.5 x 0.1) - 0.5 x 2 / (2 + 2)
    state = shard(1, torch.float32, None, step=1)
    for tensor, value in zip(tensors(state), (1.0, 2.0, 0.0, 0.0), strict=True):
        tensor.fill_(value)
    kernel.adamw([state], numbers(learning_rate=0.5, weight_decay=0.1, eps=2.0), None)
    assert state.weights.item() == pytest.approx(0.95 - 0.25, rel=1e-6)
    assert state.exp_avg.item() == pytest.approx(0.2, rel=1e-6)
    assert state.exp_avg_sq.item() == pytest.approx(0.004, rel=1e-6)


@pytest.mark.parametrize("special", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_inf_and_nan_go_through_and_stay_where_they_are(kernel, low, special):
    state = shard(40, torch.float32, low)
    want = wanted(state, numbers())
    state.gradient[13] = special
    kernel.adamw([state], numbers(), None)
    assert not bool(state.exp_avg[13].isfinite())
    assert bool(state.weights[13].isnan())
    assert bool(state.low_precision[13].isnan())
    rest = torch.arange(40) != 13
    assert bool(((state.weights[rest] - want.weights[rest]).abs() <= want.weights_error[rest]).all())


def test_small_and_large_gradients_keep_their_squares(kernel):
    # 1e-22 squared is a subnormal of float32; 1e20 squared overflows, a thousandth of it does not
    state = shard(9, torch.float32, None)
    state.gradient.copy_(torch.tensor([1e-22, -1e-22, 1e-20, 1e-30, 0.0, 1e20, -1e20, 5e20, 1e-45]))
    state.exp_avg.zero_()
    state.exp_avg_sq.zero_()
    want = wanted(state, numbers())
    kernel.adamw([state], numbers(), None)
    check(state, want)
    assert bool(state.exp_avg_sq[5].isfinite())
    assert float(state.exp_avg_sq[2]) > 0


@settings(max_examples=150)
@given(data=st.data())
def test_equals_float64_for_any_numbers(shim_library, data):
    gradient, low = data.draw(st.sampled_from(TYPES))
    threads, resident = data.draw(st.sampled_from([(1, 1), (4, 3), (8, 1)]))
    kernel = CudaAdamW(torch.device("cpu"), ShimRuntime(shim_library, threads=threads, resident=resident))
    state = shard(
        data.draw(st.integers(0, 120)),
        gradient,
        low,
        step=data.draw(st.integers(1, 10**6)),
        offsets=data.draw(st.tuples(*[st.integers(0, 9)] * 5)),
        seed=data.draw(st.integers(0, 2**31)),
    )
    by = numbers(
        learning_rate=data.draw(st.floats(0, 1)),
        beta1=data.draw(st.floats(0, 0.999)),
        beta2=data.draw(st.floats(0, 0.9999)),
        eps=data.draw(st.floats(1e-12, 1)),
        weight_decay=data.draw(st.floats(0, 1)),
    )
    divisor = float(torch.tensor(data.draw(st.floats(2.0**-10, 2.0**24)), dtype=torch.float32))
    want = wanted(state, by, divisor)
    kernel.adamw([state], by, control(divisor))
    check(state, want)
    if low is not None:
        assert same_numbers(state.low_precision, state.weights.to(low))


def test_adjacent_threads_access_adjacent_packs(shim_library):
    # One access of a warp is 32 packs side by side: whole sectors, each touched once.
    first_element = ctypes.CDLL(str(shim_library)).first_element
    first_element.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_int]
    first_element.restype = ctypes.c_longlong
    accesses = [
        [first_element(THREADS, thread, tile, pack) for thread in range(THREADS)]
        for tile in range(3)
        for pack in range(2)
    ]
    assert all(access == [access[0] + 4 * thread for thread in range(THREADS)] for access in accesses)
    assert [element for access in accesses for element in access] == list(range(0, 24 * THREADS, 4))
