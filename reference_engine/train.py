"""Trains the GPT-2-shaped model with the engine: the program that is measured.

torchrun --nproc-per-node 2 -m zprof.reference_engine.train --stage 3 --accumulate 2 --clip 1.0
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import NoReturn, Protocol

import torch
import torch.distributed as dist

from zprof.reference_engine.checkpoints import check_checkpoint_path, load_checkpoint, save_checkpoint
from zprof.reference_engine.comm import Comm, LinkModel, ModelledComm, NativeComm
from zprof.reference_engine.comm.mesh import Mesh, make_mesh
from zprof.reference_engine.engine import ZeroModel
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer
from zprof.reference_engine.program.build import Built, build
from zprof.reference_engine.program.data import micro_batches
from zprof.reference_engine.program.loop import batches_of, train_step
from zprof.reference_engine.program.options import add_arguments, config_from
from zprof.reference_engine.program.progress import Progress
from zprof.reference_engine.program.train_config import TrainConfig

_INTERRUPTED = 130
_REFUSED = 2


class Observer(Protocol):
    """Somebody who watches a run, on every rank."""

    def built(self, model: ZeroModel, optimizer: ZeroOptimizer) -> None:
        """The engine is there, no step was made."""

    def step_done(self, step: int, loss: float) -> None:
        """A step is over; ``loss`` is that of this rank's part of the batch."""

    def finished(self) -> None:
        """All steps are over; the process group is still there."""


def train(config: TrainConfig, observer: Observer | None = None) -> list[float]:
    """Train and return the loss of every step, mean over ranks and micro-batches.

    Uses the default process group, or makes one from RANK, WORLD_SIZE and MASTER_*; without these, of one
    rank.

    Raises:
        ValueError: the config does not fit the number of ranks, or the engine cannot handle it.
        RuntimeError: a peer is gone.
    """
    with _process_group(config.timeout_s):
        ranks = dist.get_world_size()
        config.check_ranks(ranks)
        mesh = make_mesh(partial(_transport, config.link), dp=ranks // config.mp, mp=config.mp)
        try:
            return _mean_over_ranks(_run(config, mesh, observer))
        finally:
            mesh.close()


def _transport(link: LinkModel | None, group: dist.ProcessGroup | None) -> Comm:
    return NativeComm(group) if link is None else ModelledComm(link, group)


def _run(config: TrainConfig, mesh: Mesh, observer: Observer | None) -> list[float]:
    if config.save is not None:
        check_checkpoint_path(config.save, overwrite=True)
    built = build(config, mesh)
    first = _resumed(config, built)
    if observer is not None:
        observer.built(built.model, built.optimizer)
    losses = _losses(config, mesh, built, range(first, config.steps), observer)
    built.model.synchronize()
    if config.save is not None:
        progress = {"step": config.steps}
        save_checkpoint(config.save, built.model, built.optimizer, progress=progress, overwrite=True)
    if observer is not None:
        observer.finished()
    return losses


def _losses(
    config: TrainConfig, mesh: Mesh, built: Built, steps: range, observer: Observer | None
) -> list[float]:
    progress = Progress(steps.stop, first=steps.start) if dist.get_rank() == 0 else None
    batches = micro_batches(batches_of(config, mesh), steps)
    losses = []
    try:
        for step in steps:
            losses.append(train_step(built, batches, step, micro_batches=config.zero.micro_batches))
            if progress is not None:
                progress.step_done(step, losses[-1])
            if observer is not None:
                observer.step_done(step, losses[-1])
    finally:
        if progress is not None:
            progress.close()
    return losses


def _resumed(config: TrainConfig, built: Built) -> int:
    """The first step of this run."""
    if config.resume is None:
        return 0
    done = int(load_checkpoint(config.resume, built.model, built.optimizer)["step"])
    if done >= config.steps:
        raise ValueError(
            f"{config.resume} has {done} steps already, and steps is {config.steps}; ask for more"
        )
    return done


def _mean_over_ranks(losses: list[float]) -> list[float]:
    # Over all ranks: those that share a model have the same loss.
    total = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(total)
    return [float(value) for value in total / dist.get_world_size()]


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


class _Parser(argparse.ArgumentParser):
    """Its errors are raised: one line from rank 0 is enough."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line: 0 fine, 1 failed, 2 settings that cannot be used, 130 interrupted."""
    rank = int(os.environ.get("RANK", "0"))
    parser = _Parser(
        prog="python -m zprof.reference_engine.train",
        description=__doc__,
        epilog="ZERO_DEBUG=1 in the environment shows the traceback of an error.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    try:
        config = config_from(parser.parse_args(arguments))
        config.check_ranks(int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError as error:
        return _say(str(error), rank, only_first=True, code=_REFUSED)
    try:
        losses = train(config)
    except KeyboardInterrupt:
        return _say("interrupted", rank, only_first=True, code=_INTERRUPTED)
    except ValueError as error:
        return _say(str(error), rank, code=_REFUSED)
    except Exception as error:
        if os.environ.get("ZERO_DEBUG") == "1":
            raise
        return _say(f"{type(error).__name__}: {error}", rank, code=1)
    if rank == 0:
        print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f} in {len(losses)} steps")
    return 0


def _say(message: str, rank: int, *, code: int, only_first: bool = False) -> int:
    if rank == 0 or not only_first:
        where = "" if only_first else f"rank {rank}: "
        print(f"train: {where}{' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
