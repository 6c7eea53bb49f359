"""What the device of a trace did, by a sweep over a file's JSON: the standard library and whole numbers only.

Shares no code with zprof.  Times are exact: the digits in the file, in nanoseconds.
"""

import gzip
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

_COPIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
_KERNELS = ("kernel", "Kernel")
#: Kernels of the libraries of collectives; and with those by which GPUs reach into each other's memory.
LIBRARIES = r"nccl|rccl|cross_device_reduce"
EVERY = LIBRARIES + r"|multimem_"


@dataclass(frozen=True)
class Totals:
    """Nanoseconds over the whole trace."""

    comm: int
    compute: int
    mem: int
    overlap: int
    exposed: int
    span: int
    idle: int


@dataclass(frozen=True)
class Work:
    """One piece of device work."""

    start: int
    end: int
    what: str


def work_of(path: Path, communication: str = EVERY) -> list[Work]:
    """All device work of a trace file that lasted; kernels with ``communication`` in their name are that."""
    with gzip.open(path) as file:
        content = json.loads(file.read().decode(errors="replace"), parse_float=str)
    events = content["traceEvents"] if isinstance(content, dict) else content
    names = re.compile(communication)
    found = (_work(event, names) for event in events if event.get("ph") == "X")
    return [work for work in found if work is not None and work.end > work.start]


def _work(event: dict[str, object], names: re.Pattern[str]) -> Work | None:
    category = event.get("cat")
    if category not in _COPIES and category not in _KERNELS:
        return None
    start, length = (int(Decimal(str(event[name])) * 1000) for name in ("ts", "dur"))
    if category in _COPIES:
        return Work(start, start + length, "mem")
    return Work(start, start + length, "comm" if names.search(str(event["name"])) else "compute")


def totals(work: Iterable[Work]) -> Totals:
    """Walk through time from edge to edge, counting what runs."""
    edges: list[tuple[int, int, str]] = []
    for one in work:
        edges += [(one.start, 1, one.what), (one.end, -1, one.what)]
    edges.sort()
    running = {"comm": 0, "compute": 0, "mem": 0}
    sums = dict.fromkeys(("comm", "compute", "mem", "overlap", "exposed", "idle"), 0)
    before = edges[0][0] if edges else 0
    for time, change, what in edges:
        passed, before = time - before, time
        for name in running:
            sums[name] += passed if running[name] else 0
        if running["comm"]:
            sums["overlap" if running["compute"] else "exposed"] += passed
        elif not (running["compute"] or running["mem"]):
            sums["idle"] += passed
        running[what] += change
    return Totals(**sums, span=edges[-1][0] - edges[0][0] if edges else 0)
