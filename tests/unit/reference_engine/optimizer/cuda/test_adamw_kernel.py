"""``adamw.cu`` run on the CPU: against float64, and bit by bit where it rounds."""

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
from zprof.reference_engine.optimizer.cuda import CudaAdamW

TYPES = list(itertools.product(GRADIENT_TYPES, LOW_TYPES))
HALVES = (torch.bfloat16, torch.float16)
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
PATTERNS = torch.arange(2**16, dtype=torch.int32)


@pytest.mark.parametrize(("gradient", "low"), TYPES)
def test_equals_float64_for_every_type_and_writes_nothing_outside(kernel, gradient, low):
    for elements, offsets in itertools.product(LENGTHS, OFFSETS):
        state = shard(elements, gradient, low, offsets=offsets, step=3)
        gradients = state.gradient.clone()
        want = wanted(state, numbers(), 4.0)
        kernel.adamw([state], numbers(), control(4.0))
        check(state, want)
        assert same_bits(state.gradient, gradients)
        assert low is None or same_bits(state.low_precision, state.weights.to(low))
        for tensor, offset in zip(tensors(state), offsets, strict=False):
            memory = around(tensor)
            assert bool((memory[:offset] == 7).all())
            assert bool((memory[offset + elements :] == 7).all())


@pytest.mark.parametrize(("threads", "resident"), [(16, 2), (4, 7)])
def test_many_shards_with_counts_of_their_own_equal_float64(make_kernel, threads, resident):
    shards = [
        replace(
            shard(elements, torch.float16, torch.bfloat16, offsets=offsets, step=1 + index, seed=index),
            skip=(None, torch.zeros(()), torch.ones(()))[index % 3],
        )
        for index, (elements, offsets) in enumerate(itertools.product((1, 5, 130, 0, 1003), OFFSETS))
    ]
    wants = [wanted(state, numbers(), 4.0) for state in shards]
    before = [[around(tensor).clone() for tensor in tensors(state)] for state in shards]
    make_kernel(threads=threads, resident=resident).adamw(shards, numbers(), control(4.0))
    for index, (state, want) in enumerate(zip(shards, wants, strict=True)):
        if index % 3 == 2:
            assert all(map(same_bits, map(around, tensors(state)), before[index]))
        else:
            check(state, want)


@pytest.mark.parametrize("found_inf", [1.0, float("nan")])
def test_a_skipped_step_changes_no_bit(kernel, found_inf):
    state = shard(37, torch.float32, torch.float16, step=0)
    state.gradient[5] = float("inf")
    state.exp_avg[3] = float("nan")
    before = [around(tensor).clone() for tensor in tensors(state)]
    kernel.adamw([state], numbers(), control(0.0, found_inf))
    assert all(map(same_bits, map(around, tensors(state)), before))


@settings(max_examples=40)
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


def rounded(kernel, values: torch.Tensor, low: torch.dtype, offset: int = 0) -> torch.Tensor:
    """The kernel's low-precision copy of weights that it leaves as they are."""
    state = shard(values.numel(), torch.float32, low, offsets=(offset,) * 5)
    state.weights.copy_(values)
    state.gradient.zero_()
    state.exp_avg.zero_()  # not even the sign of a zero changes
    kernel.adamw([state], numbers(learning_rate=0.0), None)
    finite = ~values.isnan()
    assert same_bits(state.weights[finite], values[finite])
    return state.low_precision


@pytest.mark.parametrize("half", HALVES)
def test_every_pattern_is_read_as_torch_reads_it(kernel, half):
    gradient = PATTERNS.to(torch.int16).view(half)
    state = shard(gradient.numel(), half, None)
    state.gradient.copy_(gradient)
    state.exp_avg.zero_()
    kernel.adamw([state], numbers(beta1=0.0), None)
    got, want = state.exp_avg, gradient.float()
    assert bool((got.isnan() == want.isnan()).all())
    assert bool((got == want)[~want.isnan()].all())


@pytest.mark.parametrize("half", HALVES)
def test_every_pattern_every_tie_and_its_neighbours_are_written_as_torch_does(kernel, half):
    values = PATTERNS.to(torch.int16).view(half).float()
    finite = values[values.isfinite()]
    above = torch.nextafter(finite.to(half), torch.tensor(float("inf"), dtype=half)).float()
    tie = ((finite.double() + above.double()) / 2).float()
    tie = tie[tie.isfinite()]
    up, down = (torch.nextafter(tie, torch.tensor(float(end))) for end in ("inf", "-inf"))
    for floats in (values, tie, up, down):
        assert same_numbers(rounded(kernel, floats, half), floats.to(half))
