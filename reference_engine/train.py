"""Train a GPT-2-shaped model with the engine.

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
from typing import Any, NoReturn, Protocol, TextIO, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from zprof.reference_engine.activation_checkpointing import make_block_runner
from zprof.reference_engine.checkpoints import check_checkpoint_path, load_checkpoint, save_checkpoint
from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.comm.mesh import RankMesh, make_mesh
from zprof.reference_engine.comm.modelled import ModelledComm
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.engine import ZeroModel, zero
from zprof.reference_engine.optimizer.zero_optimizer import ZeroOptimizer
from zprof.reference_engine.program.gpt import GPT
from zprof.reference_engine.program.host_faults import InFlightComm, attach_faults, regather_in_recompute
from zprof.reference_engine.program.modelled_compute import attach_modelled_compute
from zprof.reference_engine.program.options import add_arguments, make_config
from zprof.reference_engine.program.train_config import TrainConfig, Units

_INTERRUPTED = 130
_INVALID_SETTINGS = 2
_BAR_WIDTH = 24
_MAX_PLAIN_LINES = 20
_NOISE = 0.1


class Observer(Protocol):
    """Observes a run on every rank."""

    def built(self, model: ZeroModel, optimizer: ZeroOptimizer) -> None:
        """Handle the built engine, before the first step."""

    def step_done(self, step: int, loss: float) -> None:
        """Handle the end of a step; ``loss`` is the loss on this rank's part of the batch."""

    def finished(self) -> None:
        """Handle the end of all steps; the process group still exists."""


def train(config: TrainConfig, observer: Observer | None = None) -> list[float]:
    """Train and return the loss of every step, as a mean over ranks and micro-batches.

    Uses the default process group, or creates one from RANK, WORLD_SIZE and MASTER_*; without these variables
    the group has a single rank.

    Raises:
        ValueError: the config does not match the number of ranks, or the engine does not support it.
        RuntimeError: another rank has exited.
    """
    with _ensure_process_group(config.timeout_s):
        ranks = dist.get_world_size()
        config.check_ranks(ranks)
        make_comm = NativeComm if config.link is None else partial(ModelledComm, config.link)
        mesh = make_mesh(make_comm, dp=ranks // config.mp, mp=config.mp)
        try:
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
            total = torch.tensor(losses, dtype=torch.float64)
            dist.all_reduce(total)
            return [float(value) for value in total / dist.get_world_size()]
        finally:
            mesh.close()


def _train_steps(
    config: TrainConfig, mesh: RankMesh, built: "BuiltProgram", steps: range, observer: Observer | None
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


def _resume(config: TrainConfig, built: "BuiltProgram") -> int:
    """Load the checkpoint to resume from, if any, and return the first step of this run."""
    if config.resume is None:
        return 0
    steps_done = int(load_checkpoint(config.resume, built.model, built.optimizer)["step"])
    if steps_done >= config.steps:
        raise ValueError(
            f"{config.resume} already has {steps_done} steps, and steps is {config.steps}; set steps to more"
        )
    return steps_done


@contextmanager
def _ensure_process_group(timeout_s: float) -> Iterator[None]:
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
    """An argument parser that raises errors, so that only rank 0 prints them, on one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train from the command line; exit codes: 0 ok, 1 failed, 2 invalid settings, 130 interrupted."""
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
        return _print_error(str(error), rank, only_first=True, code=_INVALID_SETTINGS)
    try:
        losses = train(config)
    except KeyboardInterrupt:
        return _print_error("interrupted", rank, only_first=True, code=_INTERRUPTED)
    except ValueError as error:
        return _print_error(str(error), rank, code=_INVALID_SETTINGS)
    except Exception as error:
        if os.environ.get("ZERO_DEBUG") == "1":
            raise
        return _print_error(f"{type(error).__name__}: {error}", rank, code=1)
    if rank == 0:
        print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f} in {len(losses)} steps")
    return 0


def _print_error(message: str, rank: int, *, code: int, only_first: bool = False) -> int:
    if rank == 0 or not only_first:
        prefix = "" if only_first else f"rank {rank}: "
        print(f"train: {prefix}{' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltProgram:
    """Model, optimizer, and ``begin_step``, which must be called with the step number before each step."""

    model: ZeroModel
    optimizer: ZeroOptimizer
    begin_step: Callable[[int], None]


def build_program(config: TrainConfig, mesh: RankMesh) -> BuiltProgram:
    """Build the model and wrap it with the engine (collective).

    Raises:
        ValueError: the engine does not support it; the one-line message has the reason.
    """
    torch.manual_seed(config.seed)
    run_block = make_block_runner(config.activations, blocks=config.gpt.layers, mp=mesh.mp)
    module = GPT(config.gpt, mesh.mp, run_block)
    blocks = {f"blocks.{index}": block for index, block in enumerate(module.blocks)}
    begin_step = _attach_compute(config, blocks, mesh)
    in_flight_comm = InFlightComm(mesh.dp) if config.host.sync_each_block else None
    attach_faults(blocks, config.host, in_flight_comm)
    units = select_unit_modules(module, config.units)
    model, optimizer = zero(
        module, config.zero, cast(Comm, in_flight_comm or mesh.dp), units=units, mp=mesh.mp
    )
    if config.host.regather_in_recompute:
        regather_in_recompute(blocks, model.units)
    return BuiltProgram(model=model, optimizer=optimizer, begin_step=begin_step)


def select_unit_modules(model: nn.Module, choice: Units) -> list[nn.Module] | None:
    """Return the unit modules of the engine, or None for its default."""
    if choice is Units.BLOCKS:
        return None
    if choice is Units.MODEL:
        return []
    return [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]


def _attach_compute(
    config: TrainConfig, blocks: dict[str, nn.Module], mesh: RankMesh
) -> Callable[[int], None]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """A rank's training data, and its loading time.

    ``batch`` is global.  A rank's part is divided into ``micro_batches`` equal micro-batches of at most
    ``length`` tokens per sequence, plus one for the targets.  ``rank`` and ``ranks`` are data parallel.
    """

    seed: int
    batch: int
    time: int
    vocabulary: int
    rank: int
    ranks: int
    micro_batches: int = 1
    length: int | None = None
    delay_s: float = 0.0

    def step(self, step: int) -> Iterator[torch.Tensor]:
        """Yield the micro-batches of one step, each [sequences, length + 1]."""
        tokens = make_global_batch(
            seed=self.seed, step=step, batch=self.batch, time=self.time, vocabulary=self.vocabulary
        )
        own_tokens = take_rank_slice(tokens, rank=self.rank, ranks=self.ranks)
        for part in own_tokens[:, : (self.length or self.time) + 1].chunk(self.micro_batches):
            time.sleep(self.delay_s)
            yield part


def make_batches(config: TrainConfig, mesh: RankMesh) -> Batches:
    """Return this rank's training data, which is equal on ranks that share a model."""
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


class Progress:
    """Prints progress: step, loss, steps per second."""

    def __init__(self, steps: int, *, first: int = 0, stream: TextIO | None = None) -> None:
        """Start the clock; ``first`` is the first step of this run."""
        self._steps, self._first = steps, first
        self._stream = sys.stderr if stream is None else stream
        self._line_interval = -(-(steps - first) // _MAX_PLAIN_LINES)
        self._line_unfinished = False
        self._start_s = time.monotonic()

    def step_done(self, step: int, loss: float) -> None:
        """Print a finished step; ``step`` counts from 0."""
        done = step + 1
        if self._stream.isatty():
            self._line_unfinished = done < self._steps
            filled = _BAR_WIDTH * done // self._steps
            bar = f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}]"
            self._write(
                f"\r{bar} {self._format_line(done, loss)}\x1b[K", "" if self._line_unfinished else "\n"
            )
        elif (done - self._first) % self._line_interval == 0 or done == self._steps:
            self._write(self._format_line(done, loss), "\n")

    def close(self) -> None:
        """Terminate an unfinished line, so that the next output starts on a new line."""
        if self._line_unfinished:
            self._line_unfinished = False
            self._write("", "\n")

    def _format_line(self, done: int, loss: float) -> str:
        elapsed_s = max(time.monotonic() - self._start_s, 1e-9)
        rate = (done - self._first) / elapsed_s
        return f"step {done}/{self._steps}  loss {loss:.4f} on rank 0  {rate:.1f} steps/s"

    def _write(self, text: str, end: str) -> None:
        print(text, end=end, file=self._stream, flush=True)


def make_global_batch(*, seed: int, step: int, batch: int, time: int, vocabulary: int) -> torch.Tensor:
    """Generate the tokens [batch, time + 1] of one step: inputs and, shifted by one, targets.

    They are synthetic, a small model can learn them, and they do not depend on the number of ranks:
    token[t + 1] = (5 token[t] + 7) mod vocabulary, replaced by a random token with probability 0.1.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    tokens = torch.empty(batch, time + 1, dtype=torch.int64)
    tokens[:, 0] = torch.randint(vocabulary, (batch,), generator=generator)
    random = torch.randint(vocabulary, (batch, time), generator=generator)
    is_noise = torch.rand(batch, time, generator=generator) < _NOISE
    for t in range(time):
        following = (5 * tokens[:, t] + 7) % vocabulary
        tokens[:, t + 1] = torch.where(is_noise[:, t], random[:, t], following)
    return tokens


def take_rank_slice(tokens: torch.Tensor, *, rank: int, ranks: int) -> torch.Tensor:
    """Return one rank's sequences of the global batch."""
    sequences = tokens.shape[0] // ranks
    return tokens[rank * sequences : (rank + 1) * sequences]


def iter_micro_batches(batches: Batches, steps: range) -> Iterator[torch.Tensor]:
    """Iterate over all micro-batches of these steps with torch's DataLoader, which profilers recognize."""
    # A separate generator, so that the loader does not advance the global one.
    loader: DataLoader[Any] = DataLoader(
        _Stream(batches, steps), batch_size=None, generator=torch.Generator()
    )
    return iter(loader)


class _Stream(IterableDataset[torch.Tensor]):
    def __init__(self, batches: Batches, steps: range) -> None:
        self._batches, self._steps = batches, steps

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in self._steps:
            yield from self._batches.step(step)


if __name__ == "__main__":
    sys.exit(main())
