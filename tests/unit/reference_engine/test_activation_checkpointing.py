"""Blocks that run twice: the same gradients, the collectives of the paper, and nothing kept for longer."""

from copy import deepcopy

import pytest
import torch
from engine_helpers import TINY, train_step
from fake_comm import FakeComm
from thread_comm import ThreadComm, launches, on_ranks
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.activation_checkpointing import (
    ActivationConfig,
    BlockRunner,
    CheckpointedBlocks,
    call_block,
    make_block_runner,
)
from zprof.reference_engine.activation_stores import StoredCheckpoint, WholeStore
from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.program.gpt import GPT, GPTConfig

CONFIG = GPTConfig(layers=3, hidden=8, heads=2, vocabulary=12, context=6)
BATCH = 2

WHOLE = {"checkpoint": True}
PA = WHOLE | {"partition": True}
WAYS = {
    "whole": WHOLE,
    "host": WHOLE | {"host": True},
    "MD": WHOLE | {"contiguous": True},
    "host MD": WHOLE | {"host": True, "contiguous": True},
    "Pa": PA,
    "Pa+cpu": PA | {"host": True},
    "Pa MD": PA | {"contiguous": True},
    "Pa+cpu MD": PA | {"host": True, "contiguous": True},
}


def batch(step: int = 0, size: int = BATCH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(CONFIG.vocabulary, (size, CONFIG.context + 1), generator=generator)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(tokens[:, :-1], tokens[:, 1:])
    return loss


def part_of(whole: GPT, mp: Comm, way: dict[str, bool]) -> GPT:
    part = deepcopy(whole)
    part.run_block = make_block_runner(ActivationConfig(**way), blocks=CONFIG.layers, mp=mp)
    part._split(mp)
    return part


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_without_checkpointing_and_collectives_those_of_the_paper(way: str):
    torch.manual_seed(0)
    whole = GPT(CONFIG)

    def work(mp: ThreadComm) -> None:
        kept_all, checkpointed = part_of(whole, mp, {}), part_of(whole, mp, WAYS[way])
        # Two steps, so that chunks are used again; two forwards before the backwards; another shape at last.
        for tokens in ([batch(0)], [batch(1)], [batch(2), batch(3)], [batch(4, size=3)]):
            for model in (kept_all, checkpointed):
                losses = [loss_of(model, one) for one in tokens]
                for loss in losses:
                    loss.backward()
        for name, expected in gradients(kept_all).items():
            assert torch.equal(gradients(checkpointed)[name], expected), name
        mp.launched.clear()
        loss_of(checkpointed, batch()).backward()
        for index in range(CONFIG.layers):
            of_block = [kind for kind, unit in launches(mp) if unit.startswith(f"blocks.{index}")]
            # Forward and recomputation, each two; backward two.  Pa gathers the input between the first two.
            partition = WAYS[way].get("partition", False)
            assert of_block == ["all_reduce"] * 2 + ["all_gather"] * partition + ["all_reduce"] * 4

    on_ranks(2, work)


class Seen(WholeStore):
    def __init__(self) -> None:
        self.units: list[str] = []
        self.sizes: list[int] = []

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredCheckpoint:
        self.units.append(unit)
        self.sizes.append(checkpoint.numel())
        return super().put(checkpoint, unit)


def test_only_the_input_of_each_block_is_kept_and_nothing_without_gradients():
    store = Seen()
    model = GPT(CONFIG, run_block=CheckpointedBlocks(store))
    with torch.no_grad():
        loss_of(model, batch())
    assert store.units == []
    loss_of(model, batch())
    assert store.units == [f"blocks.{index}" for index in range(CONFIG.layers)]
    assert store.sizes == [BATCH * CONFIG.context * CONFIG.hidden] * CONFIG.layers


def test_the_first_block_may_have_an_input_without_a_gradient():
    torch.manual_seed(0)
    block, x = nn.Linear(4, 4), torch.ones(2, 4)
    runner = make_block_runner(ActivationConfig(checkpoint=True, contiguous=True), blocks=1)
    runner("block", block, x).sum().backward()
    assert torch.equal(block.weight.grad, torch.full((4, 4), 2.0))


@pytest.mark.parametrize("preserve", [True, False])
def test_random_numbers_are_drawn_again_where_that_is_asked_for(preserve: bool):
    torch.manual_seed(0)
    drawn: list[torch.Tensor] = []

    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            drawn.append(torch.rand(3))
            return (x * drawn[-1]).sin()

    runner = CheckpointedBlocks(WholeStore(), preserve_rng_state=preserve)
    runner("block", Noisy(), torch.ones(3, requires_grad=True)).sum().backward()
    assert torch.equal(drawn[0], drawn[1]) is preserve


@pytest.mark.parametrize(("stage", "way"), [(0, "whole"), (1, "host MD"), (2, "whole"), (3, "host MD")])
def test_every_stage_has_the_losses_of_no_checkpointing(stage: int, way: str):
    def losses(runner: BlockRunner) -> list[float]:
        torch.manual_seed(0)
        model, optimizer = zero(GPT(TINY, run_block=runner), ZeroConfig(stage=stage), FakeComm())
        return [train_step(model, optimizer, step) for step in range(3)]

    runner = make_block_runner(ActivationConfig(**WAYS[way]), blocks=TINY.layers)
    assert losses(runner) == losses(call_block)


@pytest.mark.parametrize("name", ["partition", "host", "contiguous"])
def test_switches_of_checkpoints_need_checkpoints_and_partitioning_ranks(name: str):
    with pytest.raises(ValueError, match=name):
        ActivationConfig(**{name: True})
    for mp in (None, FakeComm(1)):
        with pytest.raises(ValueError, match="mp"):
            make_block_runner(ActivationConfig(checkpoint=True, partition=True), blocks=2, mp=mp)
