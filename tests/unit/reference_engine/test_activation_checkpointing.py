"""Blocks that run twice: the same gradients, the collectives of the paper, and nothing kept for longer."""

import pytest
import torch
from engine_helpers import TINY, train_step
from fake_comm import FakeComm
from gradient_helpers import MODEL_LOCK
from thread_comm import ThreadComm, launches, on_ranks
from torch import nn

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.activation_checkpointing import (
    ActivationConfig,
    BlockRunner,
    CheckpointedBlocks,
    ReferenceStore,
    StoredActivation,
    call_block,
    make_block_runner,
)
from zprof.reference_engine.program.gpt import GPT, GPTConfig

CONFIG = GPTConfig(layers=3, hidden=8, heads=2, vocabulary=12, context=6)
BATCH = 2

WAYS = {
    "whole": {},
    "host": {"host": True},
    "MD": {"contiguous": True},
    "host MD": {"host": True, "contiguous": True},
    "Pa": {"partition": True},
    "Pa+cpu": {"partition": True, "host": True},
    "Pa MD": {"partition": True, "contiguous": True},
    "Pa+cpu MD": {"partition": True, "host": True, "contiguous": True},
}


def runner_of(way: str, mp: ThreadComm | None = None) -> BlockRunner:
    return make_block_runner(ActivationConfig(checkpoint=True, **WAYS[way]), blocks=3, mp=mp)


def batch(step: int = 0, size: int = BATCH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(CONFIG.vocabulary, (size, CONFIG.context + 1), generator=generator)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens[:, :-1], tokens[:, 1:])


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_without_checkpointing_and_collectives_those_of_the_paper(way: str):
    def work(mp: ThreadComm) -> None:
        models = []
        for runner in (call_block, runner_of(way, mp)):
            with MODEL_LOCK:
                torch.manual_seed(0)
                models.append(GPT(CONFIG, mp, runner))
        # Two steps, so that chunks are used again; two forwards before the backwards; another shape at last.
        for tokens in ([batch(0)], [batch(1)], [batch(2), batch(3)], [batch(4, size=3)]):
            for model in models:
                losses = [loss_of(model, one) for one in tokens]
                for loss in losses:
                    loss.backward()
        expected, found = map(gradients, models)
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        mp.launched.clear()
        loss_of(models[1], batch()).backward()
        for index in range(CONFIG.layers):
            of_block = [kind for kind, unit in launches(mp) if unit.startswith(f"blocks.{index}")]
            # Forward and recomputation, each two; backward two.  Pa gathers the input between the first two.
            assert of_block == ["all_reduce"] * 2 + ["all_gather"] * ("Pa" in way) + ["all_reduce"] * 4

    on_ranks(2, work)


class Seen(ReferenceStore):
    def __init__(self) -> None:
        self.units: list[str] = []
        self.sizes: list[int] = []

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredActivation:
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


@pytest.mark.parametrize("preserve", [True, False])
def test_random_numbers_are_drawn_again_where_that_is_asked_for(preserve: bool):
    torch.manual_seed(0)
    drawn: list[torch.Tensor] = []

    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            drawn.append(torch.rand(3))
            return (x * drawn[-1]).sin()

    runner = CheckpointedBlocks(ReferenceStore(), preserve_rng_state=preserve)
    runner("block", Noisy(), torch.ones(3, requires_grad=True)).sum().backward()
    assert torch.equal(drawn[0], drawn[1]) is preserve


@pytest.mark.parametrize(("stage", "way"), [(0, "whole"), (1, "host MD"), (2, "whole"), (3, "host MD")])
def test_every_stage_has_the_losses_of_no_checkpointing(stage: int, way: str):
    def losses(runner: BlockRunner) -> list[float]:
        torch.manual_seed(0)
        model, optimizer = zero(GPT(TINY, run_block=runner), ZeroConfig(stage=stage), FakeComm())
        return [train_step(model, optimizer, step) for step in range(3)]

    assert losses(runner_of(way)) == losses(call_block)


@pytest.mark.parametrize("name", ["partition", "host", "contiguous"])
def test_switches_of_checkpoints_need_checkpoints_and_partitioning_ranks(name: str):
    with pytest.raises(ValueError, match=name):
        ActivationConfig(**{name: True})
    for mp in (None, FakeComm(1)):
        with pytest.raises(ValueError, match="mp"):
            runner_of("Pa", mp)
