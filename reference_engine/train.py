"""Trains the GPT-2-shaped model with the engine: the program that is measured.

torchrun --nproc-per-node 2 -m zprof.reference_engine.train --stage 3 --steps 20
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from zprof.reference_engine.comm import Comm, ModelledComm, NativeComm
from zprof.reference_engine.engine import ZeroModel, zero
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer
from zprof.reference_engine.program.data import global_batch, rank_slice
from zprof.reference_engine.program.gpt import GPT
from zprof.reference_engine.program.modelled_compute import attach
from zprof.reference_engine.program.options import add_arguments, config_from
from zprof.reference_engine.program.train_config import TrainConfig


class Observer(Protocol):
    """Somebody who watches a run, on every rank."""

    def built(self, model: ZeroModel, optimizer: ZeroOptimizer) -> None:
        """The engine is there, no step was made."""

    def step_done(self, step: int, loss: float) -> None:
        """A step is over; ``loss`` is that of this rank's part of the batch."""

    def finished(self) -> None:
        """All steps are over; the process group is still there."""


def train(config: TrainConfig, observer: Observer | None = None) -> list[float]:
    """Train and return the loss of every step, mean over the ranks.

    Uses the default process group, or makes one from RANK, WORLD_SIZE and MASTER_*; without these, of one
    rank.

    Raises:
        ValueError: the config does not fit the number of ranks.
        RuntimeError: a peer is gone.
    """
    with _process_group(config.timeout_s):
        config.check_ranks(dist.get_world_size())
        comm: Comm = NativeComm() if config.link is None else ModelledComm(config.link)
        try:
            return _mean_over_ranks(_run(config, comm, observer))
        finally:
            comm.close()


def _run(config: TrainConfig, comm: Comm, observer: Observer | None) -> list[float]:
    model, optimizer = build(config, comm)
    if observer is not None:
        observer.built(model, optimizer)
    losses = []
    for step in range(config.steps):
        losses.append(_step(config, model, optimizer, comm, step))
        _progress(config, comm.rank, step, losses[-1])
        if observer is not None:
            observer.step_done(step, losses[-1])
    model.synchronize()
    if observer is not None:
        observer.finished()
    return losses


def build(config: TrainConfig, comm: Comm) -> tuple[ZeroModel, ZeroOptimizer]:
    """The model with modelled compute, in the engine."""
    torch.manual_seed(config.seed)
    model = GPT(config.gpt)
    if config.compute is not None:
        blocks = {f"blocks.{index}": block for index, block in enumerate(model.blocks)}
        attach(blocks, config.compute, rank=comm.rank)
    return zero(model, config.zero, comm)


def _step(config: TrainConfig, model: ZeroModel, optimizer: ZeroOptimizer, comm: Comm, step: int) -> float:
    gpt = config.gpt
    tokens = rank_slice(
        global_batch(
            seed=config.seed, step=step, batch=config.batch, time=gpt.context, vocabulary=gpt.vocabulary
        ),
        rank=comm.rank,
        ranks=comm.world_size,
    )
    optimizer.zero_grad()
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _mean_over_ranks(losses: list[float]) -> list[float]:
    total = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(total)
    return [float(value) for value in total / dist.get_world_size()]


def _progress(config: TrainConfig, rank: int, step: int, loss: float) -> None:
    if rank == 0:
        end = "\n" if step + 1 == config.steps or not sys.stderr.isatty() else ""
        lead = "\r" if sys.stderr.isatty() else ""
        print(f"{lead}step {step + 1}/{config.steps}  loss {loss:.4f}", end=end, file=sys.stderr, flush=True)


@contextmanager
def _process_group(timeout_s: float) -> Iterator[None]:
    if dist.is_initialized():
        yield
        return
    timeout = timedelta(seconds=timeout_s)
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timeout)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line; one line and exit code 2 for settings that cannot be used."""
    parser = argparse.ArgumentParser(prog="zprof.reference_engine.train", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        config = config_from(options)
        config.check_ranks(int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError as error:
        parser.error(str(error))
    losses = train(config)
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f} in {len(losses)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
