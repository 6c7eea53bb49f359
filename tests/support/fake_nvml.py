"""A ``pynvml`` without a driver: answers by script, errors as the real module raises them.

    gpu = FakeGpu(uuid="1111", bus_id="00000000:01:00.0")
    gpu.answers["nvmlDeviceGetPowerUsage"] = FakeNvml.NVMLError(FakeNvml.NVML_ERROR_NOT_SUPPORTED)
    nvml = FakeNvml([gpu])

An answer is a value, an error to raise, or a function that is called for it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

MIB = 2**20
_CODES = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    18: "RM has detected an NVML/RM version mismatch.",
    999: "Unknown Error",
}


class FakeNvmlError(Exception):
    """As ``pynvml.NVMLError``: a code in ``value``, words in ``str()``."""

    def __init__(self, value: int) -> None:
        super().__init__(_CODES.get(value, f"NVML Error with code {value}"))
        self.value = value


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

    NVMLError = FakeNvmlError
    nvmlMemory_v2 = 0x02000028
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_ERROR_UNKNOWN = 999
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 197
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 198
    _OF_A_DEVICE: ClassVar[Sequence[str]] = tuple(name for name in FakeGpu().answers if name != "field")

    def __init__(self, gpus: Sequence[FakeGpu] = (), *, init_error: Exception | None = None) -> None:
        self._gpus, self._init_error = list(gpus), init_error
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._OF_A_DEVICE:
            raise AttributeError(name)
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
        values = [answer.get(number, 0) if isinstance(answer, dict) else answer for number, _ in fields]
        return [_field(value) for value in values]

    def _find(self, name: str, fits: Callable[[FakeGpu], bool]) -> FakeGpu:
        self.calls.append(name)
        for gpu in self._gpus:
            if fits(gpu):
                return gpu
        raise FakeNvmlError(self.NVML_ERROR_NOT_FOUND)

    def _answer(self, name: str, gpu: FakeGpu) -> Any:
        self.calls.append(name)
        answer = gpu.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def _field(value: Any) -> SimpleNamespace:
    if isinstance(value, FakeNvmlError):
        return SimpleNamespace(nvmlReturn=value.value, valueType=3, value=SimpleNamespace(ullVal=0))
    return SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=value))
