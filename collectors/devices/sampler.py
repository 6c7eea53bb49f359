"""Samples all devices of this process at the pace's rests, on a thread of its own.

The thread is a daemon, raises nothing, and asks torch nothing that would start CUDA.  NVML is called through
ctypes, which lets go of the interpreter lock.  A forked child has no such thread, and touches none of this.
"""

import os
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from zprof.collectors.base import Columns
from zprof.collectors.devices.cuda import Cuda
from zprof.collectors.devices.library import WHAT, Load, open_nvml
from zprof.collectors.devices.pace import Pace
from zprof.collectors.devices.probe import DeviceProbe
from zprof.collectors.devices.rows import DeviceRow, Reason, RowLog
from zprof.collectors.faults import first_line
from zprof.model.gaps import Gap

#: 27 minutes at the first period, for one device; then the period doubles.
MOST_ROWS = 8192
_JOIN_S = 2.0
#: nvmlInit() takes long where no process holds the driver open.
_OPEN_S = 10.0

#: Waits so many seconds, and says whether to end.
Wait = Callable[[float], bool]
Clock = Callable[[], int]


class DeviceSampler:
    """``start()`` and ``stop()`` it in the same process; ``run()`` is the thread's whole life."""

    def __init__(
        self,
        cuda: Cuda,
        load: Load,
        *,
        pace: Pace,
        most_rows: int = MOST_ROWS,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self._cuda, self._load, self._pace, self._clock = cuda, load, pace, clock
        self._log = RowLog(most_rows)
        self._nvml: Any = None
        self._probes: dict[int, DeviceProbe] = {}
        self._gaps: list[Gap] = []
        self._end, self._opened = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._process_id = 0

    def start(self) -> None:
        """Begin to sample."""
        self._process_id = os.getpid()
        self._thread = threading.Thread(
            target=self.run, args=(self._end.wait,), name="zprof-devices", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread.  One that hangs in the driver is left behind: it is a daemon."""
        if self._thread is None or self._process_id != os.getpid():
            return
        self._end.set()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            self._gaps.append(
                _fault("the driver does not answer", "see nvidia-smi and the kernel's log (Xid)")
            )
        self._thread = None

    def run(self, wait: Wait) -> None:
        """Open the library once the program uses a GPU, then sample until ``wait`` says to end."""
        try:
            while not self._cuda.in_use():
                if wait(self._pace.period_ns / 1e9):
                    return
            if self._open():
                while not wait(self._sample() / 1e9):
                    pass
        except Exception as error:  # the program is not ours to end
            self._gaps.append(_fault(first_line(error), "please report this; training was not touched"))
        finally:
            self._opened.set()

    def read_now(self, index: int, reason: Reason, group: str, only: Collection[str]) -> bool:
        """A sample of one device on the caller's thread; False where NVML does not work."""
        if not self._opened.wait(_OPEN_S) or self._nvml is None:
            return False
        if index in self._cuda.devices():
            self._log.add_at_group(self._read(index, reason, group, only))
        return True

    def columns(self) -> Columns:
        """Table ``device``."""
        return self._log.columns()

    def gaps(self) -> list[Gap]:
        """What could not be seen, and whether sampling had to slow down."""
        seen = [gap for probe in list(self._probes.values()) for gap in probe.gaps()]
        if self._pace.had_to_slow:
            seen.append(Gap(what="device samples are sparse", reason=self._pace.account(), remedy=_SPARSE))
        return [*self._gaps, *seen]

    def _open(self) -> bool:
        opened = open_nvml(self._load)
        if isinstance(opened, Gap):
            self._gaps.append(opened)
            return False
        self._nvml = opened
        self._opened.set()
        return True

    def _sample(self) -> int:
        """One moment of all devices; the rest that it asks for."""
        begin_ns = self._clock()
        rows = [self._read(index, Reason.PERIOD, None, None) for index in self._cuda.devices()]
        if self._log.add_tick(rows):
            self._pace.double()
        return self._pace.after(self._clock() - begin_ns) if rows else self._pace.period_ns

    def _read(self, index: int, reason: Reason, group: str | None, only: Collection[str] | None) -> DeviceRow:
        if index not in self._probes:
            self._probes[index] = DeviceProbe(self._nvml, self._cuda, index)
        probe = self._probes[index]
        time_ns, begin_ns = time.time_ns(), self._clock()
        values = probe.read(only)
        cost_ns = self._clock() - begin_ns
        return DeviceRow(
            time_ns=time_ns, device=probe.device, reason=reason, group=group, cost_ns=cost_ns, **values
        )


_SPARSE = "the driver answers slowly: see whether another monitor asks it often"


def _fault(reason: str, remedy: str) -> Gap:
    return Gap(what=WHAT, reason=reason, remedy=remedy)
