"""Which rank of which recording this process is."""

import os
from dataclasses import dataclass

import torch.distributed as dist

from zprof.collectors.run_id import agree_on_run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """``run_id`` is the same on all ranks of one recording, and another for each recording."""

    rank: int
    world_size: int
    backend: str
    run_id: str


def identify() -> Identity:
    """From the process group, else from the launcher's environment; no rank waits for another."""
    joined = dist.is_available() and dist.is_initialized()
    return Identity(
        rank=dist.get_rank() if joined else int(os.environ.get("RANK", "0")),
        world_size=dist.get_world_size() if joined else int(os.environ.get("WORLD_SIZE", "1")),
        backend=dist.get_backend() if joined else "none",
        run_id=agree_on_run_id(),
    )
