"""Read the NVML counters of one device into columns of the table ``device``, and remember which queries fail.

NVML reports clocks in MHz, power in mW and utilization in percent; NVLink counters are KiB since the driver
was loaded, PCIe counters are bytes that wrap (nvml.h). ``used`` in version 2 of the memory query excludes
what the driver reserves for itself, so that used minus process is what other programs use.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from zprof.collectors.devices.cuda import Cuda
from zprof.collectors.devices.nvml import QueryFailure, UnusableAnswer, explain_nvml_error, find_handle
from zprof.model.gaps import Gap, GapKind

Answer = Mapping[str, int | float | None]
#: All links of a device together (nvml.h: UINT_MAX as scope of an NVLink counter).
_ALL_LINKS = 0xFFFFFFFF
_SHARES_PIDS = "let the container see the host's process ids (docker run --pid=host)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """``ask`` takes the library and a device handle. ``what`` names the query in a gap."""

    what: str
    ask: Callable[[Any, Any], Answer]


def make_memory_queries() -> list[Query]:
    """Return the queries that the identity of a device's memory needs."""
    return [
        Query(what="memory of this process", ask=_query_process_memory),
        Query(what="memory of the device", ask=_query_device_memory),
    ]


def make_queries() -> list[Query]:
    """Return new queries for one device. Counters keep their last reading."""
    pcie = CounterRates("pcie", "PCIE_COUNT_TX_BYTES", "PCIE_COUNT_RX_BYTES", scope=0, unit_bytes=1)
    nvlink = CounterRates(
        "nvlink", "NVLINK_THROUGHPUT_DATA_TX", "NVLINK_THROUGHPUT_DATA_RX", scope=_ALL_LINKS, unit_bytes=1024
    )
    return [
        *make_memory_queries(),
        Query(what="utilisation", ask=_query_utilisation),
        Query(what="clocks", ask=_query_clocks),
        Query(what="throttle reasons", ask=_query_throttle_reasons),
        Query(what="power", ask=_query_power),
        Query(what="temperature", ask=_query_temperature),
        Query(what="PCIe throughput", ask=pcie),
        Query(what="NVLink throughput", ask=nvlink),
    ]


def _query_process_memory(nvml: Any, handle: Any) -> Answer:
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    own = [process.usedGpuMemory for process in listed if process.pid == os.getpid()]
    if not own:
        others = f"{len(listed)} others, but not" if listed else "no process, not even"
        raise UnusableAnswer(f"NVML shows {others} process {os.getpid()}, which uses the GPU", _SHARES_PIDS)
    if any(used is None for used in own):
        raise UnusableAnswer(
            "the driver does not count memory by process (WDDM)", "use the TCC driver mode, or Linux"
        )
    return {"process_bytes": sum(own)}


def _query_device_memory(nvml: Any, handle: Any) -> Answer:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError):  # drivers before 510, older pynvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"used_bytes": memory.used, "total_bytes": memory.total}


def _query_utilisation(nvml: Any, handle: Any) -> Answer:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"busy_ratio": rates.gpu / 100, "memory_busy_ratio": rates.memory / 100}


def _query_clocks(nvml: Any, handle: Any) -> Answer:
    kinds = {"sm_clock_hz": nvml.NVML_CLOCK_SM, "memory_clock_hz": nvml.NVML_CLOCK_MEM}
    return {column: nvml.nvmlDeviceGetClockInfo(handle, kind) * 1_000_000 for column, kind in kinds.items()}


def _query_throttle_reasons(nvml: Any, handle: Any) -> Answer:
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (nvml.NVMLError, AttributeError):  # its name before driver 535
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle_reasons": reasons}


def _query_power(nvml: Any, handle: Any) -> Answer:
    return {"power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3}


def _query_temperature(nvml: Any, handle: Any) -> Answer:
    return {"temperature_celsius": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))}


class CounterRates:
    """Computes bytes/s from two monotonic counters; unknown at the first reading and after a wrap.

    NVML's own PCIe query blocks for 20 ms per direction, so only the counters are read.
    """

    def __init__(self, link: str, sent: str, received: str, *, scope: int, unit_bytes: int) -> None:
        self._columns = (f"{link}_sent_bytes_per_s", f"{link}_received_bytes_per_s")
        self._fields, self._scope, self._unit_bytes = (sent, received), scope, unit_bytes
        self._last: tuple[int, list[int]] | None = None

    def __call__(self, nvml: Any, handle: Any) -> Answer:
        """Read both counters and return their rates since the last reading."""
        ids = [(getattr(nvml, f"NVML_FI_DEV_{name}"), self._scope) for name in self._fields]
        read = [_read_field_value(nvml, value) for value in nvml.nvmlDeviceGetFieldValues(handle, ids)]
        now_ns, last = time.monotonic_ns(), self._last
        self._last = (now_ns, read)
        if last is None or now_ns <= last[0]:
            return {}
        grown = [new - old for new, old in zip(read, last[1], strict=True)]
        passed_s = (now_ns - last[0]) / 1e9
        rates = [round(count * self._unit_bytes / passed_s) if count >= 0 else None for count in grown]
        return dict(zip(self._columns, rates, strict=True))


def _read_field_value(nvml: Any, value: Any) -> int:
    """Return a field's value by its type (nvmlValueType_t)."""
    if value.nvmlReturn != 0:
        raise nvml.NVMLError(value.nvmlReturn)
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    return int(getattr(value.value, member[value.valueType]))


Values = dict[str, Any]
_MAX_INT64 = 2**63 - 1
_WHOLE_DEVICE = "all of them"


@dataclass(slots=True)
class _QueryOutcome:
    """Number of answers, and the reason of the last failure."""

    answers: int = 0
    refused: QueryFailure | None = None

    @property
    def is_over(self) -> bool:
        return self.refused is not None and (self.refused.for_good or self.refused.lost)

    @property
    def is_gap(self) -> bool:
        return self.refused is not None and (self.answers == 0 or self.refused.lost)


class DeviceProbe:
    """Reads one device, by torch's index. Queries that fail for good are not repeated."""

    def __init__(self, nvml: Any, cuda: Cuda, index: int) -> None:
        self.device = f"cuda:{index}"
        self._nvml, self._cuda, self._index = nvml, cuda, index
        self._handle: Any = None
        self._queries = make_queries()
        self._records = {
            what: _QueryOutcome() for what in (_WHOLE_DEVICE, *(query.what for query in self._queries))
        }

    def read(self, only: Collection[str] | None = None) -> Values:
        """Return current values by column, of the queries in ``only`` or of all; unknown ones are left out.

        NVML's errors never propagate.
        """
        reserved = self._cuda.reserved_bytes(self._index)
        values: Values = {"reserved_bytes": reserved}
        if self._handle is None:
            self._try(_WHOLE_DEVICE, self._find)
        for query in self._queries if self._handle is not None else ():
            if only is None or query.what in only:
                values |= self._try(query.what, partial(self._answer, query, reserved))
        return values

    def gaps(self) -> list[Gap]:
        """Return one gap per reason, with the queries that never succeeded or lost the device."""
        by_reason: dict[tuple[str, str], list[str]] = {}
        for what, record in self._records.items():
            if record.refused is not None and record.is_gap:
                by_reason.setdefault((record.refused.reason, record.refused.remedy), []).append(what)
        return [
            Gap(
                kind=GapKind.DEVICE,
                what=f"counters of {self.device}: {', '.join(whats)}",
                reason=reason,
                remedy=remedy,
            )
            for (reason, remedy), whats in by_reason.items()
        ]

    def _answer(self, query: Query, reserved_bytes: int | None) -> Mapping[str, Any]:
        return _check_answer(query.ask(self._nvml, self._handle), reserved_bytes)

    def _find(self) -> Mapping[str, Any]:
        self._handle = find_handle(self._nvml, self._cuda.identity(self._index))
        return {}

    def _try(self, what: str, action: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        record = self._records[what]
        if record.is_over or self._records[_WHOLE_DEVICE].is_over:
            return {}
        try:
            answer = action()
        except Exception as error:
            refused = explain_nvml_error(self._nvml, error)
            self._records[_WHOLE_DEVICE if refused.lost else what].refused = refused
            return {}
        record.answers += 1
        return answer


def _check_answer(answer: Mapping[str, Any], reserved_bytes: int | None) -> Mapping[str, Any]:
    """Return the answer if it is plausible, else raise UnusableAnswer.

    NVML reports "not available" as the largest number of the type. With process ids of another namespace it
    may list another process under this one's id, whose memory need not contain what torch has reserved.
    """
    for column, value in answer.items():
        if value is not None and not 0 <= value <= _MAX_INT64:
            raise UnusableAnswer(f"NVML answered {value} for {column}", "see whether nvidia-smi shows it")
    process_bytes = answer.get("process_bytes")
    if process_bytes is not None and reserved_bytes is not None and process_bytes < reserved_bytes:
        raise UnusableAnswer(
            "NVML shows less for this process id than torch has reserved: it is another process",
            "let the container see the host's process ids (docker run --pid=host)",
        )
    return answer
