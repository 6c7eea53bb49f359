"""ZeRO-R on CUDA tensors: Pa and Pa+cpu (pinned memory) over 2 tensor-parallel ranks, CB, MD."""

from typing import Any

from benchmarks.device.engine_cases import Case, run_cases
from benchmarks.device.engine_stages import judged


def cases() -> dict[str, Case]:
    """Each switch beside the case without it."""
    return {
        "no checkpoints": _case(),
        "checkpoints": _case(checkpoint=True),
        "Pa": _case(checkpoint=True, partition=True),
        "Pa+cpu": _case(checkpoint=True, partition=True, host=True),
        "checkpoints MD": _case(checkpoint=True, contiguous=True),
        "stage 3 CB": Case(zero={"stage": 3, "constant_buffers": 2**16}, layers=6, hidden=512),
    }


def _case(**activations: bool) -> Case:
    return Case(mp=2, activations=dict(activations), layers=6, hidden=512)


def measure() -> dict[str, Any]:
    """One entry for each case; see :mod:`benchmarks.device.engine_stages`."""
    return judged(cases(), run_cases(cases(), limit_s=60))
