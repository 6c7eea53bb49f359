"""Clock pings: tiny all-reduces at both ends of the time window, from which clocks are aligned.

Three pings, because the first also absorbs the ranks' late starts; all leave a ping within
microseconds of each other, so its ends are one instant on every clock.

Pings run in a process group of their own: a failure there never touches the program's groups.  The
group is only made when every rank has said, through the store, that it records: a program that
records on one rank alone must not be left waiting for the others.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from zprof.collectors.faults import first_line
from zprof.collectors.marks import MarkLog
from zprof.model.gaps import Gap

PINGS = 3
_TIMEOUT = timedelta(seconds=5)


class ClockPings:
    """Fires pings into a mark log.  After one failure it stays silent and holds a gap."""

    def __init__(self, marks: MarkLog, *, agree_s: float = 10.0) -> None:
        self._marks, self._agree_s = marks, agree_s
        self._count = 0
        self._group: dist.ProcessGroup | None = None
        self._gap: Gap | None = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._open()

    def fire(self) -> None:
        """Fire the pings of one end of a window."""
        for _ in range(PINGS if self._group is not None else 0):
            try:
                self._ping()
            except Exception as error:
                self._fail(f"a ping failed: {first_line(error)}")
                return

    def gaps(self) -> list[Gap]:
        """Why there are no pings, where there are none."""
        return [self._gap] if self._gap else []

    def _open(self) -> None:
        try:
            if _every_rank_records(self._agree_s):
                self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
            else:
                self._fail("not every rank started a recording in time")
        except Exception as error:
            self._fail(f"no process group for pings: {first_line(error)}")

    def _ping(self) -> None:
        begin_ns = time.time_ns()
        work = dist.all_reduce(torch.zeros(1), group=self._group, async_op=True)
        if work is not None:
            work.wait(_TIMEOUT)
        end_ns = time.time_ns()
        self._marks.add("ping_begin", self._count, at_ns=begin_ns)
        self._marks.add("ping_end", self._count, at_ns=end_ns)
        self._count += 1

    def _fail(self, reason: str) -> None:
        self._group = None
        self._gap = Gap(
            what="clock pings",
            reason=reason,
            remedy="call zprof.record on every rank; until then clocks are aligned from other collectives",
        )


def _every_rank_records(agree_s: float) -> bool:
    """Whether all ranks arrive here within the time limit, decided alike on all of them."""
    store = dist.distributed_c10d._get_default_store()
    recording = store.add(f"zprof/pings/recordings/{dist.get_rank()}", 1)
    prefix = f"zprof/pings/{recording}"
    if store.add(f"{prefix}/arrived", 1) == dist.get_world_size():
        store.set(f"{prefix}/verdict", "go" if store.add(f"{prefix}/left", 0) == 0 else "stay")
    try:
        store.wait([f"{prefix}/verdict"], timedelta(seconds=agree_s))
    except Exception:
        store.add(f"{prefix}/left", 1)
        return False
    return bool(store.get(f"{prefix}/verdict") == b"go")
