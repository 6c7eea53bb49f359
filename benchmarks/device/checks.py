"""List all GPU checks, the most important first in case time runs out, and define the row of each result."""

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check: ``function`` of ``module`` returns figures, or raises."""

    name: str
    module: str
    function: str
    limit_s: float

    def measure(self) -> Mapping[str, Any]:
        """Run the check in this process and return its figures."""
        return getattr(importlib.import_module(self.module), self.function)()


def _make_check(name: str, module: str, function: str, limit_s: float) -> Check:
    return Check(name=name, module=f"benchmarks.device.{module}", function=function, limit_s=limit_s)


CHECKS: tuple[Check, ...] = (
    _make_check("device_facts", "facts", "measure_device_facts", 40),
    _make_check("adam_correctness", "adam", "measure_adam_correctness", 60),
    _make_check("adam_bandwidth", "adam", "measure_adam_bandwidth", 80),
    _make_check("engine_stages", "engine", "measure_engine_stages", 120),
    _make_check("zero_r", "engine", "measure_zero_r", 70),
    _make_check("gpu_tests", "gpu_tests", "measure", 150),
    _make_check("nccl_one_rank", "torch_recordings", "measure_nccl_one_rank", 50),
    _make_check("kineto_trace", "torch_recordings", "measure_kineto_trace", 50),
    _make_check("memory_history", "torch_recordings", "measure_memory_history", 40),
    _make_check("memory_identity", "memory", "measure_memory_identity", 60),
    _make_check("memory_recorder", "memory_recorder", "measure", 60),
    _make_check("nvml", "nvml", "measure", 30),
)


def find_check(name: str) -> Check:
    """Return the check of this name.

    Raises:
        KeyError: there is none.
    """
    return {check.name: check for check in CHECKS}[name]


class Status(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    FAILED = "failed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result of a check.  ``reason`` is one line, None if all is well; ``figures`` are the check's own."""

    check: str
    status: Status
    reason: str | None = None
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return asdict(self)

    def line(self) -> str:
        """Return the row as a line of text."""
        tail = "" if self.reason is None else f": {self.reason}"
        return f"{self.check:<18} {self.seconds:6.1f} s  {self.status}{tail}"


class NotMeasured(Exception):
    """A check cannot run here; the message is the one-line reason."""


class CheckFailed(Exception):
    """A check ran and its result is wrong; ``figures`` are what was measured."""

    def __init__(self, reason: str, figures: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.figures = figures or {}


def one_line(text: object) -> str:
    """Return the text without line breaks, shortened."""
    joined = " ".join(str(text).split())
    return joined if len(joined) <= 300 else joined[:297] + "..."
