"""One rank: saves, loads and trains on, as a JSON file says, one case after the other.

python checkpoint_worker.py CASES.json RESULT.json        (RANK, WORLD_SIZE and MASTER_* in the environment)
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.checkpoints import load_checkpoint, save_checkpoint
from zprof.reference_engine.checkpoints.save import FileSystemWriter
from zprof.reference_engine.program.data import global_batch, rank_slice
from zprof.reference_engine.program.gpt import GPT, GPTConfig

SIZES = GPTConfig(layers=2, hidden=16, heads=2, vocabulary=31, context=8, tied=True)
BATCH = 4
STEPS_BEFORE, STEPS_AFTER = 2, 3


def engine(settings: dict[str, Any], seed: int) -> tuple[ZeroModel, ZeroOptimizer]:
    torch.manual_seed(seed)
    dtype = getattr(torch, settings.get("dtype", "float32"))
    return zero(GPT(SIZES), ZeroConfig(**{**settings, "dtype": dtype}))


def losses(model: ZeroModel, optimizer: ZeroOptimizer, steps: range) -> list[float]:
    """Of the whole batch: those of all ranks, averaged."""
    found = []
    for step in steps:
        tokens = global_batch(seed=0, step=step, batch=BATCH, time=SIZES.context, vocabulary=SIZES.vocabulary)
        tokens = rank_slice(tokens, rank=dist.get_rank(), ranks=dist.get_world_size())
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
    model, optimizer = engine(case["zero"], seed=0)
    losses(model, optimizer, range(STEPS_BEFORE))
    save_checkpoint(case["path"], model, optimizer, progress={"step": STEPS_BEFORE}, overwrite=True)
    numbers = optimizer.scalar_state()
    return {"numbers": numbers, "losses": losses(model, optimizer, after())}


def load(case: dict[str, Any]) -> dict[str, Any]:
    """Other weights and numbers first, so that nothing is right by chance."""
    model, optimizer = engine({**case["zero"], "learning_rate": 0.5}, seed=1)
    moved = dict(model.comm.moved)
    progress = load_checkpoint(case["path"], model, optimizer)
    gathered = {kind: count - moved.get(kind, 0) for kind, count in model.comm.moved.items()}
    numbers = optimizer.scalar_state()
    return {
        "progress": progress,
        "numbers": numbers,
        "moved": {kind: count for kind, count in gathered.items() if count},
        "losses": losses(model, optimizer, after()),
    }


def failed(case: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 cannot write, then it cannot read: what each rank says, and that all can go on."""
    model, optimizer = engine(case["zero"], seed=2)
    with write_data(disk_full if dist.get_rank() == 1 else FileSystemWriter.write_data):
        write = line_of(lambda: save_checkpoint(case["path"], model, optimizer, overwrite=True))
    path = case["path"] if dist.get_rank() == 0 else case["path"] + "-elsewhere"
    read = line_of(lambda: load_checkpoint(path, model, optimizer))
    lines: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lines, [write, read])
    return {"lines": lines, "progress": load_checkpoint(case["path"], model, optimizer)}


def killed(case: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 dies when its data are written and the index is not."""
    model, optimizer = engine(case["zero"], seed=2)
    write = FileSystemWriter.write_data

    def write_and_die(*arguments: Any) -> Any:
        write(*arguments).wait()
        os.kill(os.getpid(), signal.SIGKILL)

    with write_data(write_and_die if dist.get_rank() == 1 else write):
        return {"line": line_of(lambda: save_checkpoint(case["path"], model, optimizer, overwrite=True))}


@contextmanager
def write_data(replacement: Callable[..., Any]) -> Iterator[None]:
    """What writes a rank's tensors, replaced."""
    original = FileSystemWriter.write_data
    FileSystemWriter.write_data = replacement  # type: ignore[method-assign]
    try:
        yield
    finally:
        FileSystemWriter.write_data = original  # type: ignore[method-assign]


def disk_full(*arguments: Any) -> None:
    raise OSError(28, "No space left on device")


def line_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def after() -> range:
    return range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER)


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    actions = {"save": save, "load": load, "killed": killed, "failed": failed}
    try:
        results = {name: actions[case["do"]](case) for name, case in cases.items()}
        Path(sys.argv[2]).write_text(json.dumps(results))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
