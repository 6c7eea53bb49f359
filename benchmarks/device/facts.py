"""Report device, driver and software, measure the copy bandwidth, and time work on the GPU."""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch


def measure_device_facts() -> dict[str, Any]:
    """Return device facts, as conditions of all other rows."""
    about = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return {
        "name": about.name,
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "total_bytes": total,
        "free_bytes": free,
        "l2_bytes": getattr(about, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
        "copy_bytes_per_s": measure_copy_bytes_per_s(),
        "copy_of_bytes": COPY_BYTES,
    }


COPY_BYTES = 2**30


def time_on_gpu_ms(work: Callable[[], object], *, repeats: int = 20, warm_up: int = 3) -> float:
    """Return the median time of one call in ms."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(median(times))


def measure_copy_bytes_per_s() -> float:
    """Return the bytes per second (read and written) of a copy within the device.

    This is the reference for memory-bound kernels.
    """
    source = torch.empty(COPY_BYTES // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / (time_on_gpu_ms(lambda: target.copy_(source)) / 1e3)
