"""Which device, driver and software this is, and how fast it copies."""

from typing import Any

import torch

from benchmarks.device.cuda_time import COPY_BYTES, copy_bytes_per_s


def measure() -> dict[str, Any]:
    """Facts, for the conditions of all other rows."""
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
        "copy_bytes_per_s": copy_bytes_per_s(),
        "copy_of_bytes": COPY_BYTES,
    }
