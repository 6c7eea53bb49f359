"""All checks, in their order: the most wanted first, in case that time runs out."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """``module`` has a function ``measure()`` that returns figures, or raises."""

    name: str
    module: str
    limit_s: float

    def measure(self) -> Mapping[str, Any]:
        """Make it, in this process."""
        figures: Mapping[str, Any] = importlib.import_module(self.module).measure()
        return figures


def _check(name: str, limit_s: float) -> Check:
    return Check(name=name, module=f"benchmarks.device.{name}", limit_s=limit_s)


CHECKS: tuple[Check, ...] = (
    _check("device_facts", 40),
    _check("adam_correctness", 60),
    _check("adam_bandwidth", 80),
    _check("engine_stages", 120),
    _check("zero_r", 70),
    _check("gpu_tests", 150),
    _check("nccl_one_rank", 50),
    _check("kineto_trace", 50),
    _check("memory_history", 40),
    _check("memory_identity", 60),
    _check("memory_recorder", 60),
    _check("nvml", 30),
)


def check_of(name: str) -> Check:
    """By name.

    Raises:
        KeyError: there is none.
    """
    return {check.name: check for check in CHECKS}[name]
