"""The CUDA kernel's sum of squares, run on the CPU."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.adamw_kernel.cases import GRADIENT_TYPES
from tests.support.adamw_kernel.shim import ShimRuntime
from zprof.reference_engine.optimizer.cuda import CudaAdamW

#: Of what is added in fp32: half a last bit for each of the squares of a thread, and for each of their sums.
ERROR = (512 + 2) * 2.0**-24


def values(elements: int, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(elements)
    memory = torch.full((elements + offset + 8,), 7.0, dtype=dtype)  # a read outside would count
    memory[offset : offset + elements] = torch.randn(elements, generator=random).to(dtype)
    return memory[offset : offset + elements]


def test_gradients_of_any_lengths_and_types_are_one_sum(make_kernel):
    gradients = [
        values(elements, dtype, offset)
        for dtype in GRADIENT_TYPES
        for elements, offset in zip((0, 1, 5003, 3, 129, 257), (0, 1, 3, 4, 8, 5), strict=True)
    ]
    exact = math.fsum(x * x for gradient in gradients for x in gradient.double().tolist())
    kernels = [make_kernel(threads=16, resident=resident) for resident in (1, 7)]
    sums = [kernel.sum_of_squares(gradients) for kernel in kernels]
    assert sums[0].item() == pytest.approx(exact, rel=ERROR)
    assert float(sums[0]).hex() == float(sums[1]).hex()


@pytest.mark.parametrize("threads", [1, 64, 256])
def test_the_same_bits_each_time_and_on_a_gpu_of_any_size(make_kernel, threads):
    gradient = values(50_003, torch.bfloat16, 3)
    exact = gradient.double().square().sum().item()
    kernels = [make_kernel(threads=threads, resident=resident) for resident in (1, 2, 7, 7)]
    sums = [kernel.sum_of_squares([gradient]).item() for kernel in kernels]
    assert sums[0] == pytest.approx(exact, rel=50_003 / threads * 2.0**-24)
    assert len({total.hex() for total in sums}) == 1


@pytest.mark.parametrize("dtype", GRADIENT_TYPES)
@pytest.mark.parametrize(
    ("place", "special"), [(0, float("inf")), (500, float("nan")), (1002, float("-inf"))]
)
def test_inf_and_nan_show(kernel, dtype, special, place):
    gradient = values(1003, dtype, 1)
    gradient[place] = special
    got = kernel.sum_of_squares([gradient])
    assert not bool(got.isfinite())
    assert bool(got.isnan()) == math.isnan(special)


@settings(max_examples=30)
@given(numbers=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40))
def test_equals_the_exact_sum_of_any_numbers(shim_library, numbers):
    kernel = CudaAdamW(torch.device("cpu"), ShimRuntime(shim_library, threads=2))
    gradient = torch.tensor(numbers, dtype=torch.float32)
    got = kernel.sum_of_squares([gradient]).item()
    assert got == pytest.approx(math.fsum(x * x for x in numbers), rel=ERROR, abs=1e-300)
