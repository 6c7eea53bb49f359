"""Parameters without a gradient: left alone if no rank has one; with one on some ranks, a mean with zeros."""

from typing import Any

import pytest
import torch
from gradient_helpers import LAYERS, WIDTH, Rank, ragged, run_steps
from thread_comm import ThreadComm, on_ranks
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.config import LossScale
from zprof.reference_engine.gradients.build import probe_sign_of_zero

STAGES = range(4)
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
BUFFERS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "pieces": {"constant_buffers": 48},
    "kept": {"defragment": True},
    "bf16 summed in fp32": {"dtype": BF16, "reduce_dtype": FP32},
    "fp16, clipped": {"dtype": FP16, "clip_norm": 0.5},
    "last micro-batch": {"micro_batches": 2, "reduce_each_micro_batch": False},
    "each, in fp32": {
        "micro_batches": 2,
        "reduce_each_micro_batch": True,
        "dtype": FP16,
        "reduce_dtype": FP32,
    },
}
#: A third of all stages and buffers is fast.
WAYS = [
    pytest.param(stage, name, marks=() if (stage + index) % 3 == 0 else pytest.mark.slow)
    for stage in STAGES
    for index, name in enumerate(BUFFERS)
]
#: The layer whose scale a step leaves out, by rank and micro-batch; LAYERS leaves out none.
CASES = {"both": ((1, 1), (1, 1)), "rank 0 had it first": ((0, 1), (1, 1)), "none": ((LAYERS,) * 2,) * 2}


def backward(rank: Rank, left_out: tuple[int, ...], seed: int) -> None:
    for index in range(rank.model.facts.micro_batches):
        generator = torch.Generator().manual_seed(100 * seed + 10 * rank.comm.rank + index)
        rank.model(torch.randn(2, WIDTH, generator=generator).to(rank.dtype), left_out[index]).backward()


def changed_by(rank: Rank, left_out: tuple[tuple[int, ...], ...], seed: int) -> set[str]:
    """Names of the parameters that a step changes."""
    before = rank.model.state_dict(fp32=True)
    rank.optimizer.zero_grad()
    backward(rank, left_out[min(rank.comm.rank, 1)], seed)
    rank.optimizer.step()
    after = rank.model.state_dict(fp32=True)
    return {name for name, values in after.items() if not torch.equal(values, before[name])}


@pytest.mark.parametrize(("stage", "buffers"), WAYS)
def test_a_step_changes_what_has_a_gradient_on_any_rank_and_nothing_else(stage, buffers):
    settings = {"weight_decay": 0.1, "learning_rate": 1e-2, "loss_scale": LossScale(initial=8.0)}
    everything = {name for name, _ in ragged().named_parameters()} - {"never"}

    def work(rank: Rank) -> None:
        for seed, case in enumerate(("none", "both", "rank 0 had it first", "both")):
            missing = {"layers.1.scale"} if case == "both" else set()
            assert changed_by(rank, CASES[case], seed) == everything - missing

    # Three ranks without alignment: parameters lie in two shards.
    run_steps(3, work, stage=stage, alignment=1, **settings, **BUFFERS[buffers])


class Factors(nn.Module):
    """The gradient of every weight is ``factor``, on ranks that use them."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.ones(3))
        self.weights = nn.Parameter(torch.ones(21))

    def forward(self, factor: float | None) -> torch.Tensor:
        loss = self.other.sum()
        return loss if factor is None else loss + (self.weights * factor).sum()


@pytest.mark.parametrize(
    ("dtype", "reduce_dtype", "factor", "micro_batches"),
    [
        (FP32, None, -0.0, 1),
        (FP32, None, 0.0, 2),
        (FP32, None, -1e-45, 2),  # half of it is rounded to -0.0
        (BF16, FP32, -0.0, 2),
        (FP16, None, -6e-8, 1),
        (FP16, FP32, -6e-8, 2),  # a half of it is a number in fp32 and -0.0 in fp16
    ],
)
@pytest.mark.parametrize("stage", STAGES)
def test_a_gradient_of_zero_is_a_gradient(stage, dtype, reduce_dtype, factor, micro_batches):
    """Rank 1 alone has it, in the first micro-batch: all ranks decay the weights, as torch does."""
    config = ZeroConfig(
        stage=stage,
        dtype=dtype,
        reduce_dtype=reduce_dtype,
        learning_rate=0.5,
        weight_decay=0.5,
        micro_batches=micro_batches,
        reduce_each_micro_batch=True if micro_batches > 1 else None,
        loss_scale=LossScale(initial=1.0),
        alignment=4,
    )

    def run(comm: ThreadComm) -> torch.Tensor:
        model, optimizer = zero(Factors().to(dtype), config, comm)
        for index in range(micro_batches):
            model(factor if (comm.rank, index) == (1, 0) else None).backward()
        optimizer.step()
        return model.state_dict(fp32=True)["weights"]

    for weights in on_ranks(3, run):
        # A gradient far below eps leaves the decay alone.
        if factor > -1e-9:
            torch.testing.assert_close(weights, torch.full((21,), 0.75))
        assert bool((weights < 1.0).all())
        assert weights.unique().numel() == 1


def test_counts_are_in_the_optimizers_state_dict():
    def work(rank: Rank) -> None:
        for step in range(3):
            rank.optimizer.zero_grad()
            backward(rank, (step,), step)
            rank.optimizer.step()

    (trained,) = run_steps(1, work, stage=1)
    (fresh,) = run_steps(1, lambda rank: None, stage=1)
    fresh.optimizer.load_state_dict(trained.optimizer.state_dict())
    assert fresh.optimizer.scalar_state() == trained.optimizer.scalar_state()
    counts = fresh.optimizer.scalar_state()["steps"]
    assert counts == {"never": 0, **{f"layers.{i}.scale": 2 for i in range(3)}}


class SwitchedComm(ThreadComm):
    """A network whose sums lose the sign of zero."""

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Any:
        return super().reduce_scatter(out, full + 0.0 if out.data_ptr() != full.data_ptr() else full, unit)


def test_a_network_that_loses_the_sign_of_zero_is_found_out():
    def run(comm: ThreadComm) -> tuple[bool, bool]:
        model, _ = zero(ragged(), ZeroConfig(stage=2), comm)
        kept = probe_sign_of_zero(model.units, torch.float32, comm)
        comm.__class__ = SwitchedComm
        return kept, probe_sign_of_zero(model.units, torch.float32, comm)

    assert on_ranks(2, run) == [(True, False)] * 2
