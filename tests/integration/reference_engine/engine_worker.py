"""One rank that trains with the training program, and notes what it keeps and moves after every step."""

import hashlib
import json
import os
import signal
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer
from zprof.reference_engine import train as training
from zprof.reference_engine.activation_checkpointing import ActivationConfig
from zprof.reference_engine.comm.modelled import LinkModel
from zprof.reference_engine.config import LossScale
from zprof.reference_engine.program.gpt import GPTConfig
from zprof.reference_engine.program.train_config import TrainConfig
from zprof.reference_engine.tensor_parallel import SPLIT_MARK


@dataclass
class Watcher:
    """``fault`` kills or fails a rank after a step; ``plant`` puts a value into a gradient of a step.

    ``forward_bytes`` are what each forward has made and leaves behind.
    """

    case: dict[str, Any]
    notes: list[dict[str, Any]] = field(default_factory=list)
    forward_bytes: list[int] = field(default_factory=list)

    def built(self, model: ZeroModel, optimizer: ZeroOptimizer) -> None:
        self.model, self.optimizer = model, optimizer
        if self.case.get("measured"):
            model.register_forward_pre_hook(self._before_forward)
            model.register_forward_hook(self._after_forward)
        self._note()
        self._prepare(0)

    def step_done(self, step: int, loss: float) -> None:
        self._note(loss)
        fault = self.case.get("fault", {})
        if (step, dist.get_rank()) == (fault.get("step"), fault.get("rank")):
            if fault["by"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("planted")
        self._prepare(step + 1)

    def finished(self) -> None:
        if self.model.mp is not None:
            self.digests = digests(self.model)

    def _before_forward(self, *_: object) -> None:
        self._born = Born()
        self._born.__enter__()

    def _after_forward(self, *_: object) -> None:
        self._born.__exit__(None, None, None)
        # gloo's threads may be the last to hold a tensor that was reduced; what they still hold can only go.
        for _ in range(20):
            dist.barrier()
        self.forward_bytes.append(self._born.alive_bytes())

    def _prepare(self, step: int) -> None:
        plant = self.case.get("plant", {})
        if (step, dist.get_rank()) == (plant.get("step"), plant.get("rank")):
            weight, value = self.model.module.blocks[1].expand.weight, float(plant["value"])
            handle = weight.register_hook(
                lambda gradient: handle.remove() or torch.full_like(gradient, value)
            )

    def _note(self, loss: float | None = None) -> None:
        moved = [dict(comm.moved) for comm in (self.model.comm, self.model.mp) if comm is not None]
        note = {"loss": loss, "bytes": kept_bytes(self.model, self.optimizer), "moved": moved}
        if self.case.get("numbers"):
            note |= numbers_of(self.model, self.optimizer)
        self.notes.append(note)


class Born(TorchDispatchMode):
    """The storages that operators make: memory of torch's allocator, not memory that was there before."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {address(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and address(leaf) not in given:
                storage = leaf.untyped_storage()
                self._storages[address(leaf)] = StorageWeakRef(storage), storage.nbytes()
        return result

    def alive_bytes(self) -> int:
        return sum(size for storage, size in self._storages.values() if not storage.expired())


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


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
    groups = len(dist.distributed_c10d._world.pg_map)
    watcher = Watcher(case)
    losses = training.train(config_of(case), watcher)
    seen = {"losses": losses, "notes": watcher.notes, "facts": asdict(watcher.model.facts)}
    comm, mp = watcher.model.comm, watcher.model.mp
    if mp is not None:
        seen |= {
            "place": [comm.rank, mp.rank],
            "digests": watcher.digests,
            "forward_bytes": watcher.forward_bytes,
        }
    return seen | {"groups_left": len(dist.distributed_c10d._world.pg_map) - groups}


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


def digests(model: ZeroModel) -> dict[str, dict[str, str]]:
    """Of every parameter, split or whole."""
    table: dict[str, dict[str, str]] = {"split": {}, "whole": {}}
    with model.gathered() as module:
        for name, parameter in module.named_parameters():
            digest = hashlib.sha256(parameter.detach().clone().view(torch.uint8).numpy().tobytes())
            table["split" if hasattr(parameter, SPLIT_MARK) else "whole"][name] = digest.hexdigest()
    return table
