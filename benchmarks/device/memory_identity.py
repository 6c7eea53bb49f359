"""Where a GPU's memory is, term by term, in a step that zprof records; also where frees wait or split it."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.device.memory_program import Recorded, complaints, recorded
from benchmarks.device.row import CheckFailed

AWAITED_BYTES = 256 << 20
#: Blocks of a size that shares a segment of 20 MiB with others; every second one is given back.
PIECE_BYTES, PIECES = 4 << 20, 64
BUSY_CYCLES = 2_000_000_000


def awaiting() -> object:
    """Give back a block that another stream still uses."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    block = torch.empty(AWAITED_BYTES, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(side):
        torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
        block.record_stream(side)
    return None


def fragments() -> object:
    """Leave free pieces between used ones."""
    pieces = [torch.empty(PIECE_BYTES, dtype=torch.uint8, device="cuda") for _ in range(PIECES)]
    return pieces[::2]


def measure() -> dict[str, Any]:
    """The identity of each case, and what the same step's snapshot says when it is imported.

    Raises:
        CheckFailed: a term is negative or unknown, a sum is off, or the peak is not the allocator's own.
    """
    cases: Mapping[str, Mapping[str, Any]] = {
        "fused": {},
        "foreach": {"fused": False},
        "awaiting free": {"after_forward": awaiting},
        "fragments": {"after_forward": fragments},
    }
    figures: dict[str, Any] = {}
    wrong: list[str] = []
    for name, options in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            run = recorded(Path(folder), **options)
        figures[name] = _figures(run)
        wrong += [f"{name}: {line}" for line in complaints(run)]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    if wrong:
        raise CheckFailed("; ".join(wrong), figures)
    return figures


def _figures(run: Recorded) -> dict[str, Any]:
    live, imported = run.analysis.memory.per_rank[0], run.imported.memory.per_rank[0]
    return {
        "devices": [asdict(leaf) for leaf in run.analysis.memory.devices],
        "counter_bytes": run.counter_bytes,
        "peak_bytes": live.peak_bytes,
        "tenants": dict(live.tenants),
        "untagged_bytes": live.untagged_bytes,
        "snapshot": {
            "peak_bytes": imported.peak_bytes,
            "tenants": dict(imported.tenants),
            "method": imported.method,
        },
        "gaps": [f"{gap.what}: {gap.reason}" for gap in run.analysis.gaps],
    }
