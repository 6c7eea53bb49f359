"""Align clocks with tiny all-reduces ("pings") at both ends of the time window.

All ranks leave a ping within microseconds of each other, so its end is the same instant on every clock. Each
end of a window has three because the first one also absorbs differences in arrival time. Pings run in their
own process group, so a failure never affects the program's groups. That group is created only after
every rank has announced through the store that it records the same steps: a program that records on one rank
only must not wait for the others.
"""

import copy
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from zprof.collectors.record.base import first_line
from zprof.collectors.record.logs import MarkLog
from zprof.collectors.record.torch_private import default_store
from zprof.model.collectives import CLOCK_GROUP
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

PINGS = 3
#: Marks a ping in the grammar of ``zprof.run.ranges``, so that it is not counted as the program's collective.
PING_RANGE = "zprof::ping"
_TIMEOUT = timedelta(seconds=5)
_POLL_INTERVAL_S = 0.02
GO, STAY, UNEQUAL = "go", "stay", "unequal"


class ClockPings:
    """Send pings and write them to a mark log. After a failure, send no more and keep a gap.

    Args:
        marks: Log that pings are written to.
        schedule: The steps that this rank records, as text; pings require the same schedule on all ranks.
        agree_s: How long to wait for the other ranks to start their recordings.
    """

    def __init__(self, marks: MarkLog, *, schedule: str = "", agree_s: float = 10.0) -> None:
        self._marks = marks
        self._count = 0
        self._group: dist.ProcessGroup | None = None
        self._gap: Gap | None = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            try:
                verdict = agree_to_ping(
                    default_store(), dist.get_rank(), dist.get_world_size(), schedule, agree_s
                )
                if verdict == GO:
                    self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT, group_desc=CLOCK_GROUP)
                else:
                    self._fail(
                        "pings_of_different_steps" if verdict == UNEQUAL else "pings_without_all_ranks"
                    )
            except Exception as error:
                self._fail("pings_without_group", error)

    def send(self) -> bool:
        """Fire the pings of one end of a window.

        Returns:
            False if a ping failed: it may have blocked until its timeout and distorted the step around it.
        """
        try:
            if self._group is not None and default_store().check([self._left_key()]):
                self._fail("pings_ended_early")
            for _ in range(PINGS if self._group is not None else 0):
                start_ns = time.time_ns()
                with torch.profiler.record_function(PING_RANGE):
                    work = dist.all_reduce(torch.zeros(1), group=self._group, async_op=True)
                    if work is not None:
                        work.wait(_TIMEOUT)
                end_ns = time.time_ns()
                self._marks.add("ping_begin", self._count, at_ns=start_ns)
                self._marks.add("ping_end", self._count, at_ns=end_ns)
                self._count += 1
        except Exception as error:
            self._fail("ping_failed", error)
            return False
        return True

    def continue_in(self, marks: MarkLog) -> "ClockPings":
        """Return pings of another window in the same process group, which all ranks record as well.

        After a failure there are none: no rank waits for the others again.
        """
        pings = copy.copy(self)
        pings._marks, pings._count = marks, 0
        return pings

    def find_largest(self, value: int) -> int:
        """Return the largest ``value`` of all ranks, which call this at the same step; without pings, this
        rank's value.
        """
        if self._group is None:
            return value
        try:
            values = torch.tensor([value])
            with torch.profiler.record_function(PING_RANGE):
                work = dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
                if work is not None:
                    work.wait(_TIMEOUT)
            return int(values)
        except Exception as error:
            self._fail("ping_failed", error)
            return value

    def leave(self) -> None:
        """Announce that this rank stops before its schedule ends; no other rank then waits for its pings."""
        if self._group is not None:
            try:
                if (
                    dist.is_initialized()
                ):  # otherwise the program has destroyed its groups, and no rank sends pings
                    default_store().set(self._left_key(), "")
            finally:
                self._fail("pings_ended_early")

    def gaps(self) -> list[Gap]:
        """Return the reason why pings are missing, or an empty list."""
        return [self._gap] if self._gap else []

    def _left_key(self) -> str:
        assert self._group is not None
        return f"zprof/pings/left/{self._group.group_name}"

    def _fail(self, key: str, error: Exception | None = None) -> None:
        self._group = None
        self._gap = make_gap(key, error="" if error is None else first_line(error))


def agree_to_ping(store: Any, rank: int, world_size: int, schedule: str, agree_s: float) -> str:
    """Return the verdict (``GO``, ``STAY`` or ``UNEQUAL``) on which all ranks agree.

    The first verdict in the store is final: the last rank to arrive writes ``GO``, or ``UNEQUAL`` if
    schedules differ; a rank that has waited for ``agree_s`` writes ``STAY``.
    """
    recording = store.add(f"zprof/pings/recordings/{rank}", 1)
    prefix = f"zprof/pings/{recording}"
    store.set(f"{prefix}/schedule/{rank}", schedule)
    if store.add(f"{prefix}/arrived", 1) == world_size:
        schedules = {bytes(store.get(f"{prefix}/schedule/{other}")) for other in range(world_size)}
        return _propose_verdict(store, prefix, GO if len(schedules) == 1 else UNEQUAL)
    # Poll: torch's own wait ignores Ctrl-C and warns when it times out.
    deadline_s = time.monotonic() + agree_s
    while not store.check([f"{prefix}/verdict"]):
        if time.monotonic() > deadline_s:
            return _propose_verdict(store, prefix, STAY)
        time.sleep(_POLL_INTERVAL_S)
    return bytes(store.get(f"{prefix}/verdict")).decode()


def _propose_verdict(store: Any, prefix: str, verdict: str) -> str:
    """Propose a verdict and return the final one: this one, or an earlier one."""
    return bytes(store.compare_set(f"{prefix}/verdict", "", verdict)).decode()
