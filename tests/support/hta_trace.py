"""A small trace of a GPU rank, as a profiler writes it, with figures that are counted by hand.

Device work in us:  stream 7    compute 50-150, 500-650, 800-910; copies 150-160, 940-950
                    stream 20   all-reduce 600-800
so the span is 900, compute 360, communication 200 (50 of it under compute: 25 %), memory 20, idle 370, and
what is neither compute nor idle 170.
"""

from collections.abc import Sequence
from typing import Any

#: As long after the base as traces are today: a double still resolves a nanosecond there.
_BEGIN_US = 4_000_000_000_000.125
_HOST = {"pid": 4242, "tid": 4242}
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ROWS = 6

_WORK = (
    ("kernel", "ampere_sgemm_a", 7, 50, 150),
    ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 7, 150, 160),
    ("kernel", "ampere_sgemm_b", 7, 500, 650),
    ("kernel", NCCL, 20, 600, 800),
    ("kernel", "ampere_sgemm_c", 7, 800, 910),
    ("gpu_memset", "Memset (Device)", 7, 940, 950),
)
_STEPS = ((1, 0, 450), (2, 450, 1000))


def hta_trace(rank: int = 0, *, sync: bool = False) -> dict[str, Any]:
    """The trace of one of two ranks; ``sync``: with a wait for an event that HTA takes for compute."""
    events = [
        _event("user_annotation", f"ProfilerStep#{number}", begin, end) for number, begin, end in _STEPS
    ]
    for correlation, (category, name, stream, start, end) in enumerate(_WORK, start=1):
        launch = start - 40
        events += [
            _event("cpu_op", f"aten::op{correlation}", launch - 4, launch + 10),
            _event("cuda_runtime", "cudaLaunchKernel", launch, launch + 5, correlation=correlation),
            _on_device(category, name, stream, (start, end), correlation),
        ]
    if sync:
        events.append(_on_device("cuda_sync", "Stream Wait Event", 7, (700, 720), 3))
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100", "totalGlobalMem": 42_298_834_944}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "baseTimeNanoseconds": 1_790_000_000_000_000_000,
        "traceEvents": events,
    }


def _on_device(
    category: str, name: str, stream: int, span: Sequence[int], correlation: int
) -> dict[str, Any]:
    event = _event(category, name, *span, correlation=correlation, stream=stream, device=0)
    if name == NCCL:
        event["args"] |= {
            "Collective name": "allreduce",
            "In msg nelems": 1_000_000,
            "Out msg nelems": 1_000_000,
            "Group size": 2,
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]",
        }
    return event | {"pid": 0, "tid": stream}


def _event(category: str, name: str, begin: int, end: int, **args: int) -> dict[str, Any]:
    times = {"ts": _BEGIN_US + begin, "dur": float(end - begin)}
    return {"ph": "X", "cat": category, "name": name, **times, **_HOST, "args": dict(args)}
