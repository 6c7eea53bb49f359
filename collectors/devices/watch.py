"""Record device counters throughout a run: periodic samples, and one before and after the first
collective of each NCCL group.

NCCL allocates its communicator in that first collective, half a gigabyte and more per group, outside torch's
allocator. The methods of ``ProcessGroup`` are wrapped from the start of the recording and restored after the
first step without a new group.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from zprof.collectors.base import Columns, first_line
from zprof.collectors.devices.cuda import CudaQueries, TorchCuda
from zprof.collectors.devices.nvml import LoadLibrary, has_nvidia_driver, load_pynvml, make_no_driver_gap
from zprof.collectors.devices.probe import make_memory_queries
from zprof.collectors.devices.sampler import DeviceSampler, SampleReason, SamplingPace
from zprof.collectors.kineto.process_groups import format_ranks
from zprof.collectors.torch_private import COLLECTIVE_METHODS, process_group_class
from zprof.model.gaps import Gap, GapKind


class Devices(Protocol):
    """The interface of device counters that the recorder needs."""

    def start(self) -> None:
        """Start recording."""

    def step(self) -> None:
        """Handle the end of a step."""

    def stop(self) -> None:
        """Stop recording."""

    def columns(self) -> Columns | None:
        """Return the table ``device`` so far; None if it has no row."""

    def gaps(self) -> list[Gap]:
        """Return a gap for everything that could not be recorded."""


class NoDevices:
    """Record nothing."""

    def start(self) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def columns(self) -> Columns | None:
        """Return None."""
        return None

    def gaps(self) -> list[Gap]:
        """Return an empty list."""
        return []


class DeviceWatch:
    """Record the GPUs of this process; do nothing without an NVIDIA driver."""

    def __init__(
        self,
        *,
        cuda: CudaQueries | None = None,
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
        return [*self._sampler.gaps(), *self._groups.gaps()] if self._started else [make_no_driver_gap()]


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
        self._gaps.append(
            Gap(
                kind=GapKind.DEVICE_MEMORY,
                what="device memory of process groups",
                reason=f"first collectives were no longer watched: {first_line(error)}",
                remedy="please report this; training was not affected",
            )
        )


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
