"""Record device counters throughout a run: periodic samples, and one before and after the first
collective of each NCCL group.

A daemon thread samples all devices of this process, at most 1 % of the time, into a bounded log for the table
``device``. It raises nothing and never initializes CUDA. NVML is called through ctypes, which releases the
GIL. A forked child has no such thread and uses none of this. A sample that took c is followed by a pause of
at least c (1 - s) / s, where s is the maximum share of time for sampling.

NCCL allocates its communicator in that first collective, half a gigabyte and more per group, outside torch's
allocator. The methods of ``ProcessGroup`` are wrapped from the start of the recording and restored after the
first step without a new group.
"""

import functools
import os
import threading
import time
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from msgspec.structs import fields

from zprof.collectors.read.kineto.process_groups import format_ranks
from zprof.collectors.record.base import Columns, first_line
from zprof.collectors.record.devices.nvml import (
    LoadLibrary,
    TorchCuda,
    has_nvidia_driver,
    load_pynvml,
    open_nvml,
)
from zprof.collectors.record.devices.probe import DeviceProbe, make_memory_queries
from zprof.collectors.record.torch_private import COLLECTIVE_METHODS, process_group_class
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

PERIOD_NS = 200_000_000
MAX_SHARE = 0.01
#: A few samples are always slow: the first ones load the driver's tables, others wait for the GIL.
_SLOW_SAMPLES_RATIO = 0.1
#: Enough for 27 minutes at the initial period and one device; then the period doubles.
MAX_ROWS = 8192
_JOIN_S = 2.0
#: nvmlInit() is slow if no process holds the driver open.
_OPEN_S = 10.0


class SamplingPace:
    """Compute the pause after each sample, and accumulate the cost of sampling."""

    def __init__(self, period_ns: int = PERIOD_NS, max_share: float = MAX_SHARE) -> None:
        self.period_ns = period_ns
        self._max_share = max_share
        self.samples = self.delayed = 0
        self.cost_ns = self.pause_ns = 0

    def next_pause_ns(self, cost_ns: int) -> int:
        """Return the pause after a sample that took ``cost_ns``, in ns."""
        min_pause_ns = round(cost_ns * (1 - self._max_share) / self._max_share)
        pause_ns = max(self.period_ns, min_pause_ns)
        self.samples += 1
        self.delayed += min_pause_ns > self.period_ns
        self.cost_ns += cost_ns
        self.pause_ns += pause_ns
        return pause_ns

    def double_period(self) -> None:
        """Double the period."""
        self.period_ns *= 2

    @property
    def is_sparse(self) -> bool:
        """True if more than a few samples were delayed."""
        return self.delayed > max(1, self.samples * _SLOW_SAMPLES_RATIO)


class SampleReason(StrEnum):
    """Reason for a sample: periodic, or right before or after a group's first collective."""

    PERIOD = "period"
    BEFORE_GROUP = "before_group"
    AFTER_GROUP = "after_group"


class DeviceRow(Struct, frozen=True, kw_only=True):
    """One sample of one device; the fields are the columns of ``zprof.run.schema.DEVICE``."""

    time_ns: int
    device: str
    reason: str
    group: str | None
    cost_ns: int
    process_bytes: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    busy_ratio: float | None = None
    memory_busy_ratio: float | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    throttle_reasons: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    pcie_sent_bytes_per_s: int | None = None
    pcie_received_bytes_per_s: int | None = None
    nvlink_sent_bytes_per_s: int | None = None
    nvlink_received_bytes_per_s: int | None = None


class DeviceLog:
    """Keep at most ``max_rows`` rows of periodic samples; the few samples around groups are all kept.

    Two threads append. List appends and copies are atomic, and only the sampler's thread drops rows.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._samples: list[list[DeviceRow]] = []
        self._rows = 0
        self._group_rows: list[DeviceRow] = []

    def add_sample(self, rows: list[DeviceRow]) -> bool:
        """Keep the rows of one sample of all devices; return True if every second sample was dropped."""
        if not rows:
            return False
        self._samples.append(rows)
        self._rows += len(rows)
        if self._rows <= self._max_rows:
            return False
        self._samples = self._samples[::2]
        self._rows = sum(map(len, self._samples))
        return True

    def add_group_row(self, row: DeviceRow) -> None:
        """Keep a row from before or after a group's first collective."""
        self._group_rows.append(row)

    def columns(self) -> Columns:
        """Return the columns of the table, by time."""
        rows = [row for sample in list(self._samples) for row in sample] + list(self._group_rows)
        rows.sort(key=lambda row: row.time_ns)
        return {field.name: [getattr(row, field.name) for row in rows] for field in fields(DeviceRow)}


#: Waits for a number of seconds; returns True to stop.
Wait = Callable[[float], bool]
Clock = Callable[[], int]


class DeviceSampler:
    """Sample on a thread that executes ``run()``. Call ``start()`` and ``stop()`` in the same process."""

    def __init__(
        self,
        cuda: TorchCuda,
        load: LoadLibrary,
        *,
        pace: SamplingPace,
        max_rows: int = MAX_ROWS,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self._cuda, self._load, self._pace, self._clock = cuda, load, pace, clock
        self._log = DeviceLog(max_rows)
        self._nvml: Any = None
        self._probes: dict[int, DeviceProbe] = {}
        self._gaps: list[Gap] = []
        self._stop_requested, self._opened = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._process_id = 0

    def start(self) -> None:
        """Start the thread."""
        self._process_id = os.getpid()
        self._thread = threading.Thread(
            target=self.run, args=(self._stop_requested.wait,), name="zprof-devices", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. A thread that hangs in the driver keeps running as a daemon."""
        if self._thread is None or self._process_id != os.getpid():
            return
        self._stop_requested.set()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            self._gaps.append(make_gap("driver_hangs"))
        self._thread = None

    def run(self, wait: Wait) -> None:
        """Open the library once the program uses a GPU, then sample until ``wait`` returns True."""
        try:
            while not self._cuda.in_use():
                if wait(self._pace.period_ns / 1e9):
                    return
            nvml = open_nvml(self._load)
            if isinstance(nvml, Gap):
                self._gaps.append(nvml)
                return
            self._nvml = nvml
            self._opened.set()
            while not wait(self._sample() / 1e9):
                pass
        except Exception as error:  # an error in zprof must never end the program
            self._gaps.append(make_gap("device_counters_failed", error=first_line(error)))
        finally:
            self._opened.set()

    def read_now(self, index: int, reason: SampleReason, group: str, only: Collection[str]) -> bool:
        """Sample one device on the calling thread. Return False if NVML does not work."""
        if not self._opened.wait(_OPEN_S) or self._nvml is None:
            return False
        if index in self._cuda.devices():
            self._log.add_group_row(self._read(index, reason, group, only))
        return True

    def columns(self) -> Columns:
        """Return the table ``device``."""
        return self._log.columns()

    def gaps(self) -> list[Gap]:
        """Return gaps for failing queries and for sparse samples."""
        gaps = [gap for probe in list(self._probes.values()) for gap in probe.gaps()]
        if self._pace.is_sparse:
            pace = self._pace
            gaps.append(
                make_gap(
                    "device_samples_sparse",
                    delayed=pace.delayed,
                    samples=pace.samples,
                    cost_ms=pace.cost_ns / 1e6,
                    total_s=(pace.cost_ns + pace.pause_ns) / 1e9,
                )
            )
        return [*self._gaps, *gaps]

    def _sample(self) -> int:
        """Sample all devices once, and return the pause that follows in ns."""
        start_ns = self._clock()
        rows = [self._read(index, SampleReason.PERIOD, None, None) for index in self._cuda.devices()]
        if self._log.add_sample(rows):
            self._pace.double_period()
        return self._pace.next_pause_ns(self._clock() - start_ns) if rows else self._pace.period_ns

    def _read(
        self, index: int, reason: SampleReason, group: str | None, only: Collection[str] | None
    ) -> DeviceRow:
        if index not in self._probes:
            self._probes[index] = DeviceProbe(self._nvml, self._cuda, index)
        probe = self._probes[index]
        time_ns, start_ns = time.time_ns(), self._clock()
        values = probe.read(only)
        cost_ns = self._clock() - start_ns
        return DeviceRow(
            time_ns=time_ns, device=probe.device, reason=reason, group=group, cost_ns=cost_ns, **values
        )


class Devices:
    """Device counters as the recorder calls them; by default nothing is recorded."""

    def start(self) -> None:
        """Start recording."""

    def step(self) -> None:
        """Handle the end of a step."""

    def stop(self) -> None:
        """Stop recording."""

    def columns(self) -> Columns | None:
        """Return the table ``device`` so far; None if it has no row."""
        return None

    def gaps(self) -> list[Gap]:
        """Return a gap for everything that could not be recorded."""
        return []


class DeviceWatch(Devices):
    """Record the GPUs of this process; do nothing without an NVIDIA driver."""

    def __init__(
        self,
        *,
        cuda: TorchCuda | None = None,
        load: LoadLibrary = load_pynvml,
        has_driver: Callable[[], bool] = has_nvidia_driver,
        pace: SamplingPace | None = None,
    ) -> None:
        self._cuda = cuda or TorchCuda()
        self._has_driver = has_driver
        self._sampler = DeviceSampler(self._cuda, load, pace=pace or SamplingPace())
        only = [query.what for query in make_memory_queries()]
        self._groups = GroupWatch(
            lambda index, reason, group: self._sampler.read_now(index, reason, group, only)
        )
        self._started = self._was_used = False

    def start(self) -> None:
        """Start the thread and watch the groups, if an NVIDIA driver is present; a second call does
        nothing.
        """
        if not self._started and self._cuda.is_built() and self._has_driver():
            self._started = True
            self._sampler.start()
            self._groups.install()

    def step(self) -> None:
        """Handle the end of a step."""
        self._was_used = self._was_used or self._cuda.in_use()
        self._groups.step()

    def stop(self) -> None:
        """Stop the thread, and restore the process."""
        self._was_used = self._was_used or self._cuda.in_use()
        self._groups.remove()
        self._sampler.stop()

    def columns(self) -> Columns | None:
        """Return the table ``device`` so far; None if it has no row."""
        columns = self._sampler.columns()
        return columns if columns["time_ns"] else None

    def gaps(self) -> list[Gap]:
        """Return a gap for everything that could not be recorded; none if the program never used a GPU."""
        if not self._was_used:
            return []
        return [*self._sampler.gaps(), *self._groups.gaps()] if self._started else [make_gap("no_driver")]


#: Takes a device, a reason and a group, and samples the device; returns False if NVML does not work.
TakeSample = Callable[[int, SampleReason, str], bool]
_MAX_DEPTH = 3


class GroupWatch:
    """Wrap the collectives while installed, to sample before and after the first one of each NCCL group."""

    def __init__(self, read: TakeSample, method_owner: type | None = None) -> None:
        self._read = read
        self._method_owner = method_owner or process_group_class()
        self._wrappers: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._seen: set[str] = set()
        self._names: dict[str, str] = {}
        self._previous_count = 0
        self._process_id = os.getpid()
        self._active = False
        self._gaps: list[Gap] = []

    def install(self) -> None:
        """Install the wrappers, if torch was built with distributed."""
        if self._method_owner is None:
            return
        self._active = True
        for name in (*COLLECTIVE_METHODS, "barrier"):
            original = self._method_owner.__dict__.get(name)
            if original is not None:
                self._wrappers[name] = (original, self._wrap(original))
                setattr(self._method_owner, name, self._wrappers[name][1])

    def step(self) -> None:
        """Handle the end of a step: remove the wrappers if it used no new group."""
        if self._active and len(self._seen) == self._previous_count:
            self._active = False
        self._previous_count = len(self._seen)
        if not self._active:
            self.remove()

    def remove(self) -> None:
        """Restore the methods; a wrapper that has been wrapped since stays until it can be removed."""
        self._active = False
        for name, (original, wrapper) in list(self._wrappers.items()):
            if self._method_owner.__dict__.get(name) is wrapper:
                setattr(self._method_owner, name, original)
                del self._wrappers[name]

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        has_tensors = original.__name__ != "barrier"

        @functools.wraps(original)
        def launch(group: Any, *args: Any, **kwargs: Any) -> Any:
            index = self._sample_before(group, args if has_tensors else None) if self._active else None
            result = original(group, *args, **kwargs)
            if index is not None:
                try:
                    self._read(index, SampleReason.AFTER_GROUP, self._names[group.group_name])
                except Exception as error:
                    self._fail(error)
            return result

        return launch

    def _sample_before(self, group: Any, args: tuple[Any, ...] | None) -> int | None:
        """Sample before the first collective of an NCCL group and return its device; None for other calls."""
        try:
            if group.group_name in self._seen:
                return None
            if self._process_id != os.getpid():  # a fork, which is not recorded
                self._active = False
                return None
            index = _find_device(args)
            if index is None:
                return None  # tensors on the host: another backend
            self._seen.add(group.group_name)
            if "nccl" not in str(dist.get_backend_config(group)):
                return None
            # A name is the sorted ranks, and the group's own name if another group has the same ranks.
            ranks = format_ranks(dist.get_process_group_ranks(group))
            self._names[group.group_name] = name = (
                f"{ranks}#{group.group_name}" if ranks in self._names.values() else ranks
            )
            self._active = self._read(index, SampleReason.BEFORE_GROUP, name)
            return index if self._active else None
        except Exception as error:  # an error in zprof must never reach the program
            self._fail(error)
            return None

    def gaps(self) -> list[Gap]:
        """Return the reason why first collectives were no longer watched, or an empty list."""
        return list(self._gaps)

    def _fail(self, error: Exception) -> None:
        self._active = False
        self._gaps.append(make_gap("groups_not_watched", error=first_line(error)))


def _find_device(args: tuple[Any, ...] | None) -> int | None:
    """Return the device of the first tensor, None on the host; without tensors (barrier), the
    current device.
    """
    if args is None:
        return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    value: Any = args
    for _ in range(_MAX_DEPTH):
        if isinstance(value, list | tuple) and value:
            value = value[0]
    if isinstance(value, torch.Tensor) and value.is_cuda:
        return value.device.index
    return None
