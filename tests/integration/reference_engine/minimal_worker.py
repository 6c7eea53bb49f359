"""One rank that trains a small GPT with the full engine in stage 3, and again with zero3_minimal."""

from typing import Any

import torch
import torch.distributed as dist

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.train import Batches, iter_micro_batches
from zprof.reference_engine.zero3_minimal import Zero3

#: Odd sizes: units end in padding, and parameters cross the border of two shards.
MODEL = GPTConfig(layers=4, hidden=20, heads=2, vocabulary=33, context=9)
LEARNING_RATE = 1e-2


def run(case: dict[str, Any]) -> dict[str, Any]:
    steps: int = case["steps"]
    return {"full": train_full(steps), "minimal": train_minimal(steps)}


def train_full(steps: int) -> dict[str, Any]:
    model, optimizer = zero(make_model(), ZeroConfig(stage=3, learning_rate=LEARNING_RATE))
    losses = []
    for tokens in iter_tokens(steps):
        optimizer.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "weights": to_lists(model.state_dict())}


def train_minimal(steps: int) -> dict[str, Any]:
    model = make_model()
    trainer = Zero3(model, model.blocks, LEARNING_RATE)
    noted: list[list[int]] = []
    for block in model.blocks:
        block.attention.register_forward_pre_hook(lambda *_: noted.append(list_units(trainer)))
        block.attention.register_forward_hook(
            lambda module, given, output: (
                output.register_hook(lambda _: noted.append(list_units(trainer))) and None
            )
        )
    losses = []
    for tokens in iter_tokens(steps):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        noted.append(list_units(trainer))
        loss.backward()
        noted.append(list_units(trainer))
        trainer.step()
        losses.append(loss.item())
    for unit in trainer.units:
        unit.gather()
        unit.wait()
    return {
        "losses": losses,
        "weights": to_lists(model.state_dict()),
        "in_memory": noted,
        "unit_elements": [unit.full.numel() for unit in trainer.units],
        "shard_elements": [unit.shard.numel() for unit in trainer.units],
    }


def list_units(trainer: Zero3) -> list[int]:
    """Units in memory: the root is 0, blocks count from 1."""
    return [number for number, unit in enumerate(trainer.units) if unit.full.untyped_storage().nbytes()]


def make_model() -> GPT:
    torch.manual_seed(dist.get_rank())  # only rank 0's weights count
    return GPT(MODEL)


def iter_tokens(steps: int) -> Any:
    batches = Batches(
        seed=0,
        batch=4 * dist.get_world_size(),
        time=MODEL.context,
        vocabulary=MODEL.vocabulary,
        rank=dist.get_rank(),
        ranks=dist.get_world_size(),
    )
    return iter_micro_batches(batches, range(steps))


def to_lists(weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in weights.items()}
