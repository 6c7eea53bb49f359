"""The recorder's side of device counters: the sampler and the watch on groups, from start to end of a run."""

from collections.abc import Callable
from typing import Protocol

from zprof.collectors.base import Columns
from zprof.collectors.devices.cuda import Cuda, TorchCuda
from zprof.collectors.devices.groups import GroupWatch
from zprof.collectors.devices.library import Load, driver_is_there, load_pynvml, no_driver
from zprof.collectors.devices.pace import Pace
from zprof.collectors.devices.queries import memory_queries
from zprof.collectors.devices.rows import Reason
from zprof.collectors.devices.sampler import DeviceSampler
from zprof.model.gaps import Gap


class Devices(Protocol):
    """What the recorder needs of device counters."""

    def start(self) -> None:
        """Begin, at the start of the recording."""

    def step(self) -> None:
        """A step is over."""

    def stop(self) -> None:
        """End."""

    def columns(self) -> Columns | None:
        """Table ``device`` so far; None where there is not a row."""

    def gaps(self) -> list[Gap]:
        """What could not be seen."""


class NoDevices:
    """Nothing is watched."""

    def start(self) -> None:
        """Nothing to begin."""

    def step(self) -> None:
        """Nothing to see."""

    def stop(self) -> None:
        """Nothing to end."""

    def columns(self) -> Columns | None:
        """No table."""
        return None

    def gaps(self) -> list[Gap]:
        """Nothing was asked for."""
        return []


class DeviceWatch:
    """Watches the GPUs of this process; on a machine without one it does and says nothing."""

    def __init__(
        self,
        *,
        cuda: Cuda | None = None,
        load: Load = load_pynvml,
        driver: Callable[[], bool] = driver_is_there,
        pace: Pace | None = None,
    ) -> None:
        self._cuda = cuda or TorchCuda()
        self._driver = driver
        self._sampler = DeviceSampler(self._cuda, load, pace=pace or Pace())
        only = [query.what for query in memory_queries()]
        self._groups = GroupWatch(lambda index, why, group: self._read_now(index, why, group, only))
        self._started = self._used = False

    def start(self) -> None:
        """Start the thread and watch the groups, where NVIDIA's driver is; a second call does nothing."""
        if not self._started and self._cuda.is_built() and self._driver():
            self._started = True
            self._sampler.start()
            self._groups.install()

    def step(self) -> None:
        """A step is over."""
        self._used = self._used or self._cuda.in_use()
        self._groups.step()

    def stop(self) -> None:
        """End the thread, and leave the process as it was."""
        self._used = self._used or self._cuda.in_use()
        self._groups.remove()
        self._sampler.stop()

    def columns(self) -> Columns | None:
        """Table ``device`` so far."""
        columns = self._sampler.columns()
        return columns if columns["time_ns"] else None

    def gaps(self) -> list[Gap]:
        """Nothing where the program never used a GPU."""
        if not self._used:
            return []
        return [*self._sampler.gaps(), *self._groups.gaps()] if self._started else [no_driver()]

    def _read_now(self, index: int, reason: Reason, group: str, only: list[str]) -> bool:
        return self._sampler.read_now(index, reason, group, only)
