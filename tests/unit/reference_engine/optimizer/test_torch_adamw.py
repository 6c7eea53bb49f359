"""Torch's fused AdamW behind the engine's seam: against float64 AdamW, and what it may not touch."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.adamw_kernel.cases import check, control, numbers, same_bits, shard, tensors, wanted
from zprof.reference_engine.optimizer.adamw import NORM_PIECE_ELEMENTS, TorchAdamW

ELEMENTS = 1000
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PIECES = [None, 1, 77, 5000]


def low(dtype: torch.dtype) -> torch.dtype | None:
    return None if dtype == torch.float32 else dtype


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
def test_equals_float64_adamw_and_leaves_the_gradient_alone(dtype, divisor, pieces):
    for step in (1, 2, 1000):
        state = shard(ELEMENTS, dtype, low(dtype), step=step, seed=step)
        gradient = state.gradient.clone()
        want = wanted(state, numbers(), divisor or 1.0)
        TorchAdamW(pieces).adamw([state], numbers(), None if divisor is None else control(divisor))
        check(state, want)
        assert same_bits(state.gradient, gradient)
        assert low(dtype) is None or torch.equal(state.low_precision, state.weights.to(dtype))


@pytest.mark.parametrize(("value", "pieces"), [(torch.inf, None), (torch.nan, 77), (1.0, None)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_skipped_step_changes_nothing(dtype, value, pieces):
    state = shard(ELEMENTS, dtype, low(dtype))
    state.gradient[500] = value
    if state.low_precision is not None:
        state.low_precision.copy_(state.weights)
    before = [tensor.clone() for tensor in (*tensors(state), state.step)]
    TorchAdamW(pieces).adamw([state], numbers(), control(1.0, found_inf=1.0))
    assert all(map(same_bits, before, (*tensors(state), state.step)))


def test_copies_are_no_larger_than_a_piece_and_needless_ones_are_not_made():
    state = shard(ELEMENTS, torch.bfloat16, torch.bfloat16)
    with Seen() as seen:
        TorchAdamW(77).adamw([state], numbers(), control(2.0))
        TorchAdamW(77).sum_of_squares([state.gradient])
    assert {seen.elements[name] for name in ("_fused_adamw_", "_to_copy", "linalg_vector_norm")} == {77}
    with Seen() as seen:
        TorchAdamW().sum_of_squares([torch.ones(3 * NORM_PIECE_ELEMENTS + 1)])
    assert seen.elements["linalg_vector_norm"] == NORM_PIECE_ELEMENTS
    state = shard(ELEMENTS, torch.float32, None)
    with Seen() as seen:
        TorchAdamW().adamw([state], numbers(), None)
    assert set(seen.elements) - {"slice", "detach", "alias"} == {"_fused_adamw_"}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_sum_of_squares_is_that_of_float64(dtype, pieces):
    gradient = shard(ELEMENTS, dtype, None).gradient
    total = TorchAdamW(pieces).sum_of_squares([gradient])
    assert (total.dtype, total.numel()) == (torch.float64, 1)
    assert float(total) == pytest.approx(float(gradient.double().square().sum()), rel=1e-12)
    assert float(TorchAdamW(pieces).sum_of_squares([gradient[:0]])) == 0
    gradient[ELEMENTS - 1] = torch.nan
    assert not TorchAdamW(pieces).sum_of_squares([gradient]).isfinite()


@pytest.mark.parametrize("value", [1e25, 1e-25, torch.finfo(torch.float32).max])
def test_the_sum_of_squares_neither_overflows_nor_underflows(value):
    total = TorchAdamW(400).sum_of_squares([torch.full((ELEMENTS,), value)])
    assert float(total) == pytest.approx(ELEMENTS * value**2, rel=1e-6)
