"""One optimizer step, and the data that it is made with."""

from collections.abc import Iterator

import torch

from zprof.reference_engine.comm.mesh import Mesh
from zprof.reference_engine.program.build import Built
from zprof.reference_engine.program.data import Batches
from zprof.reference_engine.program.train_config import TrainConfig


def train_step(built: Built, batches: Iterator[torch.Tensor], step: int, *, micro_batches: int) -> float:
    """Train on the next micro-batches; their mean loss on this rank."""
    built.begin_step(step)
    built.optimizer.zero_grad()
    losses = []
    for _ in range(micro_batches):
        tokens = next(batches)
        loss = built.model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        losses.append(loss.detach())
    built.optimizer.step()
    return float(torch.stack(losses).mean())


def batches_of(config: TrainConfig, mesh: Mesh) -> Batches:
    """What this rank trains on; ranks that share a model have the same."""
    return Batches(
        seed=config.seed,
        batch=config.batch,
        time=config.gpt.context,
        vocabulary=config.gpt.vocabulary,
        rank=mesh.dp_index,
        ranks=mesh.dp_size,
        micro_batches=config.zero.micro_batches,
        length=config.length(mesh.dp_index, mesh.dp_size),
        delay_s=config.host.data_delay_s,
    )
