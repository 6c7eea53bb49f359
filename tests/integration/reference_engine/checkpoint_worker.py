"""One rank that saves, loads and trains on."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.checkpoints import load_checkpoint, save_checkpoint
from zprof.reference_engine.checkpoints.save_and_load import FileSystemWriter
from zprof.reference_engine.comm.mesh import make_mesh
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.train import make_global_batch, take_rank_slice

SIZES = GPTConfig(layers=2, hidden=16, heads=2, vocabulary=32, context=8, tied=True)
BATCH = 4
STEPS_BEFORE, STEPS_AFTER = 2, 2


Engine = tuple[ZeroModel, ZeroOptimizer]


@contextmanager
def engine(case: dict[str, Any], seed: int, **settings: Any) -> Iterator[Engine]:
    degree = case.get("mp", 1)
    mesh = make_mesh(NativeComm, dp=dist.get_world_size() // degree, mp=degree)
    torch.manual_seed(seed)
    dtype = getattr(torch, case["zero"].get("dtype", "float32"))
    config = ZeroConfig(**{**case["zero"], **settings, "dtype": dtype})
    model, optimizer = zero(GPT(SIZES, mesh.mp), config, mesh.dp, mp=mesh.mp)
    try:
        yield model, optimizer
    finally:
        mesh.close()


def save_to(run: Engine, path: str) -> None:
    save_checkpoint(path, *run, progress={"step": STEPS_BEFORE}, overwrite=True)


def losses(run: Engine, steps: range) -> list[float]:
    """Of the whole batch: those of all ranks, averaged."""
    model, optimizer = run
    found = []
    for step in steps:
        tokens = make_global_batch(
            seed=0, step=step, batch=BATCH, time=SIZES.context, vocabulary=SIZES.vocabulary
        )
        tokens = take_rank_slice(tokens, rank=model.comm.rank, ranks=model.comm.world_size)
        optimizer.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        found.append(float(mean) / dist.get_world_size())
    return found


def save(case: dict[str, Any]) -> dict[str, Any]:
    """Train, save, and train on: what comes after is what a resumed run is held to."""
    with engine(case, seed=0) as run:
        losses(run, range(STEPS_BEFORE))
        save_to(run, case["path"])
        return {"numbers": run[1].scalar_state(), "losses": losses(run, after())}


def load(case: dict[str, Any]) -> dict[str, Any]:
    """Other weights and numbers first, so that nothing is right by chance."""
    with engine(case, seed=1, learning_rate=0.5) as run:
        before = Counter(run[0].comm.moved)
        progress = load_checkpoint(case["path"], *run)
        return {
            "progress": progress,
            "moved": Counter(run[0].comm.moved) - before,
            "numbers": run[1].scalar_state(),
            "losses": losses(run, after()),
        }


def refused(case: dict[str, Any]) -> dict[str, Any]:
    with engine(case, seed=1) as run:
        return {"line": line_of(lambda: load_checkpoint(case["path"], *run))}


def failed(case: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 cannot write, then it cannot read: what each rank says, and that all can go on."""
    first = dist.get_rank() == 0
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    writer = FileSystemWriter.write_data if first else full
    with engine(case, seed=2) as run:
        with mock.patch.object(FileSystemWriter, "write_data", writer):
            write = line_of(lambda: save_to(run, case["path"]))
        read = line_of(lambda: load_checkpoint(case["path"] if first else case["path"] + "-elsewhere", *run))
        lines: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(lines, [write, read])
        return {"lines": lines, "progress": load_checkpoint(case["path"], *run)}


def killed(case: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 dies when its data are written and the index is not."""
    write = FileSystemWriter.write_data

    def write_and_die(*arguments: Any) -> Any:
        written = write(*arguments)
        if dist.get_rank() == 1:
            written.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    with engine(case, seed=2) as run, mock.patch.object(FileSystemWriter, "write_data", write_and_die):
        return {"line": line_of(lambda: save_to(run, case["path"]))}


def line_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def after() -> range:
    return range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER)


def run(case: dict[str, Any]) -> Any:
    actions = {"save": save, "load": load, "refused": refused, "failed": failed, "killed": killed}
    return actions[case["do"]](case)
