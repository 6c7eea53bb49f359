"""Run real collectives, delayed to the time that a modelled link would take.

    duration = wait for all ranks + latency + ring_factor x full tensor / bandwidth

One thread per rank runs the transfers one after the other, like a communication stream.  The real collective
is launched on the calling thread, so that its allocations are seen there.  Before each transfer the ranks'
link threads synchronize: no transfer starts before all ranks have launched it, as on a real link.  The
modelled time includes the time of the real collective; a slower real collective takes its own time.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from zprof.reference_engine.comm import native
from zprof.reference_engine.comm.collective import (
    POLL_S,
    CollectiveOrder,
    CollectiveType,
    Handle,
    LaunchedCollective,
    get_ring_factor,
)
from zprof.reference_engine.comm.native import NativeComm, make_failure

_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """Model of the links between ranks.

    ``bandwidth_bytes_per_s`` is the bus bandwidth of a rank.  ``rank_factors`` slows down the links of single
    ranks (2.0: half as fast); a ring is as slow as its slowest link.

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    rank_factors: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s > 0:
            raise ValueError(f"link bandwidth is {self.bandwidth_bytes_per_s} bytes/s; it must be above 0")
        if not self.latency_s >= 0:
            raise ValueError(f"link latency is {self.latency_s} s; it must be 0 or more")
        if any(not factor > 0 for factor in self.rank_factors.values()):
            raise ValueError(f"rank_factors is {dict(self.rank_factors)}; every factor must be above 0")

    def seconds(self, collective: LaunchedCollective, ranks: int) -> float:
        """Return the transfer time of a collective in seconds, without waits; 0 for a single rank."""
        if ranks == 1:
            return 0.0
        moved = collective.bytes * get_ring_factor(collective.kind, ranks)
        slowest = max((self.rank_factors.get(rank, 1.0) for rank in range(ranks)), default=1.0)
        return (self.latency_s + moved / self.bandwidth_bytes_per_s) * slowest


class ModelledComm(NativeComm):
    """The native transport, slowed down to a modelled link; for CPU ranks (gloo)."""

    def __init__(self, link: LinkModel, group: dist.ProcessGroup | None = None) -> None:
        """Start the link's thread and create the group that synchronizes the ranks' threads (collective)."""
        super().__init__(group)
        self._link = link
        self._barrier = _LinkBarrier(group)
        self._queue: queue.SimpleQueue[_Transfer | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="modelled-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the transfers in flight, then stop the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join(_CLOSE_TIMEOUT_S)
            self._barrier.close()
            if self.order is not None:
                self.order.close()

    def _start(
        self, kind: CollectiveType, full: torch.Tensor, unit: str, launch: Callable[..., dist.Work | None]
    ) -> Handle:
        if full.device.type != "cpu":  # the link's thread would wait on a different stream
            raise ValueError(f"unit {unit} is on {full.device}; a modelled link supports only CPU tensors")
        return super()._start(kind, full, unit, launch)

    def _make_handle(self, collective: LaunchedCollective, work: dist.Work, full: torch.Tensor) -> Handle:
        if self._closed:
            raise RuntimeError("the link is closed")
        transfer = _Transfer(collective, work, self._link.seconds(collective, self.world_size), self.order)
        self._queue.put(transfer)
        return transfer

    def _run(self) -> None:
        for transfer in iter(self._queue.get, None):
            transfer.run(self._barrier)


class _LinkBarrier:
    """Barrier of the ranks' link threads, in a separate group."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        ranks = dist.get_process_group_ranks(group)
        self._token = torch.zeros(1, dtype=torch.int32)
        self._group: dist.ProcessGroup | None = None
        if len(ranks) > 1:
            self._group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)

    def wait(self) -> None:
        if self._group is not None:
            dist.all_reduce(self._token, group=self._group)

    def close(self) -> None:
        self._group = None


class _Transfer:
    """One collective on the link: the link's thread runs it, the caller's thread waits for it."""

    def __init__(
        self, collective: LaunchedCollective, work: dist.Work, seconds: float, order: CollectiveOrder | None
    ) -> None:
        self._collective = collective
        self._order = order
        self._work: dist.Work | None = work
        self._seconds = seconds
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._waited = False

    def run(self, barrier: _LinkBarrier) -> None:
        """Wait for the other ranks and the real collective, then sleep for the rest of the modelled time."""
        with native.comm_range(self._collective):
            try:
                work, self._work = self._work, None
                assert work is not None
                barrier.wait()
                start_s = time.monotonic()
                work.wait()
                time.sleep(max(0.0, self._seconds - (time.monotonic() - start_s)))
            except BaseException as error:  # re-raised by wait() on the caller's thread
                self._error = error
        self._done.set()

    def wait(self) -> None:
        """Block until the transfer is complete."""
        if not self._waited:
            self._waited = True
            if self._order is not None:
                self._order.check_agreed()
            with native.wait_range(self._collective):
                while not self._done.wait(POLL_S):
                    if self._order is not None:
                        self._order.poll()
        if self._error is not None:
            raise make_failure(self._collective, self._error) from self._error
