"""Times steps of all contenders in the same processes, visit after visit."""

import gc
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.steps.contenders import Contender, make
from benchmarks.steps.plan import Plan
from benchmarks.steps.schedule import visits

#: Before the first round: the first step has no prefetch order, DDP builds its buckets anew after it.
SETTLING_STEPS = 3


def time_all(plan: Plan, names: list[str], tokens: torch.Tensor) -> dict[str, Any]:
    """Per contender and round: wall and CPU nanoseconds of a step on this rank, and its first losses."""
    contenders = {name: make(name, plan) for name in names}
    losses = {
        name: [contender.step(tokens) for _ in range(SETTLING_STEPS)]
        for name, contender in contenders.items()
    }
    for contender in contenders.values():
        contender.finish()
    gc.collect()
    gc.freeze()  # so that a collection before each visit costs little
    wall: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(plan.rounds):
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for name in visits(names, seed=plan.seed, round_=round_):
            seen[name].append(_visit(contenders[name], plan, tokens))
        for name, both in seen.items():
            wall[name].append(sum(visit[0] for visit in both) / len(both))
            cpu[name].append(sum(visit[1] for visit in both) / len(both))
    return {"wall_ns": wall, "cpu_ns": cpu, "losses": losses}


def _visit(contender: Contender, plan: Plan, tokens: torch.Tensor) -> tuple[float, float]:
    for _ in range(plan.warm_up):
        contender.step(tokens)
    contender.finish()
    gc.collect()
    dist.barrier()
    begin_ns, begin_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(plan.steps):
        contender.step(tokens)
    contender.finish()
    wall_ns, cpu_ns = time.perf_counter_ns() - begin_ns, time.process_time_ns() - begin_cpu_ns
    return _slowest(wall_ns) / plan.steps, cpu_ns / plan.steps


def _slowest(wall_ns: int) -> float:
    """A step is over when it is on all ranks."""
    slowest = torch.tensor(wall_ns, dtype=torch.int64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)
