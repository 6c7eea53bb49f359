"""Torch's fused AdamW behind the engine's seam: against float64 AdamW, and what it may not touch."""

from typing import Any

import pytest
import torch
from adamw_truth import NUMBERS, truth_of
from torch.utils._python_dispatch import TorchDispatchMode

from zprof.reference_engine.optimizer.adamw import NORM_PIECE_ELEMENTS, Shard, StepControl, TorchAdamW

ELEMENTS = 1000
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PIECES = [None, 1, 77, 5000]


def random(seed: int, elements: int = ELEMENTS) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def shard_of(dtype: torch.dtype) -> Shard:
    weights = random(1)
    return Shard(
        weights=weights,
        gradient=torch.zeros(ELEMENTS, dtype=dtype),
        exp_avg=torch.zeros(ELEMENTS),
        exp_avg_sq=torch.zeros(ELEMENTS),
        low_precision=None if dtype == torch.float32 else weights.to(dtype),
        step=torch.zeros(()),
    )


def control(divisor: float, found_inf: float = 0.0) -> StepControl:
    return StepControl(divisor=torch.tensor(divisor), found_inf=torch.tensor(found_inf))


class Seen(TorchDispatchMode):
    """The largest tensor that each operator was given or has made, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves((args, out))
        sizes = [leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        name = func.overloadpacket.__name__
        self.elements[name] = max([self.elements.get(name, 0), *sizes])
        return out


@pytest.mark.parametrize(("divisor", "pieces"), [(None, 77), (1.0, None), (48.0, 1), (48.0, 5000)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ten_steps_equal_float64_adamw(dtype, divisor, pieces):
    shard, update = shard_of(dtype), TorchAdamW(pieces)
    truth = truth_of(shard.weights)
    for step in range(10):
        shard.gradient.copy_(random(100 + step) * (divisor or 1.0))
        shard.step.add_(1)
        truth.step(shard.gradient.double() / (divisor or 1.0))
        before = shard.gradient.clone()
        update.adamw([shard], NUMBERS, None if divisor is None else control(divisor))
        assert torch.equal(shard.gradient, before)
    torch.testing.assert_close(shard.weights.double(), truth.weights, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(shard.exp_avg.double(), truth.first, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(shard.exp_avg_sq.double(), truth.second, rtol=1e-5, atol=1e-7)
    if shard.low_precision is not None:
        assert torch.equal(shard.low_precision, shard.weights.to(dtype))


@pytest.mark.parametrize(("value", "pieces"), [(torch.inf, None), (torch.nan, 77), (1.0, None)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_skipped_step_changes_nothing(dtype, value, pieces):
    shard, update = shard_of(dtype), TorchAdamW(pieces)
    shard.gradient.copy_(random(3))
    shard.step.add_(1)
    update.adamw([shard], NUMBERS, control(1.0))
    before = state_of(shard)
    shard.gradient[500] = value
    update.adamw([shard], NUMBERS, control(1.0, found_inf=1.0))
    assert all(torch.equal(*pair) for pair in zip(before, state_of(shard), strict=True))


def state_of(shard: Shard) -> list[torch.Tensor]:
    tensors = [shard.weights, shard.exp_avg, shard.exp_avg_sq, shard.step]
    if shard.low_precision is not None:
        tensors.append(shard.low_precision)
    return [tensor.clone() for tensor in tensors]


def test_copies_are_no_larger_than_a_piece():
    shard = shard_of(torch.bfloat16)
    with Seen() as seen:
        TorchAdamW(77).adamw([shard], NUMBERS, control(2.0))
        TorchAdamW(77).sum_of_squares([shard.gradient])
    assert {seen.elements[name] for name in ("_fused_adamw_", "_to_copy", "linalg_vector_norm")} == {77}
    with Seen() as seen:
        TorchAdamW().sum_of_squares([torch.ones(3 * NORM_PIECE_ELEMENTS + 1)])
    assert seen.elements["linalg_vector_norm"] == NORM_PIECE_ELEMENTS


def test_a_float32_gradient_without_control_is_one_kernel_and_no_copy():
    shard = shard_of(torch.float32)
    with Seen() as seen:
        TorchAdamW().adamw([shard], NUMBERS, None)
    views = {"slice", "detach", "alias"}
    assert set(seen.elements) - views == {"_fused_adamw_"}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_sum_of_squares_is_that_of_float64(dtype, pieces):
    gradient = random(4).to(dtype)
    total = TorchAdamW(pieces).sum_of_squares([gradient])
    assert (total.dtype, total.numel()) == (torch.float64, 1)
    assert float(total) == pytest.approx(float(gradient.double().square().sum()), rel=1e-12)
    assert float(TorchAdamW(pieces).sum_of_squares([gradient[:0]])) == 0


@pytest.mark.parametrize("value", [1e25, 1e-25, torch.finfo(torch.float32).max])
def test_the_sum_of_squares_neither_overflows_nor_underflows(value):
    total = TorchAdamW(400).sum_of_squares([torch.full((ELEMENTS,), value)])
    assert float(total) == pytest.approx(ELEMENTS * value**2, rel=1e-6)


@pytest.mark.parametrize(("place", "value"), [(0, torch.inf), (77, -torch.inf), (ELEMENTS - 1, torch.nan)])
def test_one_inf_or_nan_anywhere_is_seen(place, value):
    gradient = torch.ones(ELEMENTS, dtype=torch.bfloat16)
    gradient[place] = value
    assert not TorchAdamW(77).sum_of_squares([gradient]).isfinite()
