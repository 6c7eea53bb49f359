"""Measure the cost of memory recording per step on a GPU: wall and host time, off, in light and full mode.

The modes take turns, so that none of them has the device's warm clocks for itself.  Opening and closing a
window, which includes reading the allocator's history, is timed separately.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.device.checks import CheckFailed
from benchmarks.device.memory import make_program
from benchmarks.recorder import count_operators
from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.collectors.record.schedule import MemoryMode

ROUNDS, STEPS = 6, 5
WATCHES: dict[str, MemoryMode | None] = {"nobody": None, "light": MemoryMode.LIGHT, "full": MemoryMode.FULL}
#: Limit of the collector's cost on the host in full mode, per operator.
GOAL_US = 10.0


def measure() -> dict[str, Any]:
    """Return medians by mode, and the host's microseconds per operator in full mode.

    Raises:
        CheckFailed: full mode costs more than its goal, or a collector failed.
    """
    figures = measured("cuda", ROUNDS)
    if figures["full_us_per_operator"] > GOAL_US:
        raise CheckFailed(f"{figures['full_us_per_operator']:.1f} us an operator, goal {GOAL_US}", figures)
    return figures


def measured(device: str, rounds: int) -> dict[str, Any]:
    """Return the figures without checking them."""
    model, optimizer, loss = make_program(device)

    def step() -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in WATCHES}
    for _ in range(rounds):
        for name, mode in WATCHES.items():
            seen[name].append(_watched(model, optimizer, step, mode))
    operators = count_operators(step)
    figures: dict[str, Any] = {"operators": operators} | {name: _medians(rows) for name, rows in seen.items()}
    extra_ms = figures["full"]["host_ms"] - figures["nobody"]["host_ms"]
    return figures | {"full_us_per_operator": 1e3 * extra_ms / operators}


def _watched(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], None], mode: MemoryMode | None
) -> tuple[float, float, float]:
    """Return wall and processor time of the median step, and wall time of opening and closing, in ms."""
    collector = None if mode is None else MemoryCollector(model, optimizer, mode)
    begin = time.perf_counter()
    if collector is not None:
        collector.start()
    opened = time.perf_counter()
    walls, hosts = zip(*(_timed(step) for _ in range(STEPS)), strict=True)
    closing = time.perf_counter()
    if collector is not None:
        collector.stop()
    apart = opened - begin + time.perf_counter() - closing
    if collector is not None:
        collector.tables()
        faults = [gap for gap in collector.gaps() if "of this window" in gap.what]
        if faults:
            raise CheckFailed(f"the recording failed, its cost says nothing: {faults[0].reason}")
    return 1e3 * statistics.median(walls), 1e3 * statistics.median(hosts), 1e3 * apart


def _timed(step: Callable[[], None]) -> tuple[float, float]:
    begin, host = time.perf_counter(), time.process_time()  # the backward runs on a thread of its own
    step()
    host = time.process_time() - host  # before waiting for the device, which spins
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin, host


def _medians(rows: list[tuple[float, float, float]]) -> dict[str, float]:
    walls, hosts, aparts = zip(*rows, strict=True)
    return {
        "wall_ms": statistics.median(walls),
        "host_ms": statistics.median(hosts),
        "open_and_close_ms": statistics.median(aparts),
    }
