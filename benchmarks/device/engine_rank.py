"""Train the cases of a JSON file on a device, one after the other, as one rank.

python -m benchmarks.device.engine_rank CASES.json RESULT.json      (RANK, WORLD_SIZE, MASTER_* are set)
"""

import contextlib
import gc
import json
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before init_process_group: otherwise it keeps the group

from benchmarks.device.checks import one_line
from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.activation_checkpointing import ActivationConfig, make_block_runner
from zprof.reference_engine.comm.mesh import Mesh, make_mesh
from zprof.reference_engine.comm.native import NativeComm
from zprof.reference_engine.config import Keep, LossScale
from zprof.reference_engine.program.gpt import GPT, GPTConfig
from zprof.reference_engine.train import make_global_batch, take_rank_slice

BATCH, CONTEXT, VOCABULARY, SEED = 8, 64, 512, 0


def zero_config(fields: dict[str, Any]) -> ZeroConfig:
    """Return a config from its JSON fields."""
    made = dict(fields)
    for name in ("dtype", "reduce_dtype"):
        if made.get(name) is not None:
            made[name] = getattr(torch, made[name])
    if "keep_after_forward" in made:
        made["keep_after_forward"] = Keep(made["keep_after_forward"])
    if "loss_scale" in made:
        made["loss_scale"] = LossScale(**made["loss_scale"])
    return ZeroConfig(**made)


def gpt_config(case: dict[str, Any]) -> GPTConfig:
    """Return the model of a case."""
    return GPTConfig(layers=case["layers"], hidden=case["hidden"], vocabulary=VOCABULARY, context=CONTEXT)


def batches(case: dict[str, Any], device: torch.device, *, rank: int, ranks: int) -> list[torch.Tensor]:
    """Return this rank's sequences of every step."""
    wholes = (
        make_global_batch(seed=SEED, step=step, batch=BATCH, time=CONTEXT, vocabulary=VOCABULARY)
        for step in range(case["steps"])
    )
    return [take_rank_slice(whole, rank=rank, ranks=ranks).to(device) for whole in wholes]


def train(case: dict[str, Any], mesh: Mesh, device: torch.device) -> dict[str, Any]:
    """Return the engine's losses (mean over the ranks), and its kept, peak and reserved bytes."""
    torch.manual_seed(SEED)
    runner = make_block_runner(ActivationConfig(**case["activations"]), blocks=case["layers"], mp=mesh.mp)
    module = GPT(gpt_config(case), mesh.mp, runner).to(device)
    model, optimizer = zero(module, zero_config(case["zero"]), mesh.dp, mp=mesh.mp)
    del module
    _reset_peak(device)
    losses = []
    for tokens in batches(case, device, rank=mesh.dp_index, ranks=mesh.dp_size):
        optimizer.zero_grad()
        for part in tokens.chunk(model.facts.micro_batches):
            loss = model(part[:, :-1], part[:, 1:])
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    model.synchronize()
    means = torch.stack(losses).double().view(case["steps"], -1).mean(1)
    mesh.dp.all_reduce(means, "losses").wait()
    result = {"losses": (means / mesh.dp_size).tolist(), "kept": kept_bytes(model, optimizer)}
    return result | {"facts": {"padding": model.facts.padding_elements}} | _memory(device)


def reference(case: dict[str, Any], device: torch.device) -> list[float]:
    """Return losses of the same training without an engine: one process, the whole batch, float32."""
    torch.manual_seed(SEED)
    model = GPT(gpt_config(case)).to(device)
    config = ZeroConfig()
    optimizer = torch.optim.AdamW(model.parameters(), config.learning_rate, weight_decay=config.weight_decay)
    losses = []
    for tokens in batches(case, device, rank=0, ranks=1):
        optimizer.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        clip = case["zero"].get("clip_norm")
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def kept_bytes(model: ZeroModel, optimizer: ZeroOptimizer) -> list[int]:
    """Return the bytes of parameters, gradients and optimizer state, each memory counted once."""
    seen: set[int] = set()

    def unseen(tensors: list[torch.Tensor]) -> int:
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        new = {
            at: storage.nbytes() for at, storage in storages.items() if storage.nbytes() and at not in seen
        }
        seen.update(new)
        return sum(new.values())

    parameters: list[torch.Tensor] = list(model.parameters())
    weights: list[torch.Tensor] = [weight for group in optimizer.param_groups for weight in group["params"]]
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    gradients = [tensor.grad for tensor in (*parameters, *weights) if tensor.grad is not None]
    return [unseen(parameters), unseen(gradients), unseen(weights + state)]


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _memory(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "segments": stats["segment.all.peak"],
        "retries": stats["num_alloc_retries"],
    }


def run(case: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a case's result; an exception becomes its ``error``."""
    on_stream: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if case["stream"] and device.type == "cuda":
        on_stream = torch.cuda.stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    mesh = make_mesh(partial(NativeComm), dp=dist.get_world_size() // case["mp"], mp=case["mp"])
    try:
        with on_stream:
            result = train(case, mesh, device)
            return result | {"reference": reference(case, device)}
    except Exception as error:
        return {"error": one_line(f"{type(error).__name__}: {error}")}
    finally:
        mesh.close()


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    device = torch.device(job["device"])
    torch.set_num_threads(1)
    dist.init_process_group(job["backend"], timeout=timedelta(seconds=60))
    try:
        results = {name: run(case, device) for name, case in job["cases"].items()}
        Path(sys.argv[2]).write_text(json.dumps(results))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
