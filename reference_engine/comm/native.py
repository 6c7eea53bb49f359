"""The native transport: torch.distributed's own process group (gloo, NCCL)."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

# Keeps the default group of its import time as a default argument, and torch's optimizers import it.  After
# init_process_group() the group would so outlive its destruction, and its threads abort the process at exit.
import torch.distributed.nn.functional

from zprof.reference_engine import ranges
from zprof.reference_engine.collective import Collective, Kind, ring_factor
from zprof.reference_engine.comm.base import Handle
from zprof.reference_engine.comm.order import POLL_S, CollectiveOrder

# torch 2.13 renamed the two and warns at the old names; 2.8 has only those.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class NativeComm:
    """Collectives of a process group, launched asynchronously, counted and written into the trace."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Use ``group``, or the default group, which must be there already."""
        if not dist.is_initialized():
            raise RuntimeError("no process group: call torch.distributed.init_process_group() first")
        # None stays None: a reference that outlives destroy_process_group() aborts the process at exit.
        self._group = group
        self._group_name = _name_of(group)
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.moved: Counter[str] = Counter()
        # In torch's fake process group this rank is the only one that there is.
        alone = self.world_size == 1 or dist.get_backend(group) == "fake"
        self.order = None if alone else CollectiveOrder(group)
        self._launched = 0

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The group, for what is not part of a step (checkpoints); None is the default group."""
        return self._group

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        """See :class:`~zprof.reference_engine.comm.base.Comm`."""
        return self._start(
            Kind.ALL_GATHER, out, unit, lambda: _all_gather(out, shard, group=self._group, async_op=True)
        )

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        """See :class:`~zprof.reference_engine.comm.base.Comm`."""
        return self._start(
            Kind.REDUCE_SCATTER,
            full,
            unit,
            lambda: _reduce_scatter(out, full, group=self._group, async_op=True),
        )

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        """See :class:`~zprof.reference_engine.comm.base.Comm`."""
        return self._start(
            Kind.ALL_REDUCE, tensor, unit, lambda: dist.all_reduce(tensor, group=self._group, async_op=True)
        )

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        """See :class:`~zprof.reference_engine.comm.base.Comm`."""
        return self._start(
            Kind.BROADCAST,
            tensor,
            unit,
            lambda: dist.broadcast(tensor, group=self._group, group_src=0, async_op=True),
        )

    def close(self) -> None:
        """Let go of the process group; it belongs to the caller."""
        self._group = None
        if self.order is not None:
            self.order.close()

    def _start(
        self, kind: Kind, full: torch.Tensor, unit: str, launch: Callable[[], dist.Work | None]
    ) -> Handle:
        collective = Collective(
            kind=kind,
            group=self._group_name,
            sequence=self._launched,
            unit=unit,
            bytes=full.numel() * full.element_size(),
            dtype=str(full.dtype).removeprefix("torch."),
        )
        if self.order is not None:
            self.order.check(collective)
        try:
            with ranges.launch(collective):
                work = launch()
        except RuntimeError as error:
            # Without its traceback: the frames in it keep the process group (see above).
            raise failure(collective, error) from error.with_traceback(None)
        assert work is not None  # this process belongs to the group, checked at construction
        self._launched += 1
        self.moved[kind] += round(collective.bytes * ring_factor(kind, self.world_size))
        return self._carry(collective, work, full)

    def _carry(self, collective: Collective, work: dist.Work, full: torch.Tensor) -> Handle:
        # On a GPU a wait is a matter of streams: with a timeout it would block the host.
        order = self.order if full.device.type == "cpu" else None
        return _WorkHandle(collective, work, order)


class _WorkHandle:
    """Waits for the process group's own work."""

    def __init__(self, collective: Collective, work: dist.Work, order: CollectiveOrder | None) -> None:
        self._collective = collective
        self._work: dist.Work | None = work
        self._order = order

    def wait(self) -> None:
        """Block until the result is there (on a GPU: make the current stream wait)."""
        if self._work is None:
            return
        work, self._work = self._work, None
        if self._order is not None:
            self._order.check_agreed()
        with ranges.wait(self._collective):
            while not self._completed(work):
                assert self._order is not None
                self._order.look()

    def _completed(self, work: dist.Work) -> bool:
        """Wait until the work is done, or for ``POLL_S`` where the order is watched."""
        begin = time.monotonic()
        try:
            if self._order is None:
                work.wait()
            else:
                work.wait(timedelta(seconds=POLL_S))
        except RuntimeError as error:
            if self._order is None:
                raise failure(self._collective, error) from error
            # gloo's reduce_scatter fails without ever being completed: what fails at once is no timeout
            if not work.is_completed() and time.monotonic() - begin >= POLL_S:
                return False
            self._order = None  # either it has failed, or it was done just after the timeout
            return self._completed(work)
        return True


def failure(collective: Collective, error: BaseException) -> RuntimeError:
    """The one-line error of a collective that did not complete."""
    return RuntimeError(f"{collective.kind} of unit {collective.unit} failed: {error}")


def _name_of(group: dist.ProcessGroup | None) -> str:
    group = group if group is not None else dist.group.WORLD
    assert group is not None
    return group.group_name
