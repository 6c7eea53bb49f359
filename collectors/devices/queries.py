"""The questions to NVML, and their answers in the columns of table ``device``.

NVML counts clocks in MHz, power in mW, utilisation in percent; NVLink's counters are KiB since the driver
was loaded, those of PCIe bytes that wrap (nvml.h).  ``used`` of the second version of the memory query
leaves out what the driver keeps for itself, so that used minus process is what other programs have.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zprof.collectors.devices.refusals import Unseen

Answer = Mapping[str, int | float | None]
#: All links of a device together (nvml.h: UINT_MAX as scope of a NVLink counter).
_ALL_LINKS = 0xFFFFFFFF
_SHARES_PIDS = "let the container see the host's process ids (docker run --pid=host)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """``ask`` takes the library and a device handle.  ``what`` names it in a gap."""

    what: str
    ask: Callable[[Any, Any], Answer]


def memory_queries() -> list[Query]:
    """Those that the identity of a device's memory needs."""
    return [
        Query(what="memory of this process", ask=_process),
        Query(what="memory of the device", ask=_memory),
    ]


def all_queries() -> list[Query]:
    """Fresh queries for one device; counters remember what they read last."""
    pcie = CounterRates("pcie", "PCIE_COUNT_TX_BYTES", "PCIE_COUNT_RX_BYTES", scope=0, unit_bytes=1)
    nvlink = CounterRates(
        "nvlink", "NVLINK_THROUGHPUT_DATA_TX", "NVLINK_THROUGHPUT_DATA_RX", scope=_ALL_LINKS, unit_bytes=1024
    )
    return [
        *memory_queries(),
        Query(what="utilisation", ask=_utilisation),
        Query(what="clocks", ask=_clocks),
        Query(what="throttle reasons", ask=_throttle),
        Query(what="power", ask=_power),
        Query(what="temperature", ask=_temperature),
        Query(what="PCIe throughput", ask=pcie),
        Query(what="NVLink throughput", ask=nvlink),
    ]


def _process(nvml: Any, handle: Any) -> Answer:
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    own = [process.usedGpuMemory for process in listed if process.pid == os.getpid()]
    if not own:
        others = f"{len(listed)} others, but not" if listed else "no process, not even"
        raise Unseen(f"NVML shows {others} process {os.getpid()}, which uses the GPU", _SHARES_PIDS)
    if any(used is None for used in own):
        raise Unseen(
            "the driver does not count memory by process (WDDM)", "use the TCC driver mode, or Linux"
        )
    return {"process_bytes": sum(own)}


def _memory(nvml: Any, handle: Any) -> Answer:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError):  # drivers before 510, older pynvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"used_bytes": memory.used, "total_bytes": memory.total}


def _utilisation(nvml: Any, handle: Any) -> Answer:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"busy_ratio": rates.gpu / 100, "memory_busy_ratio": rates.memory / 100}


def _clocks(nvml: Any, handle: Any) -> Answer:
    kinds = {"sm_clock_hz": nvml.NVML_CLOCK_SM, "memory_clock_hz": nvml.NVML_CLOCK_MEM}
    return {column: nvml.nvmlDeviceGetClockInfo(handle, kind) * 1_000_000 for column, kind in kinds.items()}


def _throttle(nvml: Any, handle: Any) -> Answer:
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (nvml.NVMLError, AttributeError):  # its name before driver 535
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle_reasons": reasons}


def _power(nvml: Any, handle: Any) -> Answer:
    return {"power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3}


def _temperature(nvml: Any, handle: Any) -> Answer:
    return {"temperature_celsius": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))}


class CounterRates:
    """Bytes a second from two counters that only grow; unknown at the first reading and after a wrap.

    NVML's own PCIe query blocks 20 ms for each direction, so only the counters are read.
    """

    def __init__(self, link: str, sent: str, received: str, *, scope: int, unit_bytes: int) -> None:
        self._columns = (f"{link}_sent_bytes_per_s", f"{link}_received_bytes_per_s")
        self._fields, self._scope, self._unit_bytes = (sent, received), scope, unit_bytes
        self._last: tuple[int, list[int]] | None = None

    def __call__(self, nvml: Any, handle: Any) -> Answer:
        """Read both, and compare with the last time."""
        ids = [(getattr(nvml, f"NVML_FI_DEV_{name}"), self._scope) for name in self._fields]
        read = [_number(nvml, value) for value in nvml.nvmlDeviceGetFieldValues(handle, ids)]
        now_ns, last = time.monotonic_ns(), self._last
        self._last = (now_ns, read)
        if last is None or now_ns <= last[0]:
            return {}
        grown = [new - old for new, old in zip(read, last[1], strict=True)]
        passed_s = (now_ns - last[0]) / 1e9
        rates = [round(count * self._unit_bytes / passed_s) if count >= 0 else None for count in grown]
        return dict(zip(self._columns, rates, strict=True))


def _number(nvml: Any, value: Any) -> int:
    """A field's value by its type (nvmlValueType_t)."""
    if value.nvmlReturn != 0:
        raise nvml.NVMLError(value.nvmlReturn)
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    return int(getattr(value.value, member[value.valueType]))
