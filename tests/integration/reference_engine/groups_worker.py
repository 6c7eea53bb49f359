"""One rank that trains with parameter groups and schedules, from a checkpoint or to one."""

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from grouped_model import SLICES, Grouped, groups_of, loss_of_slice, schedules

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.checkpoints import load_checkpoint, save_checkpoint


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Train steps [first, last); each rank takes its slices of the batch as micro-batches."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    each = SLICES // ranks
    first, last = case["steps"]
    module = Grouped()
    dtypes = {
        name: getattr(torch, case["zero"][name]) for name in ("dtype", "reduce_dtype") if name in case["zero"]
    }
    settings = {**case["zero"], **dtypes, "micro_batches": each}
    config = ZeroConfig(**settings, learning_rate=1e-2, weight_decay=0.1)
    model, optimizer = zero(module, config, groups=groups_of(module))
    moved = [sum(model.comm.moved.values())]
    if case.get("load"):
        load_checkpoint(case["load"], model, optimizer)
        moved = [sum(model.comm.moved.values())]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedules(), last_epoch=first - 1)
    for step in range(first, last):
        optimizer.zero_grad()
        for index in range(rank * each, (rank + 1) * each):
            loss_of_slice(model, step, index, config.dtype).backward()
        optimizer.step()
        model.synchronize()
        scheduler.step()
        moved.append(sum(model.comm.moved.values()))
    if case.get("save"):
        save_checkpoint(case["save"], model, optimizer)
    return {
        "weights": {name: value.flatten().tolist() for name, value in model.state_dict().items()},
        "rates": [group["lr"] for group in optimizer.param_groups],
        "steps": optimizer.scalar_state()["steps"],
        "moved": [after - before for before, after in pairwise(moved)],
        "psi": model.facts.parameters + model.facts.padding_elements,
    }
