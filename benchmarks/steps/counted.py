"""Counts memory and traffic of one contender after the other: each alone in the process.

Peak memory is the maximum of the live bytes of libc10's CPU allocator on all threads, above what was live
before the contender was made.  A preloaded counter sees each call (tests/support/exact_counter); the
profiler's memory events would miss what gloo's threads free.  gloo's own buffers are malloc's: for nobody.
"""

import gc
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from benchmarks.steps.contenders import Contender, make
from benchmarks.steps.plan import Plan
from benchmarks.steps.traffic import moved_bytes
from tests.support.exact_counter import ExactCounter

#: The first step has no prefetch order, and optimizers make their state in it.
SETTLING_STEPS = 2


def count_all(plan: Plan, names: list[str], tokens: torch.Tensor) -> dict[str, Any]:
    """Per contender: peak, resting and left-over bytes, bytes moved a step by both counts."""
    counter = ExactCounter()
    return {name: _count(name, plan, tokens, counter) for name in names}


def _count(name: str, plan: Plan, tokens: torch.Tensor, counter: ExactCounter) -> dict[str, Any]:
    gc.freeze()  # what is here by now is never looked at again: collections below cost little
    base = counter.live_bytes()
    contender = make(name, plan)
    _steps(contender, SETTLING_STEPS, tokens)
    resting = counter.live_bytes() - base
    peaks = []
    for _ in range(plan.memory_steps):
        counter.begin()
        _steps(contender, 1, tokens)
        peaks.append(counter.max_bytes() - base)
    result = {"peak_bytes": median(peaks), "largest_peak_bytes": max(peaks), "resting_bytes": resting}
    result |= _traffic(contender, plan, tokens)
    del contender
    gc.collect()
    return result | {"left_bytes": counter.live_bytes() - base}


def _traffic(contender: Contender, plan: Plan, tokens: torch.Tensor) -> dict[str, Any]:
    before = contender.moved()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        _steps(contender, plan.traffic_steps, tokens)
    after = contender.moved()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    item_bytes = getattr(torch, plan.dtype).itemsize
    seen = moved_bytes(events, ranks=plan.ranks, list_item_bytes=item_bytes)
    own = None if before is None or after is None else (after - before) / plan.traffic_steps
    by_kind = {kind: bytes_ / plan.traffic_steps for kind, bytes_ in seen.items()}
    return {"moved_bytes": sum(by_kind.values()), "moved_by_kind": by_kind, "own_moved_bytes": own}


def _steps(contender: Contender, steps: int, tokens: torch.Tensor) -> None:
    for _ in range(steps):
        contender.step(tokens)
    contender.finish()
    dist.barrier()
