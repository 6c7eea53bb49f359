"""Trains the GPT-2-shaped model with the engine: the program that is measured.

torchrun --nproc-per-node 2 -m zprof.reference_engine.train --stage 3 --accumulate 2 --clip 1.0
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NoReturn, Protocol, TextIO

import torch
import torch.distributed as dist
from torch import nn

from zprof.reference_engine.activation_checkpointing import make_block_runner
from zprof.reference_engine.checkpoints import check_checkpoint_path, load_checkpoint, save_checkpoint
from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.comm.mesh import Mesh, make_mesh
from zprof.reference_engine.comm.modelled import LinkModel, ModelledComm
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.engine import ZeroModel, zero
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer
from zprof.reference_engine.program.data import Batches, iter_micro_batches
from zprof.reference_engine.program.gpt import GPT
from zprof.reference_engine.program.host_faults import InFlightComm, attach_faults, regather_in_recompute
from zprof.reference_engine.program.modelled_compute import attach_modelled_compute
from zprof.reference_engine.program.options import add_arguments, make_config
from zprof.reference_engine.program.train_config import TrainConfig, Units


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltProgram:
    """Model, optimizer, and ``begin_step``, which must be called with each step's number before the step."""

    model: ZeroModel
    optimizer: ZeroOptimizer
    begin_step: Callable[[int], None]


def build_program(config: TrainConfig, mesh: Mesh) -> BuiltProgram:
    """Build the model and wrap it in the engine, on all ranks at once.

    Raises:
        ValueError: the engine does not support it; the one-line message says why.
    """
    torch.manual_seed(config.seed)
    run_block = make_block_runner(config.activations, blocks=config.gpt.layers, mp=mesh.mp)
    module = GPT(config.gpt, mesh.mp, run_block)
    blocks = {f"blocks.{index}": block for index, block in enumerate(module.blocks)}
    begin_step = _attach_compute(config, blocks, mesh)
    seen = InFlightComm(mesh.dp) if config.host.sync_each_block else None
    attach_faults(blocks, config.host, seen)
    units = select_unit_modules(module, config.units)
    model, optimizer = zero(module, config.zero, seen or mesh.dp, units=units, mp=mesh.mp)
    if config.host.regather_in_recompute:
        regather_in_recompute(blocks, model.units)
    return BuiltProgram(model=model, optimizer=optimizer, begin_step=begin_step)


def select_unit_modules(model: nn.Module, choice: Units) -> list[nn.Module] | None:
    """Return the engine's units, or None for its default."""
    if choice is Units.BLOCKS:
        return None
    if choice is Units.MODEL:
        return []
    return [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]


def _attach_compute(config: TrainConfig, blocks: dict[str, nn.Module], mesh: Mesh) -> Callable[[int], None]:
    if config.compute is None:
        return lambda step: None
    modelled = attach_modelled_compute(
        blocks,
        config.compute,
        rank=mesh.dp_index * mesh.mp_size + mesh.mp_index,
        ranks=mesh.dp_size * mesh.mp_size,
        full_length=config.gpt.context,
    )
    return modelled.begin_step


_INTERRUPTED = 130
_REFUSED = 2


class Observer(Protocol):
    """Observes a run, on every rank."""

    def built(self, model: ZeroModel, optimizer: ZeroOptimizer) -> None:
        """Handle the built engine, before the first step."""

    def step_done(self, step: int, loss: float) -> None:
        """Handle the end of a step; ``loss`` is that of this rank's part of the batch."""

    def finished(self) -> None:
        """Handle the end of all steps; the process group still exists."""


def train(config: TrainConfig, observer: Observer | None = None) -> list[float]:
    """Train and return the loss of every step, mean over ranks and micro-batches.

    Uses the default process group, or creates one from RANK, WORLD_SIZE and MASTER_*; without these, one of a
    single rank.

    Raises:
        ValueError: the config does not fit the number of ranks, or the engine does not support it.
        RuntimeError: a peer is gone.
    """
    with _process_group(config.timeout_s):
        ranks = dist.get_world_size()
        config.check_ranks(ranks)
        mesh = make_mesh(partial(_make_transport, config.link), dp=ranks // config.mp, mp=config.mp)
        try:
            return _mean_over_ranks(_run_training(config, mesh, observer))
        finally:
            mesh.close()


def _make_transport(link: LinkModel | None, group: dist.ProcessGroup | None) -> Comm:
    return NativeComm(group) if link is None else ModelledComm(link, group)


def _run_training(config: TrainConfig, mesh: Mesh, observer: Observer | None) -> list[float]:
    if config.save is not None:
        check_checkpoint_path(config.save, overwrite=True)
    built = build_program(config, mesh)
    first = _resume(config, built)
    if observer is not None:
        observer.built(built.model, built.optimizer)
    losses = _train_steps(config, mesh, built, range(first, config.steps), observer)
    built.model.synchronize()
    if config.save is not None:
        progress = {"step": config.steps}
        save_checkpoint(config.save, built.model, built.optimizer, progress=progress, overwrite=True)
    if observer is not None:
        observer.finished()
    return losses


def _train_steps(
    config: TrainConfig, mesh: Mesh, built: BuiltProgram, steps: range, observer: Observer | None
) -> list[float]:
    progress = Progress(steps.stop, first=steps.start) if dist.get_rank() == 0 else None
    batches = iter_micro_batches(make_batches(config, mesh), steps)
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


def _resume(config: TrainConfig, built: BuiltProgram) -> int:
    """Return the first step of this run."""
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
    """An argument parser that raises its errors, so that only rank 0 prints one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line; exit code 0 ok, 1 failed, 2 invalid settings, 130 interrupted."""
    rank = int(os.environ.get("RANK", "0"))
    parser = _Parser(
        prog="python -m zprof.reference_engine.train",
        description=__doc__,
        epilog="ZERO_DEBUG=1 in the environment shows the traceback of an error.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    try:
        config = make_config(parser.parse_args(arguments))
        config.check_ranks(int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError as error:
        return _report(str(error), rank, only_first=True, code=_REFUSED)
    try:
        losses = train(config)
    except KeyboardInterrupt:
        return _report("interrupted", rank, only_first=True, code=_INTERRUPTED)
    except ValueError as error:
        return _report(str(error), rank, code=_REFUSED)
    except Exception as error:
        if os.environ.get("ZERO_DEBUG") == "1":
            raise
        return _report(f"{type(error).__name__}: {error}", rank, code=1)
    if rank == 0:
        print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f} in {len(losses)} steps")
    return 0


def _report(message: str, rank: int, *, code: int, only_first: bool = False) -> int:
    if rank == 0 or not only_first:
        where = "" if only_first else f"rank {rank}: "
        print(f"train: {where}{' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


def train_step(
    built: BuiltProgram, batches: Iterator[torch.Tensor], step: int, *, micro_batches: int
) -> float:
    """Train on the next micro-batches and return their mean loss on this rank."""
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


def make_batches(config: TrainConfig, mesh: Mesh) -> Batches:
    """Return this rank's training data; ranks that share a model have the same."""
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


_BAR = 24
_PLAIN_LINES = 20


class Progress:
    """Print progress: step, loss, steps per second."""

    def __init__(self, steps: int, *, first: int = 0, stream: TextIO | None = None) -> None:
        """Start the clock; ``first`` is the number of steps made before this run."""
        self._steps, self._first = steps, first
        self._stream = sys.stderr if stream is None else stream
        self._every = -(-(steps - first) // _PLAIN_LINES)
        self._open = False
        self._begin_s = time.monotonic()

    def step_done(self, step: int, loss: float) -> None:
        """Print a finished step; ``step`` counts from 0."""
        done = step + 1
        if self._stream.isatty():
            self._open = done < self._steps
            self._write(
                f"\r{self._draw_bar(done)} {self._format_line(done, loss)}\x1b[K", "" if self._open else "\n"
            )
        elif (done - self._first) % self._every == 0 or done == self._steps:
            self._write(self._format_line(done, loss), "\n")

    def close(self) -> None:
        """End an open line, so that the next output starts on a new one."""
        if self._open:
            self._open = False
            self._write("", "\n")

    def _format_line(self, done: int, loss: float) -> str:
        elapsed_s = max(time.monotonic() - self._begin_s, 1e-9)
        rate = (done - self._first) / elapsed_s
        return f"step {done}/{self._steps}  loss {loss:.4f} on rank 0  {rate:.1f} steps/s"

    def _draw_bar(self, done: int) -> str:
        full = _BAR * done // self._steps
        return f"[{'#' * full}{'.' * (_BAR - full)}]"

    def _write(self, text: str, end: str) -> None:
        print(text, end=end, file=self._stream, flush=True)


if __name__ == "__main__":
    sys.exit(main())
