"""The norm of all gradients: each element once on any mesh, and a step without the host."""

import math
from collections.abc import Iterator

import pytest
import torch
from engine_helpers import engine, loss_of, tiny_gpt, train_step
from fake_comm import FakeComm
from no_host_sync import NoHostSync
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.optimizer.adamw import TorchAdamW
from zprof.reference_engine.optimizer.scale_and_clip import SumOfSquares, compute_norm, compute_step_control

STAGES = range(4)
SHAPES = {"a": (3, 5), "b": (7,), "c": (2, 4), "d": (11,), "e": (), "f": (0, 3)}
SPLIT = {"b", "c", "f"}


class Owned:
    """The gradient of a unit, whole, and the part of it that a rank keeps."""

    def __init__(self, unit: FlatUnit, whole: torch.Tensor) -> None:
        self.owned = whole[unit.owned_range]


def rank_of(rank: int, world_size: int) -> FakeComm:
    comm = FakeComm(world_size)
    comm.rank = rank
    return comm


def unit_on(comm: FakeComm, stage: int) -> FlatUnit:
    parameters = [(name, nn.Parameter(torch.ones(shape))) for name, shape in SHAPES.items()]
    for name, parameter in parameters:
        if name in SPLIT:
            parameter.tensor_parallel_split = True
    return FlatUnit("unit", parameters, config=ZeroConfig(stage=stage, alignment=4), comm=comm)


def gradients_on(mp_rank: int) -> dict[str, torch.Tensor]:
    """Split parameters differ between the tensor-parallel ranks, the others do not."""
    return {
        name: torch.full(shape, 1.0 + index + (10.0 * mp_rank if name in SPLIT else 0.0))
        for index, (name, shape) in enumerate(SHAPES.items())
    }


def squares_of_rank(stage: int, dp: FakeComm, mp: FakeComm | None) -> float:
    unit = unit_on(dp, stage)
    values = torch.cat([value.flatten() for value in gradients_on(0 if mp is None else mp.rank).values()])
    whole = torch.zeros(unit.layout.padded)
    whole[: unit.layout.numel] = values
    gradients = {unit: Owned(unit, whole)}
    return float(SumOfSquares(gradients, TorchAdamW(), comm=dp, mp=mp).sum())  # type: ignore[arg-type]


@pytest.mark.parametrize("mp_ranks", [1, 2, 3])
@pytest.mark.parametrize("dp_ranks", [1, 2, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_every_logical_element_counts_once_on_any_mesh(stage, dp_ranks, mp_ranks):
    expected = sum(
        float(value.double().square().sum())
        for mp_rank in range(mp_ranks)
        for name, value in gradients_on(mp_rank).items()
        if mp_rank == 0 or name in SPLIT
    )
    total = sum(
        squares_of_rank(stage, rank_of(dp_rank, dp_ranks), rank_of(mp_rank, mp_ranks))
        for mp_rank in range(mp_ranks)
        for dp_rank in range(dp_ranks if stage else 1)  # in stage 0 each of them has the whole sum alone
    )
    assert total == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mp", [None, 1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_one_all_reduce_of_eight_bytes_in_each_group_that_has_something_to_add(stage, mp):
    dp_comm, mp_comm = rank_of(0, 2), None if mp is None else rank_of(0, mp)
    squares_of_rank(stage, dp_comm, mp_comm)
    assert dp_comm.launches("all_reduce") == (["gradient_norm"] if stage else [])
    if mp_comm is not None:
        assert mp_comm.launches("all_reduce") == (["gradient_norm"] if mp == 2 else [])


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


def test_the_norm_is_unscaled():
    squares = torch.tensor(64.0, dtype=torch.float64)
    assert float(compute_norm(squares, None)) == 8
    assert float(compute_norm(squares, torch.tensor(4.0))) == 2


def clipped_reference(steps: int, clip: float) -> Iterator[tuple[float, float]]:
    model = tiny_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        yield float(loss.detach()), float(norm)


@pytest.mark.parametrize("clip", [0.1, 1e6])
@pytest.mark.parametrize("stage", STAGES)
def test_clipped_training_equals_torch(stage, clip):
    model, optimizer, _ = engine(1, stage=stage, clip_norm=clip)
    assert optimizer.gradient_norm is None
    for step, (loss, norm) in enumerate(clipped_reference(5, clip)):
        assert train_step(model, optimizer, step) == pytest.approx(loss, rel=1e-5)
        assert float(optimizer.gradient_norm) == pytest.approx(norm, rel=1e-5)


def plant(model: nn.Module, value: float) -> None:
    """Every gradient of one parameter becomes ``value`` in the next backward."""
    weight = model.module.blocks[1].expand.weight
    handle = weight.register_hook(lambda gradient: handle.remove() or torch.full_like(gradient, value))


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_a_step_without_a_norm_is_skipped_and_not_counted(stage, dtype, value):
    model, optimizer, _ = engine(1, stage=stage, dtype=dtype, clip_norm=1.0)
    train_step(model, optimizer, 0)
    before = everything(model, optimizer)
    plant(model, value)
    train_step(model, optimizer, 1)
    assert not optimizer.gradient_norm.isfinite()
    after = everything(model, optimizer)
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    train_step(model, optimizer, 2)
    assert optimizer.gradient_norm.isfinite()
    assert not torch.equal(everything(model, optimizer)["0 exp_avg"], before["0 exp_avg"])


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = {
        f"{index} {name}": value.clone()
        for index, entry in enumerate(optimizer.state.values())
        for name, value in entry.items()
    }
    return state | model.state_dict()


@pytest.mark.parametrize("stage", STAGES)
def test_large_finite_gradients_are_clipped_and_not_skipped(stage):
    model, optimizer, _ = engine(1, stage=stage, clip_norm=1.0)
    plant(model, 1e25)
    train_step(model, optimizer)
    elements = model.module.blocks[1].expand.weight.numel()
    assert float(optimizer.gradient_norm) == pytest.approx(1e25 * math.sqrt(elements), rel=1e-6)
    assert {float(entry["step"]) for entry in optimizer.state.values()} == {1.0}
    assert all(value.isfinite().all() for value in everything(model, optimizer).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_without_clipping_no_norm_is_taken(stage, dtype):
    model, optimizer, comm = engine(2, stage=stage, dtype=dtype)
    train_step(model, optimizer)
    assert "gradient_norm" not in comm.launches("all_reduce")
    assert optimizer.gradient_norm is None


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_the_host_reads_nothing_in_a_step(stage, dtype, clip):
    model, optimizer, _ = engine(2, stage=stage, dtype=dtype, clip_norm=clip, constant_buffers=64)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        with NoHostSync():
            optimizer.step()


def test_reading_a_tensor_on_the_host_is_noticed():
    for read in (float, bool, lambda t: t.item(), lambda t: t.tolist(), lambda t: t.cpu()):
        with pytest.raises(AssertionError, match="the host reads"), NoHostSync():
            read(torch.ones(()))
    assert torch.ones(()).tolist() == 1


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_before_all_micro_batches_says_how_many_are_missing(stage):
    model, optimizer, _ = engine(1, stage=stage, micro_batches=3)
    optimizer.zero_grad()
    for done in range(3):
        with pytest.raises(RuntimeError, match=f"{3 - done} of the step's 3 backward"):
            optimizer.step()
        loss_of(model, done).backward()
    optimizer.step()


def test_the_facade_hands_both_networks_to_the_norm():
    comm, mp = FakeComm(2), FakeComm(2)
    model, optimizer = zero(tiny_gpt(), ZeroConfig(stage=1, clip_norm=1.0), comm, mp=mp)
    comm.take_events()
    mp.take_events()
    train_step(model, optimizer)
    assert comm.launches("all_reduce") == mp.launches("all_reduce") == ["gradient_norm"]
