"""The norm of all gradients, clipping as torch does it, and a step without the host."""

import math

import pytest
import torch
from engine_helpers import engine, loss_of, tiny_gpt, train_step
from fake_comm import FakeComm
from no_host_sync import no_host_sync
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.optimizer.scale_and_clip import compute_step_control

STAGES = range(4)


@pytest.mark.parametrize(
    ("norm", "scale", "clip", "divisor", "found_inf"),
    [
        (3.0, None, 1.5, 2.0, 0.0),
        (1.0, None, 1.5, 1.0, 0.0),
        (0.0, None, 1.5, 1.0, 0.0),
        (3.0, 64.0, 1.5, 128.0, 0.0),
        (3.0, 64.0, None, 64.0, 0.0),
        (math.inf, None, 1.5, 1.0, 1.0),
        (math.nan, None, 1.5, 1.0, 1.0),
        (math.inf, 64.0, 1.5, 64.0, 1.0),
        (math.nan, 64.0, None, 64.0, 1.0),
        (1e30, None, 1.0, 1e30, 0.0),
        (1e60, None, 1.0, torch.finfo(torch.float32).max, 0.0),
    ],
)
def test_divisor_and_skip_by_the_norm(norm, scale, clip, divisor, found_inf):
    control = compute_step_control(
        torch.tensor(norm, dtype=torch.float64), None if scale is None else torch.tensor(scale), clip
    )
    assert control.divisor.dtype == control.found_inf.dtype == torch.float32
    assert float(control.divisor) == pytest.approx(divisor, rel=1e-6)
    assert float(control.found_inf) == found_inf


@pytest.mark.parametrize("clip", [0.1, 1e6])
@pytest.mark.parametrize("stage", STAGES)
def test_clipped_training_equals_torch(stage, clip):
    reference = tiny_gpt()
    adamw = torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.01)
    model, optimizer, _ = engine(1, stage=stage, clip_norm=clip)
    for step in range(5):
        adamw.zero_grad()
        loss = loss_of(reference, step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), clip)
        adamw.step()
        assert train_step(model, optimizer, step) == pytest.approx(float(loss.detach()), rel=1e-5)
        assert float(optimizer.gradient_norm) == pytest.approx(float(norm), rel=1e-5)


def plant(model: nn.Module, value: float) -> None:
    """Every gradient of one parameter becomes ``value`` in the next backward."""
    weight = model.module.blocks[1].expand.weight
    handle = weight.register_hook(lambda gradient: handle.remove() or torch.full_like(gradient, value))


@pytest.mark.parametrize("stage", STAGES)
def test_large_finite_gradients_are_clipped_and_not_skipped(stage):
    model, optimizer, _ = engine(1, stage=stage, clip_norm=1.0)
    plant(model, 1e25)
    train_step(model, optimizer)
    elements = model.module.blocks[1].expand.weight.numel()
    assert float(optimizer.gradient_norm) == pytest.approx(1e25 * math.sqrt(elements), rel=1e-6)
    assert {float(entry["step"]) for entry in optimizer.state.values()} == {1.0}
    assert all(value.isfinite().all() for value in model.state_dict().values())


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize(
    ("stage", "dtype"), [(0, torch.float32), (1, torch.float16), (2, torch.bfloat16), (3, torch.float16)]
)
def test_the_host_reads_nothing_in_a_step(stage, dtype, clip):
    model, optimizer, _ = engine(2, stage=stage, dtype=dtype, clip_norm=clip, constant_buffers=64)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        with no_host_sync():
            optimizer.step()


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("stage", STAGES)
def test_the_norm_is_one_all_reduce_in_each_group_and_only_when_clipping(stage, clip):
    comm, mp = FakeComm(2), FakeComm(2)
    model, optimizer = zero(tiny_gpt(), ZeroConfig(stage=stage, clip_norm=clip), comm, mp=mp)
    train_step(model, optimizer)
    mine = [unit for unit in comm.launches("all_reduce") if unit == "gradient_norm"]
    assert mine == ["gradient_norm"] * (clip is not None and stage > 0)
    assert mp.launches("all_reduce") == ["gradient_norm"] * (clip is not None)
    assert (optimizer.gradient_norm is None) == (clip is None)
