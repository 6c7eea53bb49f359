"""Blocks that run twice: the same gradients, the collectives of the paper, and nothing kept for longer."""

import gc
from collections.abc import Iterator
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
CHECKPOINT_ELEMENTS = BATCH * CONFIG.context * CONFIG.hidden

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


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def batch(step: int = 0, size: int = BATCH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(CONFIG.vocabulary, (size, CONFIG.context + 1), generator=generator)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(tokens[:, :-1], tokens[:, 1:])
    return loss


def plain_gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


def part_of(whole: GPT, mp: Comm, way: dict[str, bool]) -> GPT:
    part = deepcopy(whole)
    part.run_block = make_block_runner(ActivationConfig(**way), blocks=CONFIG.layers, mp=mp)
    part._split(mp)
    return part


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_the_gradients_of_no_checkpointing(way: str):
    whole = plain_gpt()

    def work(mp: ThreadComm) -> None:
        kept_all, checkpointed = part_of(whole, mp, {}), part_of(whole, mp, WAYS[way])
        # Two steps, so that chunks are used again; two forwards before the backwards; another shape at last.
        for tokens in ([batch(0)], [batch(1)], [batch(2), batch(3)], [batch(4, size=3)], [batch(5, size=1)]):
            for model in (kept_all, checkpointed):
                losses = [loss_of(model, one) for one in tokens]
                for loss in losses:
                    loss.backward()
        for name, expected in gradients(kept_all).items():
            assert torch.equal(gradients(checkpointed)[name], expected), name

    on_ranks(2, work)


@pytest.mark.parametrize("way", WAYS)
def test_a_block_makes_the_collectives_of_the_paper(way: str):
    whole = plain_gpt()

    def work(mp: ThreadComm) -> None:
        model = part_of(whole, mp, WAYS[way])
        loss_of(model, batch()).backward()
        partition = WAYS[way].get("partition", False)
        for index in range(CONFIG.layers):
            of_block = [kind for kind, unit in launches(mp) if unit.startswith(f"blocks.{index}")]
            # Forward and recomputation, each two; backward two.  Pa gathers the input between the first two.
            expected = ["all_reduce"] * 2 + ["all_gather"] * partition + ["all_reduce"] * 4
            assert of_block == expected

    on_ranks(2, work)


class Seen(WholeStore):
    def __init__(self) -> None:
        self.units: list[str] = []
        self.sizes: list[int] = []

    def put(self, checkpoint: torch.Tensor, unit: str) -> StoredCheckpoint:
        self.units.append(unit)
        self.sizes.append(checkpoint.numel())
        return super().put(checkpoint, unit)


def seen_model() -> tuple[GPT, Seen]:
    torch.manual_seed(0)
    store = Seen()
    return GPT(CONFIG, run_block=CheckpointedBlocks(store)), store


def test_only_the_input_of_each_block_is_kept():
    model, store = seen_model()
    loss_of(model, batch())
    assert store.units == [f"blocks.{index}" for index in range(CONFIG.layers)]
    assert store.sizes == [CHECKPOINT_ELEMENTS] * CONFIG.layers


def test_evaluation_without_gradients_keeps_nothing():
    model, store = seen_model()
    with torch.no_grad():
        loss = loss_of(model, batch())
    assert store.units == []
    assert torch.equal(loss, loss_of(plain_gpt(), batch()))


def test_the_recomputation_runs_to_its_end():
    model, _ = seen_model()
    ends: list[int] = []
    for index, block in enumerate(model.blocks):
        block.register_forward_hook(lambda module, arguments, output, index=index: ends.append(index))
    loss_of(model, batch()).backward()
    assert ends == [0, 1, 2, 2, 1, 0]


@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.parametrize("way", ["MD", "host MD"])
def test_the_backward_gives_every_place_back_and_no_chunk_is_added(way: str):
    torch.manual_seed(0)
    runner = make_block_runner(ActivationConfig(**WAYS[way]), blocks=CONFIG.layers)
    model = GPT(CONFIG, run_block=runner)
    places = runner._store._places  # type: ignore[attr-defined]
    for step in range(3):
        loss = loss_of(model, batch(step))
        (chunk,) = places._chunks
        assert chunk.free == []
        loss.backward()
        assert sorted(chunk.free) == [0, 1, 2]
        assert chunk.memory.numel() == CONFIG.layers * 512  # 384 bytes, aligned


@pytest.mark.usefixtures("_no_garbage_collection")
def test_a_forward_without_a_backward_gives_its_places_back_too():
    torch.manual_seed(0)
    runner = make_block_runner(ActivationConfig(checkpoint=True, contiguous=True), blocks=CONFIG.layers)
    model = GPT(CONFIG, run_block=runner)
    for step in range(3):
        loss_of(model, batch(step))
    (chunk,) = runner._store._places._chunks  # type: ignore[attr-defined]
    assert sorted(chunk.free) == [0, 1, 2]


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


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("way", ["whole", "host MD"])
def test_every_stage_has_the_losses_of_no_checkpointing(stage: int, way: str):
    def losses(runner: BlockRunner) -> list[float]:
        torch.manual_seed(0)
        model, optimizer = zero(GPT(TINY, run_block=runner), ZeroConfig(stage=stage), FakeComm())
        return [train_step(model, optimizer, step) for step in range(3)]

    runner = make_block_runner(ActivationConfig(**WAYS[way]), blocks=TINY.layers)
    assert losses(runner) == losses(call_block)
