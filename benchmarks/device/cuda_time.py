"""How long work on a GPU takes: between events on the current stream, median of repeats."""

from collections.abc import Callable
from statistics import median

import torch

COPY_BYTES = 2**30


def milliseconds(work: Callable[[], object], *, repeats: int = 20, warm_up: int = 3) -> float:
    """Median time of one call."""
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


def copy_bytes_per_s() -> float:
    """Bytes read and written a second by a copy within the device: the yardstick of a memory-bound kernel."""
    source = torch.empty(COPY_BYTES // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / (milliseconds(lambda: target.copy_(source)) / 1e3)
