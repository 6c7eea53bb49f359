"""NCCL with a world of one: the engine's steps run, and what becomes of collectives in a trace."""

from typing import Any

import torch.distributed as dist

from benchmarks.device.kineto_trace import traced
from benchmarks.device.row import NotMeasured


def measure() -> dict[str, Any]:
    """Counts of one stage 3 step."""
    if not dist.is_nccl_available():
        raise NotMeasured("this torch has no NCCL")
    return traced("nccl")
