"""Compare what NVML and torch's allocator report about the device and this process."""

import os
from typing import Any

import pynvml
import torch

from benchmarks.device.checks import NotMeasured, one_line

ALLOCATED_BYTES = 2**28


def measure() -> dict[str, Any]:
    """Return facts and bytes.

    Raises:
        NotMeasured: NVML does not answer.
    """
    block = torch.empty(ALLOCATED_BYTES, dtype=torch.uint8, device="cuda")
    try:
        pynvml.nvmlInit()
        return _facts(_handle()) | {
            "torch_reserved_bytes": torch.cuda.memory_reserved(),
            "block": block.nbytes,
        }
    except pynvml.NVMLError as error:
        raise NotMeasured(f"NVML: {one_line(error)}") from error


def _handle() -> Any:
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")


def _facts(handle: Any) -> dict[str, Any]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    facts: dict[str, Any] = {
        "total_bytes": memory.total,
        "used_bytes": memory.used,
        "free_bytes": memory.free,
    }
    for name, query in {
        "name": lambda: pynvml.nvmlDeviceGetName(handle),
        "driver": pynvml.nvmlSystemGetDriverVersion,
        "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "throttle_reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "this_process_bytes": lambda: _this_process(handle),
    }.items():
        try:
            facts[name] = query()
        except pynvml.NVMLError as error:
            facts[name] = f"not measured: {one_line(error)}"
    return facts


def _this_process(handle: Any) -> int | None:
    """Return the bytes of this process, or None in a container, where NVML reports the host's pids."""
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return next((process.usedGpuMemory for process in running if process.pid == os.getpid()), None)
