"""16-bit numbers in the CUDA kernel: every pattern in, and the rounding out, against torch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.adamw_kernel.cases import numbers, same_bits, same_numbers, shard
from tests.support.adamw_kernel.shim import ShimRuntime
from zprof.reference_engine.optimizer.cuda import CudaAdamW

HALVES = (torch.bfloat16, torch.float16)
PATTERNS = torch.arange(2**16, dtype=torch.int32)


def rounded(kernel, values: torch.Tensor, low: torch.dtype, offset: int = 0) -> torch.Tensor:
    """The kernel's low-precision copy of weights that it leaves as they are: nothing moves them, no decay."""
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
def test_every_pattern_is_written_as_it_was(kernel, half):
    values = PATTERNS.to(torch.int16).view(half)
    assert same_numbers(rounded(kernel, values.float(), half), values)


@pytest.mark.parametrize("half", HALVES)
def test_every_tie_and_its_neighbours_round_as_torchs_do(kernel, half):
    values = PATTERNS.to(torch.int16).view(half).float()
    values = values[values.isfinite()]
    above = torch.nextafter(values.to(half), torch.tensor(float("inf"), dtype=half)).float()
    tie = ((values.double() + above.double()) / 2).float()
    tie = tie[tie.isfinite()]
    up, down = (torch.nextafter(tie, torch.tensor(float(end))) for end in ("inf", "-inf"))
    for floats in (tie, up, down):
        assert same_numbers(rounded(kernel, floats, half), floats.to(half))


@pytest.mark.parametrize("half", HALVES)
def test_floats_of_every_exponent_round_as_torchs_do(kernel, half):
    patterns = torch.randint(0, 2**32, (200_000,), generator=torch.Generator().manual_seed(1))
    floats = patterns.to(torch.int32).view(torch.float32)
    assert same_numbers(rounded(kernel, floats, half), floats.to(half))


@pytest.mark.parametrize("half", HALVES)
@settings(max_examples=200)
@given(value=st.floats(width=32), offset=st.integers(0, 8))
def test_any_float_rounds_as_torchs_does(shim_library, half, value, offset):
    kernel = CudaAdamW(torch.device("cpu"), ShimRuntime(shim_library, threads=1, resident=1))
    floats = torch.full((9,), value)
    assert same_numbers(rounded(kernel, floats, half, offset), floats.to(half))


@pytest.mark.parametrize(
    ("half", "value", "bits"),
    [
        (torch.float16, 65519.99, 0x7BFF),
        (torch.float16, 65520.0, 0x7C00),
        (torch.float16, 2.0**-25, 0x0000),
        (torch.float16, 2.0**-25 * 1.0001, 0x0001),
        (torch.float16, -(2.0**-14) * (1 - 2.0**-12), 0x8400 - 0x10000),
        (torch.bfloat16, 1.00390625, 0x3F80),
        (torch.bfloat16, 1.01171875, 0x3F82),
        (torch.bfloat16, 3.4e38, 0x7F80),
        (torch.bfloat16, float("-inf"), 0xFF80 - 0x10000),
    ],
)
def test_known_roundings(kernel, half, value, bits):
    assert rounded(kernel, torch.tensor([value]), half).view(torch.int16).item() == bits
