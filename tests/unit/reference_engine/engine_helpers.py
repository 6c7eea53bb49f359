"""A tiny model, a training step, and the bytes that an engine keeps, counted from outside."""

from collections.abc import Iterable

import torch
from fake_comm import FakeComm

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.program.gpt import GPT, GPTConfig

TINY = GPTConfig(layers=3, hidden=8, heads=2, vocabulary=11, context=6)
BLOCKS = tuple(f"blocks.{index}" for index in range(TINY.layers))


def tiny_gpt(config: GPTConfig = TINY) -> GPT:
    torch.manual_seed(0)
    return GPT(config)


def tokens(step: int = 0, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(TINY.vocabulary, (batch, TINY.context + 1), generator=generator)


def engine(world_size: int = 1, **settings: object) -> tuple[ZeroModel, ZeroOptimizer, FakeComm]:
    comm = FakeComm(world_size)
    model, optimizer = zero(tiny_gpt(), ZeroConfig(**settings), comm)  # type: ignore[arg-type]
    comm.take_events()
    return model, optimizer, comm


def loss_of(model: torch.nn.Module, step: int = 0) -> torch.Tensor:
    batch = tokens(step)
    return model(batch[:, :-1], batch[:, 1:])


def train_step(model: ZeroModel, optimizer: ZeroOptimizer, step: int = 0) -> float:
    optimizer.zero_grad()
    loss = loss_of(model, step)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def state_bytes(model: ZeroModel, optimizer: ZeroOptimizer) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer state that the rank keeps."""
    kept = list(model.shards) if model.facts.stage == 3 else list(model.module.parameters())
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    known = {p.untyped_storage()._cdata for p in kept}
    masters = [
        p
        for group in optimizer.param_groups
        for p in group["params"]
        if p.untyped_storage()._cdata not in known
    ]
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    return storage_bytes(kept), storage_bytes(gradients), storage_bytes([*masters, *state])


def compute_zero_bytes(model: ZeroModel, element: int) -> tuple[int, int, int]:
    """The ZeRO paper's formula for the model's elements (padding included), and the step counters."""
    facts = model.facts
    psi = facts.parameters + facts.padding_elements
    optimizer = 8 if element == 4 else 12
    divisor = [facts.shard_ranks if facts.stage >= first else 1 for first in (3, 2, 1)]
    counters = 4 * facts.step_counters
    return (
        element * psi // divisor[0],
        element * psi // divisor[1],
        optimizer * psi // divisor[2] + counters,
    )
