"""Parameters without a gradient: left alone if no rank has one; with one on some ranks, a mean with zeros."""

from typing import Any

import pytest
import torch
from gradient_helpers import LAYERS, WIDTH, Ragged, Rank, ragged, run_steps
from thread_comm import Meeting, ThreadComm, on_ranks
from torch import nn

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.config import LossScale
from zprof.reference_engine.gradients.presence import probe_sign_of_zero

STAGES = range(4)
BF16, FP16 = torch.bfloat16, torch.float16
BUFFERS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "pieces": {"constant_buffers": 48},
    "kept": {"defragment": True},
    "bf16": {"dtype": BF16},
    "bf16 summed in fp32": {"dtype": BF16, "reduce_dtype": torch.float32},
    "fp16, clipped": {"dtype": FP16, "clip_norm": 0.5},
    "each micro-batch": {"micro_batches": 2, "reduce_each_micro_batch": True},
    "last micro-batch": {"micro_batches": 2, "reduce_each_micro_batch": False},
    "each, in fp32": {
        "micro_batches": 2,
        "reduce_each_micro_batch": True,
        "dtype": FP16,
        "reduce_dtype": torch.float32,
    },
}
#: Stages and buffers; all of them are slow.
WAYS = [
    pytest.param(stage, name, marks=() if (stage + index) % 4 == 0 else pytest.mark.slow)
    for stage in STAGES
    for index, name in enumerate(BUFFERS)
]
SCALE = LossScale(initial=8.0)


#: The layer whose scale a step leaves out, by rank and micro-batch; LAYERS leaves out none.
EVERYWHERE = {"both": ((1, 1), (1, 1)), "rank 0 had it first": ((0, 1), (1, 1)), "none": ((LAYERS,) * 2,) * 2}


def backward(rank: Rank, left_out: tuple[int, ...], seed: int) -> None:
    for index in range(rank.model.facts.micro_batches):
        generator = torch.Generator().manual_seed(100 * seed + 10 * rank.comm.rank + index)
        rank.model(torch.randn(2, WIDTH, generator=generator).to(rank.dtype), left_out[index]).backward()


def state_of(rank: Rank) -> dict[str, torch.Tensor]:
    """Copies of the part of each parameter that this rank owns: fp32 weights and both moments."""
    rank.model.synchronize()
    found = {}
    for unit in rank.model.units:
        begin = unit.owned_range.start
        for slot in unit.layout.slots:
            part = slice(max(slot.offset - begin, 0), max(slot.offset + slot.numel - begin, 0))
            state = rank.optimizer.state[unit.weights]
            values = [unit.weights, state["exp_avg"], state["exp_avg_sq"]]
            found[slot.name] = torch.stack([value.detach()[part].clone() for value in values])
    return found


def changed_by(rank: Rank, left_out: tuple[tuple[int, ...], ...], seed: int) -> set[str]:
    """Names of the parameters that a step changes on this rank."""
    before = state_of(rank)
    rank.optimizer.zero_grad()
    backward(rank, left_out[rank.comm.rank], seed)
    rank.optimizer.step()
    after = state_of(rank)
    return {name for name, values in after.items() if not torch.equal(values, before[name])}


@pytest.mark.parametrize(("stage", "buffers"), WAYS)
def test_a_step_changes_what_has_a_gradient_on_any_rank_and_nothing_else(stage, buffers):
    settings = BUFFERS[buffers] | {"weight_decay": 0.1, "learning_rate": 1e-2, "loss_scale": SCALE}
    seen: dict[str, set[str]] = {case: set() for case in EVERYWHERE}

    def work(rank: Rank) -> None:
        # The last micro-batch alone differs in the second case, so that one of several can be told from none.
        for seed, case in enumerate(("none", "both", "rank 0 had it first", "both")):
            seen[case] |= changed_by(rank, EVERYWHERE[case], seed)

    run_steps(2, work, stage=stage, **settings)
    everything = {name for name, _ in ragged().named_parameters()} - {"never"}
    assert seen["none"] == everything
    assert seen["both"] == everything - {"layers.1.scale"}
    # With one micro-batch, rank 0 leaves out layer 0 and rank 1 layer 1: the other rank has it.
    assert seen["rank 0 had it first"] == everything


def joined(patterns: list[tuple[int, ...]], ranks: int) -> tuple[Ragged, torch.optim.Optimizer]:
    """Torch alone, on the mean of all ranks' losses."""
    model = ragged()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for step, pattern in enumerate(patterns):
        optimizer.zero_grad()
        losses = []
        for rank in range(ranks):
            generator = torch.Generator().manual_seed(100 * step + 10 * rank)
            losses.append(model(torch.randn(2, WIDTH, generator=generator), pattern[rank]))
        torch.stack(losses).mean().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("stage", STAGES)
def test_counts_and_weights_are_those_of_torch_when_gradients_come_and_go(stage):
    patterns = [(0, 0, 0), (0, 1, 0), (2, 2, 2), (3, 0, 1), (1, 1, 1), (1, 1, 1), (3, 3, 3)]
    expected, optimizer = joined(patterns, 3)
    weights: list[dict[str, torch.Tensor]] = []

    def work(rank: Rank) -> None:
        for step, pattern in enumerate(patterns):
            rank.optimizer.zero_grad()
            backward(rank, (pattern[rank.comm.rank],), step)
            rank.optimizer.step()
        weights.append(rank.model.state_dict())

    ranks = run_steps(3, work, stage=stage, weight_decay=0.1, learning_rate=1e-2)
    counts: dict[str, int] = {}
    for rank in ranks:
        counts |= rank.optimizer.scalar_state()["steps"]
    assert counts == {"layers.0.scale": 6, "layers.1.scale": 5, "layers.2.scale": 6, "never": 0}
    for name, parameter in expected.named_parameters():
        if name != "never":
            assert counts.get(name, len(patterns)) == optimizer.state[parameter]["step"]
        for of_rank in weights:
            torch.testing.assert_close(of_rank[name], parameter.detach(), rtol=1e-6, atol=1e-6)


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
        (torch.float32, None, -0.0, 1),
        (torch.float32, None, 0.0, 2),
        (torch.float32, None, -1e-45, 2),  # half of it is rounded to -0.0
        (BF16, torch.float32, -0.0, 2),
        (FP16, None, -6e-8, 1),
        (FP16, torch.float32, -6e-8, 2),  # a half of it is a number in fp32 and -0.0 in fp16
    ],
)
@pytest.mark.parametrize("stage", STAGES)
def test_a_gradient_of_zero_is_a_gradient(stage, dtype, reduce_dtype, factor, micro_batches):
    """Rank 1 alone has it, in the first micro-batch: all ranks decay the weights, as torch does."""

    def run(comm: ThreadComm) -> tuple[ZeroModel, ZeroOptimizer]:
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
        model, optimizer = zero(Factors().to(dtype), config, comm)
        for index in range(micro_batches):
            model(factor if (comm.rank, index) == (1, 0) else None).backward()
        optimizer.step()
        model.synchronize()
        return model, optimizer

    flats = []
    for model, _ in on_ranks(3, run):
        (unit,) = model.units
        flats.append(unit.weights.detach() if stage else unit.weights.detach().clone())
        if stage == 0:
            assert torch.equal(flats[0], flats[-1])
    whole = flats[0] if stage == 0 else torch.cat(flats)
    weights = whole[3:24]
    # A gradient far below eps leaves the decay alone; of the others the update does too, or is no smaller.
    if factor > -1e-9:
        torch.testing.assert_close(weights, torch.full((21,), 0.75))
    assert not bool((weights == 1.0).any())
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
    assert fresh.optimizer.scalar_state()["steps"] == {
        **{f"layers.{i}.scale": 2 for i in range(3)},
        "never": 0,
    }
    for optimizer in (trained.optimizer, fresh.optimizer):
        assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {
            torch.float32
        }


class SwitchedComm(ThreadComm):
    """A network whose sums lose the sign of zero."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        super().__init__(meeting, rank)

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Any:
        return super().reduce_scatter(out, full + 0.0 if out.data_ptr() != full.data_ptr() else full, unit)


def test_a_network_that_loses_the_sign_of_zero_is_found_out():
    def run(comm: ThreadComm) -> tuple[bool, bool]:
        model, _ = zero(ragged(), ZeroConfig(stage=2), comm)
        kept = probe_sign_of_zero(model.units, torch.float32, comm)
        comm.__class__ = SwitchedComm
        return kept, probe_sign_of_zero(model.units, torch.float32, comm)

    assert on_ranks(2, run) == [(True, False)] * 2
