"""Read the NVML counters of one device into columns of the table ``device``, and track failing queries.

NVML reports clocks in MHz, power in mW and utilization in percent; NVLink counters are KiB since the driver
was loaded, PCIe counters are bytes that wrap (nvml.h). ``used`` in version 2 of the memory query excludes
what the driver reserves for itself, so used minus process is the memory of other programs.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from zprof.collectors.record.devices.nvml import (
    QueryFailure,
    TorchCuda,
    UnusableAnswer,
    explain_nvml_error,
    find_handle,
)
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

QueryResult = Mapping[str, int | float | None]
#: All links of a device together (nvml.h: UINT_MAX as scope of an NVLink counter).
_ALL_LINKS = 0xFFFFFFFF
_HOST_PID_REMEDY = "run the container with the host's process ids (docker run --pid=host)"


class Query(Struct, frozen=True, kw_only=True):
    """``run`` takes the library and a device handle. ``what`` describes the query in a gap."""

    what: str
    run: Callable[[Any, Any], QueryResult]


def make_memory_queries() -> list[Query]:
    """Return the queries for the memory of this process and of the device."""
    return [
        Query(what="memory of this process", run=_query_process_memory),
        Query(what="memory of the device", run=_query_device_memory),
    ]


def make_queries() -> list[Query]:
    """Return new queries for one device. Rate counters keep their last reading."""
    pcie = CounterRates("pcie", "PCIE_COUNT_TX_BYTES", "PCIE_COUNT_RX_BYTES", scope=0, unit_bytes=1)
    nvlink = CounterRates(
        "nvlink", "NVLINK_THROUGHPUT_DATA_TX", "NVLINK_THROUGHPUT_DATA_RX", scope=_ALL_LINKS, unit_bytes=1024
    )
    return [
        *make_memory_queries(),
        Query(what="utilisation", run=_query_utilisation),
        Query(what="clocks", run=_query_clocks),
        Query(what="throttle reasons", run=_query_throttle_reasons),
        Query(
            what="power",
            run=lambda nvml, handle: {"power_watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3},
        ),
        Query(
            what="temperature",
            run=lambda nvml, handle: {
                "temperature_celsius": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            },
        ),
        Query(what="PCIe throughput", run=pcie),
        Query(what="NVLink throughput", run=nvlink),
    ]


def _query_process_memory(nvml: Any, handle: Any) -> QueryResult:
    processes_on_gpu = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    own = [process.usedGpuMemory for process in processes_on_gpu if process.pid == os.getpid()]
    if not own:
        processes = (
            f"{len(processes_on_gpu)} other processes, but not"
            if processes_on_gpu
            else "no processes, not even"
        )
        raise UnusableAnswer(
            f"NVML lists {processes} process {os.getpid()}, which uses the GPU", _HOST_PID_REMEDY
        )
    if any(used is None for used in own):
        raise UnusableAnswer(
            "the driver does not report memory per process (WDDM)", "use the TCC driver mode, or Linux"
        )
    return {"process_bytes": sum(own)}


def _query_device_memory(nvml: Any, handle: Any) -> QueryResult:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError):  # drivers before 510, older pynvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"used_bytes": memory.used, "total_bytes": memory.total}


def _query_utilisation(nvml: Any, handle: Any) -> QueryResult:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"busy_ratio": rates.gpu / 100, "memory_busy_ratio": rates.memory / 100}


def _query_clocks(nvml: Any, handle: Any) -> QueryResult:
    kinds = {"sm_clock_hz": nvml.NVML_CLOCK_SM, "memory_clock_hz": nvml.NVML_CLOCK_MEM}
    return {column: nvml.nvmlDeviceGetClockInfo(handle, kind) * 1_000_000 for column, kind in kinds.items()}


def _query_throttle_reasons(nvml: Any, handle: Any) -> QueryResult:
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (nvml.NVMLError, AttributeError):  # its name before driver 535
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle_reasons": reasons}


class CounterRates:
    """Compute bytes/s from two monotonic counters; unknown at the first reading and after a wrap.

    NVML's own PCIe query blocks for 20 ms per direction, so only the counters are read.
    """

    def __init__(self, link: str, sent: str, received: str, *, scope: int, unit_bytes: int) -> None:
        self._columns = (f"{link}_sent_bytes_per_s", f"{link}_received_bytes_per_s")
        self._fields, self._scope, self._unit_bytes = (sent, received), scope, unit_bytes
        self._last: tuple[int, list[int]] | None = None

    def __call__(self, nvml: Any, handle: Any) -> QueryResult:
        """Read both counters and return their rates since the last reading."""
        ids = [(getattr(nvml, f"NVML_FI_DEV_{name}"), self._scope) for name in self._fields]
        readings = [_read_field_value(nvml, value) for value in nvml.nvmlDeviceGetFieldValues(handle, ids)]
        now_ns, last = time.monotonic_ns(), self._last
        self._last = (now_ns, readings)
        if last is None or now_ns <= last[0]:
            return {}
        increments = [new - old for new, old in zip(readings, last[1], strict=True)]
        elapsed_s = (now_ns - last[0]) / 1e9
        rates = [round(count * self._unit_bytes / elapsed_s) if count >= 0 else None for count in increments]
        return dict(zip(self._columns, rates, strict=True))


def _read_field_value(nvml: Any, value: Any) -> int:
    """Return a field's value by its type (nvmlValueType_t)."""
    if value.nvmlReturn != 0:
        raise nvml.NVMLError(value.nvmlReturn)
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    return int(getattr(value.value, member[value.valueType]))


Values = dict[str, Any]
_MAX_INT64 = 2**63 - 1
_ALL_QUERIES = "all counters"


class _QueryOutcome(Struct):
    """Number of answers, and the last failure."""

    answers: int = 0
    failure: QueryFailure | None = None

    @property
    def is_disabled(self) -> bool:
        return self.failure is not None and (self.failure.is_permanent or self.failure.is_device_lost)

    @property
    def is_gap(self) -> bool:
        return self.failure is not None and (self.answers == 0 or self.failure.is_device_lost)


class DeviceProbe:
    """Read one device, given by its torch index. Queries that fail permanently are not repeated."""

    def __init__(self, nvml: Any, cuda: TorchCuda, index: int) -> None:
        self.device = f"cuda:{index}"
        self._nvml, self._cuda, self._index = nvml, cuda, index
        self._handle: Any = None
        self._queries = make_queries()
        self._records = {
            what: _QueryOutcome() for what in (_ALL_QUERIES, *(query.what for query in self._queries))
        }

    def read(self, only: Collection[str] | None = None) -> Values:
        """Return current values by column, for the queries in ``only`` or for all; omit unknown values.

        NVML's errors never propagate.
        """
        reserved = self._cuda.reserved_bytes(self._index)
        values: Values = {"reserved_bytes": reserved}
        if self._handle is None:
            self._run_query(_ALL_QUERIES, self._find_device)
        for query in self._queries if self._handle is not None else ():
            if only is None or query.what in only:
                values |= self._run_query(query.what, partial(self._answer, query, reserved))
        return values

    def gaps(self) -> list[Gap]:
        """Return one gap per reason, with the queries that never succeeded or lost the device."""
        by_reason: dict[tuple[str, str], list[str]] = {}
        for what, record in self._records.items():
            if record.failure is not None and record.is_gap:
                by_reason.setdefault((record.failure.reason, record.failure.remedy), []).append(what)
        return [
            make_gap(
                "device_queries_failed", device=self.device, counters=whats, reason=reason, remedy=remedy
            )
            for (reason, remedy), whats in by_reason.items()
        ]

    def _answer(self, query: Query, reserved_bytes: int | None) -> Mapping[str, Any]:
        # An answer that is not plausible is not used. NVML reports "not available" as the largest number of
        # the type. With process ids of another namespace, it may list another process under this process's
        # id, with less memory than torch has reserved here.
        answer = query.run(self._nvml, self._handle)
        for column, value in answer.items():
            if value is not None and not 0 <= value <= _MAX_INT64:
                raise UnusableAnswer(f"NVML returned {value} for {column}", "check that nvidia-smi shows it")
        process_bytes = answer.get("process_bytes")
        if process_bytes is not None and reserved_bytes is not None and process_bytes < reserved_bytes:
            raise UnusableAnswer(
                "NVML reports less memory for this process id than torch has reserved: it is another process",
                "run the container with the host's process ids (docker run --pid=host)",
            )
        return answer

    def _find_device(self) -> Mapping[str, Any]:
        self._handle = find_handle(self._nvml, self._cuda.identity(self._index))
        return {}

    def _run_query(self, what: str, action: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        record = self._records[what]
        if record.is_disabled or self._records[_ALL_QUERIES].is_disabled:
            return {}
        try:
            answer = action()
        except Exception as error:
            failure = explain_nvml_error(self._nvml, error)
            self._records[_ALL_QUERIES if failure.is_device_lost else what].failure = failure
            return {}
        record.answers += 1
        return answer
