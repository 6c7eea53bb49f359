"""One rank that trains with the training program, and notes what it keeps and moves after every step."""

import json
import os
import signal
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer
from zprof.reference_engine import train as training
from zprof.reference_engine.activation_checkpointing import ActivationConfig
from zprof.reference_engine.comm.modelled import LinkModel
from zprof.reference_engine.config import LossScale
from zprof.reference_engine.program.gpt import GPTConfig
from zprof.reference_engine.program.train_config import TrainConfig


@dataclass
class Watcher:
    """``fault`` kills or fails a rank after a step; ``plant`` puts a value into a gradient of a step."""

    case: dict[str, Any]
    notes: list[dict[str, Any]] = field(default_factory=list)

    def built(self, model: ZeroModel, optimizer: ZeroOptimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self._note()
        self._prepare(0)

    def step_done(self, step: int, loss: float) -> None:
        self._note()
        fault = self.case.get("fault", {})
        if (step, dist.get_rank()) == (fault.get("step"), fault.get("rank")):
            if fault["by"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("planted")
        self._prepare(step + 1)

    def finished(self) -> None:
        pass

    def _prepare(self, step: int) -> None:
        plant = self.case.get("plant", {})
        if (step, dist.get_rank()) == (plant.get("step"), plant.get("rank")):
            weight, value = self.model.module.blocks[1].expand.weight, float(plant["value"])
            handle = weight.register_hook(
                lambda gradient: handle.remove() or torch.full_like(gradient, value)
            )

    def _note(self) -> None:
        note = {"bytes": kept_bytes(self.model, self.optimizer), "moved": dict(self.model.comm.moved)}
        if self.case.get("numbers"):
            note |= numbers_of(self.model, self.optimizer)
        self.notes.append(note)


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


def numbers_of(model: ZeroModel, optimizer: ZeroOptimizer) -> dict[str, Any]:
    moments = [entry["exp_avg"].double().sum() for entry in optimizer.state.values()]
    return {
        "norm": None if optimizer.gradient_norm is None else float(optimizer.gradient_norm),
        "scale": None if optimizer.loss_scale is None else float(optimizer.loss_scale),
        "counts": sorted({float(entry["step"]) for entry in optimizer.state.values()}),
        "moments": float(sum(moments)),
        "weights": [float(value.double().sum()) for value in model.state_dict().values()],
    }


def config_of(case: dict[str, Any]) -> TrainConfig:
    engine = dict(case["zero"])
    engine["dtype"] = getattr(torch, engine.get("dtype", "float32"))
    if engine.get("reduce_dtype"):
        engine["reduce_dtype"] = getattr(torch, engine["reduce_dtype"])
    if "loss_scale" in engine:
        engine["loss_scale"] = LossScale(**engine["loss_scale"])
    return TrainConfig(
        zero=ZeroConfig(**engine),
        gpt=GPTConfig(**case["gpt"]),
        mp=case.get("mp", 1),
        activations=ActivationConfig(**case.get("activations", {})),
        steps=case["steps"],
        batch=case["batch"],
        link=LinkModel(**case["link"]) if case.get("link") else None,
    )


def run(case: dict[str, Any]) -> dict[str, Any]:
    if case.get("traced"):
        return run_traced(case)
    watcher = Watcher(case)
    losses = training.train(config_of(case), watcher)
    return {"losses": losses, "notes": watcher.notes, "facts": asdict(watcher.model.facts)}


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
