"""Random histories of the simulated CUDA caching allocator, and short stacks."""

import random
from typing import Any

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import AWAITING, MIB


def frames(*functions: str, file: str = "train.py") -> list[dict[str, Any]]:
    """A stack, innermost first."""
    return [{"filename": file, "line": 10 + i, "name": name} for i, name in enumerate(functions)]


def random_history(
    seed: int,
    steps: int,
    *,
    device: int = 0,
    ring: int | None = None,
    max_split: int | None = None,
    divisions: int = 0,
) -> Allocator:
    """A random history: some blocks before it begins, then allocations, frees, delays and cache flushes."""
    chance = random.Random(seed)
    allocator = Allocator(device, expandable=chance.random() < 0.4, max_split=max_split, divisions=divisions)
    stacks = [frames(f"layer{i}", "forward", "main") for i in range(4)]
    begin = chance.randrange(steps) if chance.random() < 0.5 else 0
    for step in range(steps):
        if step == begin:
            allocator.begin_history(ring)
        allocator.tick(chance.choice([0, 0, 1, 250]))
        _act(allocator, chance, stacks)
    return allocator


def _act(allocator: Allocator, chance: random.Random, stacks: list[list[dict[str, Any]]]) -> None:
    live, waiting, dice = allocator.addresses(), allocator.addresses(AWAITING), chance.random()
    if waiting and dice < 0.15:
        allocator.complete(chance.choice(waiting))
    elif live and dice < 0.45:
        allocator.free(chance.choice(live), awaiting=chance.random() < 0.3)
    elif dice < 0.48:
        allocator.empty_cache()
    elif dice < 0.5:
        allocator.oom(1 << 40, device_free=chance.randrange(MIB))
    else:
        allocator.alloc(
            chance.choice([1, 100, 512, 4000, 300_000, MIB, MIB + 1, 3_000_000, 12_000_000, 40_000_000]),
            stream=chance.choice([0, 0, 7]),
            pool=chance.choice([(0, 0), (0, 0), (0, 1)]),
            frames=chance.choice(stacks),
            tag=chance.choice(["", "", "activations"]),
        )
