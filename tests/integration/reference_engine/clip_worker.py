"""One rank that clips, scales and overflows, and writes what became of its weights and its scale.

python clip_worker.py FOLDER        (RANK, WORLD_SIZE and MASTER_* in the environment)
"""

from typing import Any

import torch
import torch.distributed as dist
from rank_program import run_cases

from zprof.reference_engine import ZeroConfig, ZeroModel, ZeroOptimizer, zero
from zprof.reference_engine.config import LossScale
from zprof.reference_engine.program.data import make_global_batch, take_rank_slice
from zprof.reference_engine.program.gpt import GPT, GPTConfig


def config_of(case: dict[str, Any]) -> ZeroConfig:
    settings = dict(case["zero"])
    settings["dtype"] = getattr(torch, settings.get("dtype", "float32"))
    if "loss_scale" in settings:
        settings["loss_scale"] = LossScale(**settings["loss_scale"])
    return ZeroConfig(**settings)


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Train; on ``planted.rank`` a gradient is ``planted.value`` in step ``planted.step``."""
    torch.manual_seed(0)
    gpt = GPTConfig(**case["gpt"])
    model, optimizer = zero(GPT(gpt), config_of(case))
    planted = case.get("planted")
    steps = []
    for step in range(case["steps"]):
        if planted and planted["step"] == step and planted["rank"] == dist.get_rank():
            plant(model, float(planted["value"]))
        steps.append(train_step(model, optimizer, gpt, case["batch"], step))
    return {"steps": steps, "moved": dict(model.comm.moved)}


def train_step(
    model: ZeroModel, optimizer: ZeroOptimizer, gpt: GPTConfig, batch: int, step: int
) -> dict[str, Any]:
    tokens = make_global_batch(seed=0, step=step, batch=batch, time=gpt.context, vocabulary=gpt.vocabulary)
    tokens = take_rank_slice(tokens, rank=dist.get_rank(), ranks=dist.get_world_size())
    optimizer.zero_grad()
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    optimizer.step()
    return {"loss": float(loss.detach())} | state_of(model, optimizer)


def state_of(model: ZeroModel, optimizer: ZeroOptimizer) -> dict[str, Any]:
    counts = {float(entry["step"]) for entry in optimizer.state.values()}
    moments = [entry["exp_avg"].double().sum() for entry in optimizer.state.values()]
    weights = model.state_dict().values()
    return {
        "norm": None if optimizer.gradient_norm is None else float(optimizer.gradient_norm),
        "scale": None if optimizer.loss_scale is None else float(optimizer.loss_scale),
        "counts": sorted(counts),
        "moments": float(sum(moments)),
        "weights": [float(value.double().sum()) for value in weights],
    }


def plant(model: ZeroModel, value: float) -> None:
    weight = model.module.blocks[1].expand.weight
    handle = weight.register_hook(lambda gradient: handle.remove() or torch.full_like(gradient, value))


if __name__ == "__main__":
    run_cases(run)
