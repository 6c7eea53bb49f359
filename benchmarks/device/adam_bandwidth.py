"""Time and bytes a second of the engine's AdamW, against torch's fused AdamW plus casts and a plain copy.

Bytes a parameter, bfloat16 gradients and parameters: the kernel reads 14, writes 14; the norm reads 2.
Up to some million parameters everything fits into the device's cache: ratios to the copy above 1 are no error
there.  ``small_units`` is the same for many units of one call, beside a call for each of them: small ones are
bound by launches, so that their times include the host's.
"""

from typing import Any

import torch

from benchmarks.device.adam_shards import NUMBERS, control, engine_kernel, shard_of
from benchmarks.device.cuda_time import copy_bytes_per_s, milliseconds
from benchmarks.device.row import NotMeasured
from zprof.reference_engine.optimizer.torch_adamw import TorchAdamW
from zprof.reference_engine.optimizer.update import Update

ELEMENTS = tuple(2**power for power in (20, 22, 24, 26, 28, 30))
#: Units of one call, and the elements of each.
SMALL_UNITS = ((100, 2**10 + 3), (100, 2**14 + 3), (100, 2**18), (1000, 2**10 + 3))
UPDATE_BYTES = 28
NORM_BYTES = 2
#: The shard itself, and the fp32 gradient and the random numbers that are made beside it.
NEEDED_BYTES = 16 + 12


def measure() -> dict[str, Any]:
    """One entry for each size that fits into the memory."""
    copy = copy_bytes_per_s()
    torch.cuda.empty_cache()
    try:
        kernel, missing = engine_kernel(), None
    except NotMeasured as reason:
        kernel, missing = None, str(reason)
    sizes = {}
    for elements in ELEMENTS:
        if elements * NEEDED_BYTES < 0.9 * torch.cuda.mem_get_info()[0]:
            sizes[str(elements)] = _size(elements, kernel, copy)
            torch.cuda.empty_cache()
    small = {
        f"{units} x {elements}": _small_units(units, elements, kernel, copy)
        for units, elements in SMALL_UNITS
    }
    return {"copy_bytes_per_s": copy, "kernel": missing or "ok", "sizes": sizes, "small_units": small}


def _size(elements: int, kernel: Update | None, copy: float) -> dict[str, Any]:
    shard = shard_of(elements, torch.bfloat16, torch.bfloat16)
    step = control(1.0)
    torchs = TorchAdamW()
    torch_ms = milliseconds(lambda: torchs.adamw([shard], NUMBERS, step))
    figures: dict[str, Any] = {"torch_ms": torch_ms}
    if kernel is None:
        return figures
    update_ms = milliseconds(lambda: kernel.adamw([shard], NUMBERS, step))
    norm_ms = milliseconds(lambda: kernel.sum_of_squares([shard.gradient]))
    update_bytes_per_s = UPDATE_BYTES * elements / (update_ms / 1e3)
    return figures | {
        "update_ms": update_ms,
        "norm_ms": norm_ms,
        "update_bytes_per_s": update_bytes_per_s,
        "update_to_copy_ratio": update_bytes_per_s / copy,
        "norm_to_copy_ratio": NORM_BYTES * elements / (norm_ms / 1e3) / copy,
        "update_to_torch_time_ratio": update_ms / torch_ms,
    }


def _small_units(units: int, elements: int, kernel: Update | None, copy: float) -> dict[str, Any]:
    shards = [shard_of(elements, torch.bfloat16, torch.bfloat16, seed=unit) for unit in range(units)]
    gradients = [shard.gradient for shard in shards]
    step = control(1.0)
    torchs = TorchAdamW()
    figures: dict[str, Any] = {"torch_ms": milliseconds(lambda: torchs.adamw(shards, NUMBERS, step))}
    if kernel is None:
        return figures
    update_ms = milliseconds(lambda: kernel.adamw(shards, NUMBERS, step))
    each_ms = milliseconds(lambda: [kernel.adamw([shard], NUMBERS, step) for shard in shards])
    return figures | {
        "update_ms": update_ms,
        "update_each_ms": each_ms,
        "norm_ms": milliseconds(lambda: kernel.sum_of_squares(gradients)),
        "update_to_copy_ratio": UPDATE_BYTES * units * elements / (update_ms / 1e3) / copy,
        "update_to_each_time_ratio": update_ms / each_ms,
    }
