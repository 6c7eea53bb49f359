"""A ``pynvml`` without a driver: answers by script, with the codes and errors of the real module.

    gpu = FakeGpu(uuid="1111", answers={"nvmlDeviceGetPowerUsage": pynvml.NVMLError(3)})
    nvml = FakeNvml([gpu])

An answer is a value, an error to raise, or a function that is called for it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 2**20


def own_process(used_bytes: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=os.getpid(), usedGpuMemory=used_bytes)


@dataclass
class FakeGpu:
    """One device; the answers are those of a healthy one until a test replaces them."""

    uuid: str = "11111111-aaaa"
    bus_id: str = "00000000:01:00.0"
    prefix: str = "GPU-"
    answers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        healthy = {
            "nvmlDeviceGetComputeRunningProcesses": lambda: [own_process(900 * MIB)],
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2000 * MIB, total=16000 * MIB),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=75, memory=40),
            "nvmlDeviceGetClockInfo": 1500,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
            "nvmlDeviceGetPowerUsage": 250_500,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetMigMode": [0, 0],
            "field": 0,
        }
        self.answers = healthy | self.answers


class FakeNvml:
    """The module.  ``calls`` are the names of the functions that were called, in order."""

    def __init__(self, gpus: Sequence[FakeGpu] = (), *, init_error: Exception | None = None) -> None:
        self._gpus, self._init_error = list(gpus), init_error
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if name not in FakeGpu().answers:
            return real
        return lambda gpu, *arguments, **options: self._answer(name, gpu)

    def nvmlInit(self) -> None:
        self.calls.append("nvmlInit")
        if self._init_error is not None:
            raise self._init_error

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        return self._find("nvmlDeviceGetHandleByUUID", lambda gpu: gpu.prefix + gpu.uuid == uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> FakeGpu:
        return self._find("nvmlDeviceGetHandleByPciBusId", lambda gpu: gpu.bus_id == bus_id)

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: Sequence[Any]) -> list[SimpleNamespace]:
        """``answers["field"]``: a number for all, an error code of one, or a dictionary by field."""
        self.calls.append("nvmlDeviceGetFieldValues")
        answer = gpu.answers["field"]
        return [_field(answer.get(number, 0) if isinstance(answer, dict) else answer) for number, _ in fields]

    def _find(self, name: str, fits: Callable[[FakeGpu], bool]) -> FakeGpu:
        self.calls.append(name)
        for gpu in self._gpus:
            if fits(gpu):
                return gpu
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _answer(self, name: str, gpu: FakeGpu) -> Any:
        self.calls.append(name)
        answer = gpu.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def _field(value: Any) -> SimpleNamespace:
    failed = isinstance(value, pynvml.NVMLError)
    number = SimpleNamespace(ullVal=0 if failed else value)
    return SimpleNamespace(nvmlReturn=value.value if failed else 0, valueType=3, value=number)
