"""Align clocks with tiny all-reduces ("pings") at both ends of the time window.

Three pings, because the first also absorbs the ranks' late starts; all ranks leave a ping within
microseconds of each other, so its end is one instant on every clock.  Pings run in a process group of
their own, so that a failure never touches the program's groups.  That group is only created once every
rank has announced, through the store, that it records the same steps: a program that records on one
rank must not wait for the others.
"""

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from zprof.collectors.base import first_line
from zprof.collectors.logs import MarkLog
from zprof.collectors.torch_private import default_store
from zprof.model.gaps import Gap

PINGS = 3
_TIMEOUT = timedelta(seconds=5)
_LOOK_S = 0.02
GO, STAY, UNEQUAL = "go", "stay", "unequal"
_LEFT = "a rank ended its recording before the last scheduled step"
_REASONS = {
    STAY: "not every rank started a recording in time",
    UNEQUAL: "ranks record different steps",
}


class ClockPings:
    """Fires pings into a mark log.  After one failure it stays silent and holds a gap.

    Args:
        marks: Where the pings go.
        schedule: Which steps this rank records, in words; pings need it to be the same on all ranks.
        agree_s: How long to wait for the other ranks to start their recordings.
    """

    def __init__(self, marks: MarkLog, *, schedule: str = "", agree_s: float = 10.0) -> None:
        self._marks, self._agree_s = marks, agree_s
        self._count = 0
        self._group: dist.ProcessGroup | None = None
        self._gap: Gap | None = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._open(schedule)

    def fire(self) -> bool:
        """Fire the pings of one end of a window.

        Returns:
            False where one failed: it may have waited for its time limit, and a step around it is spoiled.
        """
        try:
            if self._group is not None and default_store().check([self._left_key()]):
                self._fail(_LEFT)
            for _ in range(PINGS if self._group is not None else 0):
                self._ping()
        except Exception as error:
            self._fail(f"a ping failed: {first_line(error)}")
            return False
        return True

    def leave(self) -> None:
        """Say that this rank ends before its schedule does: nobody fires and waits for it any more."""
        if self._group is not None:
            try:
                if dist.is_initialized():  # else the program has ended its ranks: nobody fires any more
                    default_store().set(self._left_key(), "")
            finally:
                self._fail(_LEFT)

    def gaps(self) -> list[Gap]:
        """Why there are no pings, where there are none."""
        return [self._gap] if self._gap else []

    def _open(self, schedule: str) -> None:
        try:
            verdict = agree_to_ping(
                default_store(), dist.get_rank(), dist.get_world_size(), schedule, self._agree_s
            )
            if verdict == GO:
                self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
            else:
                self._fail(_REASONS.get(verdict, _REASONS[STAY]))
        except Exception as error:
            self._fail(f"no process group for pings: {first_line(error)}")

    def _left_key(self) -> str:
        assert self._group is not None
        return f"zprof/pings/left/{self._group.group_name}"

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
            remedy="call zprof.record on every rank with the same steps; until then clocks are aligned"
            " from other collectives",
        )


def agree_to_ping(store: Any, rank: int, world_size: int, schedule: str, agree_s: float) -> str:
    """Whether all ranks arrive here within the time limit with one schedule, decided alike on all of them.

    The first verdict wins: the last rank to arrive says go, a rank that has waited too long says stay.
    """
    recording = store.add(f"zprof/pings/recordings/{rank}", 1)
    prefix = f"zprof/pings/{recording}"
    store.set(f"{prefix}/schedule/{rank}", schedule)
    if store.add(f"{prefix}/arrived", 1) == world_size:
        schedules = {bytes(store.get(f"{prefix}/schedule/{other}")) for other in range(world_size)}
        return _propose_verdict(store, prefix, GO if len(schedules) == 1 else UNEQUAL)
    if not _wait_for_key(store, f"{prefix}/verdict", agree_s):
        return _propose_verdict(store, prefix, STAY)
    return bytes(store.get(f"{prefix}/verdict")).decode()


def _wait_for_key(store: Any, key: str, limit_s: float) -> bool:
    """Look for a key until the time is over: torch's own wait sees no Ctrl-C, and warns where it runs out."""
    deadline = time.monotonic() + limit_s
    while not store.check([key]):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _propose_verdict(store: Any, prefix: str, verdict: str) -> str:
    """The verdict that stands: this one, or the one that came before it."""
    return bytes(store.compare_set(f"{prefix}/verdict", "", verdict)).decode()
