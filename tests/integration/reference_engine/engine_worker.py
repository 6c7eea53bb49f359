"""One rank: trains the cases that a JSON file names, one after the other, and writes what it saw.

python engine_worker.py FOLDER        (RANK, WORLD_SIZE and MASTER_* in the environment)
"""

import json
import os
import signal
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from optional_model import Optional, inputs
from rank_program import run_cases
from torch.profiler import ProfilerActivity, profile

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine import train as training
from zprof.reference_engine.activation_checkpointing import ActivationConfig
from zprof.reference_engine.comm.modelled import LinkModel
from zprof.reference_engine.config import Keep, LossScale
from zprof.reference_engine.program.gpt import GPTConfig
from zprof.reference_engine.program.train_config import TrainConfig


@dataclass
class Watcher:
    """Notes what a rank keeps and moves after every step; dies in ``die_in`` if told to."""

    die_in: int | None = None
    die_by: str = "kill"
    moved: list[dict[str, int]] = field(default_factory=list)
    states: list[list[int]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def built(self, model: ZeroModel, optimizer: ZeroOptimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.facts = asdict(model.facts)
        self._note()

    def step_done(self, step: int, loss: float) -> None:
        self._note()
        if step == self.die_in:
            if self.die_by == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("planted")

    def finished(self) -> None:
        pass

    def _note(self) -> None:
        self.states.append(kept_bytes(self.model, self.optimizer))
        self.moved.append(dict(self.model._units[0]._comm.moved))


def kept_bytes(model: ZeroModel, optimizer: ZeroOptimizer) -> list[int]:
    """Bytes of parameters, gradients and optimizer state, each memory counted once."""
    seen: set[int] = set()

    def unseen(tensors: list[torch.Tensor]) -> int:
        total = 0
        for storage in (tensor.untyped_storage() for tensor in tensors):
            if storage.nbytes() and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
        return total

    everything = list(model.parameters())
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    return [
        unseen(everything),
        unseen([p.grad for p in everything if p.grad is not None]),
        unseen(weights + state),
    ]


def config_of(case: dict[str, Any]) -> TrainConfig:
    engine = dict(case["zero"])
    engine["dtype"] = getattr(torch, engine.get("dtype", "float32"))
    if engine.get("reduce_dtype"):
        engine["reduce_dtype"] = getattr(torch, engine["reduce_dtype"])
    if "loss_scale" in engine:
        engine["loss_scale"] = LossScale(**engine["loss_scale"])
    if "keep_after_forward" in engine:
        engine["keep_after_forward"] = Keep(engine["keep_after_forward"])
    link = LinkModel(**case["link"]) if case.get("link") else None
    return TrainConfig(
        zero=ZeroConfig(**engine),
        gpt=GPTConfig(**case["gpt"]),
        mp=case.get("mp", 1),
        activations=ActivationConfig(**case.get("activations", {})),
        steps=case["steps"],
        batch=case["batch"],
        link=link,
    )


def run(case: dict[str, Any]) -> dict[str, Any]:
    kind: str = case.get("kind", "training")
    return {"training": run_training, "traced": run_traced, "optional": run_optional}[kind](case)


def run_traced(case: dict[str, Any]) -> dict[str, Any]:
    """Train, and keep the engine's ranges: name, start and end in microseconds, thread."""
    threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=threads) as profiled:
        training.train(config_of(case))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    ranges = [event for event in events if event.get("ph") == "X" and event["name"].startswith("zero::")]
    return {"ranges": [[e["name"], e["ts"], e["ts"] + e["dur"], e["tid"]] for e in ranges]}


def run_optional(case: dict[str, Any]) -> dict[str, Any]:
    """Every rank leaves another parameter out.  ``square`` is of the last gradient that this rank owns."""
    rank = dist.get_rank()
    config = ZeroConfig(**case["zero"], learning_rate=1e-2)
    model, optimizer = zero(Optional(), config)
    for step in range(case["steps"]):
        optimizer.zero_grad()
        model(inputs(rank, step), rank).backward()
        optimizer.step()
    owned = [p.grad for group in optimizer.param_groups for p in group["params"]]
    square = sum(float(gradient.double().square().sum()) for gradient in owned)
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    return {"weights": weights, "square": square}


def run_training(case: dict[str, Any]) -> dict[str, Any]:
    rank = dist.get_rank()
    watcher = Watcher(**case.get("fault", {})) if rank == case.get("faulty_rank") else Watcher()
    losses = training.train(config_of(case), watcher)
    return {"losses": losses, "states": watcher.states, "moved": watcher.moved, "facts": watcher.facts}


if __name__ == "__main__":
    run_cases(run)
