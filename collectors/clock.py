"""Align clocks with tiny all-reduces ("pings") at both ends of the time window.

All ranks leave a ping within microseconds of each other, so its end is one instant on every clock. There are
three per end of a window because the first also absorbs the ranks' late starts. Pings run in their own
process group, so that a failure never touches the program's groups. That group is created only after every
rank has announced, through the store, that it records the same steps: a program that records on one rank only
must not wait for the others.
"""

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from zprof.collectors.base import first_line
from zprof.collectors.logs import MarkLog
from zprof.collectors.torch_private import default_store
from zprof.model.gaps import Gap, GapKind

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
    """Fires pings and writes them to a mark log. After one failure it fires no more and holds a gap.

    Args:
        marks: The log that pings are written to.
        schedule: The steps that this rank records, as text; pings require the same schedule on all ranks.
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
            False if a ping failed: it may have blocked until its timeout and distorted the step around it.
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
        """Announce that this rank ends before its schedule, so that no other rank pings and waits for it."""
        if self._group is not None:
            try:
                if dist.is_initialized():  # else the program has destroyed its groups: no rank pings any more
                    default_store().set(self._left_key(), "")
            finally:
                self._fail(_LEFT)

    def gaps(self) -> list[Gap]:
        """Return the reason why pings are missing, or an empty list."""
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
            kind=GapKind.CLOCKS,
            what="clock pings",
            reason=reason,
            remedy="call zprof.record on every rank with the same steps; until then clocks are aligned"
            " from other collectives",
        )


def agree_to_ping(store: Any, rank: int, world_size: int, schedule: str, agree_s: float) -> str:
    """Return the verdict (``GO``, ``STAY`` or ``UNEQUAL``) on which all ranks agree.

    The first verdict in the store stands: the last rank to arrive writes ``GO``, or ``UNEQUAL`` if schedules
    differ; a rank that has waited for ``agree_s`` writes ``STAY``.
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
    """Poll for a key until the timeout. torch's own wait ignores Ctrl-C and warns when it times out."""
    deadline = time.monotonic() + limit_s
    while not store.check([key]):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _propose_verdict(store: Any, prefix: str, verdict: str) -> str:
    """Return the verdict that stands: this one, or an earlier one."""
    return bytes(store.compare_set(f"{prefix}/verdict", "", verdict)).decode()
