"""What a rank keeps at every moment, against the formula of ZeRO."""

import pytest
import torch
from engine_helpers import compute_zero_bytes, engine, loss_of, state_bytes

from zprof.reference_engine import ZeroModel, ZeroOptimizer

DTYPES = [torch.float32, torch.bfloat16]


def during_a_step(model: ZeroModel, optimizer: ZeroOptimizer) -> list[tuple[int, int, int]]:
    """State bytes at moments of a step; in stage 3 at forward and backward of the middle block."""
    seen = [state_bytes(model, optimizer)]

    def in_forward(*_: object) -> None:
        seen.append(state_bytes(model, optimizer))

    def in_backward(_: torch.Tensor) -> None:
        seen.append(state_bytes(model, optimizer))

    block = model.module.blocks[1]
    hooks = [
        block.register_forward_hook(in_forward),
        block.register_forward_hook(lambda _m, _i, out: out.register_hook(in_backward) and None),
    ]
    optimizer.zero_grad()
    loss = loss_of(model)
    seen.append(state_bytes(model, optimizer))
    loss.backward()
    seen.append(state_bytes(model, optimizer))
    optimizer.step()
    seen.append(state_bytes(model, optimizer))
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("stage", range(4))
def test_state_bytes_are_those_of_the_formula_at_every_moment(stage, ranks, dtype):
    model, optimizer, _ = engine(ranks, stage=stage, dtype=dtype)
    expected = compute_zero_bytes(model, dtype.itemsize)
    without_gradients = (expected[0], 0 if stage >= 2 else expected[1], expected[2])
    for at_start in (without_gradients, expected):
        start, *forward, backward, reduced, stepped = during_a_step(model, optimizer)
        assert start == at_start
        assert forward == [without_gradients] * 2
        assert (backward[0], backward[2]) == (expected[0], expected[2])
        assert reduced == stepped == expected
