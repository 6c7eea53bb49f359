"""Run collectives on torch.distributed's process groups (gloo, NCCL), with byte counts and zero:: ranges.

    zero::launch <kind> pg=<name> seq=<int> unit=<name> bytes=<int> dtype=<name>    around a launch
    zero::wait <kind> pg=<name> seq=<int> unit=<name>                               around a wait
    zero::comm <kind> pg=<name> seq=<int> unit=<name> bytes=<int> dtype=<name>      a modelled transfer
    zero::compute <phase> unit=<name>                                               modelled compute
    zero::copy <what> unit=<name> bytes=<int>                                       a modelled copy (offload)
    zero::prefetch_miss unit=<name> expected=<name>                                 changed order of units

``bytes`` is the size of the full (gathered) tensor.  ``seq`` counts within the process group and is equal on
all ranks.
"""

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch.profiler import record_function

from zprof.reference_engine.comm.collective import (
    POLL_S,
    CollectiveOrder,
    CollectiveType,
    Handle,
    LaunchedCollective,
    get_ring_factor,
)

# torch.distributed.nn.functional, which torch's optimizers import, captures the current default group in a
# default argument.  It is imported early, before init_process_group(): otherwise it would keep the group
# alive after its destruction, and the group's threads would abort the process at exit.


# torch 2.13 renamed both and warns about the old names; torch 2.8 has only the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

RANGE_PREFIX = "zero::"


class NativeComm:
    """Collectives of a process group, launched asynchronously, counted and traced."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Use ``group`` or the default group, which must already exist."""
        if not dist.is_initialized():
            raise RuntimeError("no process group: call torch.distributed.init_process_group() first")
        # None stays None: a reference that outlives destroy_process_group() aborts the process at exit.
        self._group = group
        self._group_name = _get_group_name(group)
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.moved: Counter[str] = Counter()
        # With torch's fake process group, this rank is the only real one.
        alone = self.world_size == 1 or dist.get_backend(group) == "fake"
        self.order = None if alone else CollectiveOrder(group)
        self._launched = 0

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The group for communication outside of steps (checkpoints); None is the default group."""
        return self._group

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        """Gather every rank's ``shard`` into ``out``."""
        return self._start(CollectiveType.ALL_GATHER, out, unit, partial(_all_gather, out, shard))

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        """Sum ``full`` over the ranks into ``out``, this rank's slice."""
        return self._start(CollectiveType.REDUCE_SCATTER, full, unit, partial(_reduce_scatter, out, full))

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Sum ``tensor`` over the ranks, in place."""
        return self._start(CollectiveType.ALL_REDUCE, tensor, unit, partial(dist.all_reduce, tensor))

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Overwrite ``tensor`` with rank 0's values."""
        launch = partial(dist.broadcast, tensor, group_src=0)
        return self._start(CollectiveType.BROADCAST, tensor, unit, launch)

    def close(self) -> None:
        """Drop the reference to the process group, which the caller owns."""
        self._group = None
        if self.order is not None:
            self.order.close()

    def _start(
        self, kind: CollectiveType, full: torch.Tensor, unit: str, launch: Callable[..., dist.Work | None]
    ) -> Handle:
        collective = LaunchedCollective(
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
            with launch_range(collective):
                work = launch(group=self._group, async_op=True)
        except RuntimeError as error:
            # Without its traceback, whose frames keep the process group alive (see above).
            raise make_failure(collective, error) from error.with_traceback(None)
        assert work is not None  # this process belongs to the group, checked at construction
        self._launched += 1
        self.moved[kind] += round(collective.bytes * get_ring_factor(kind, self.world_size))
        return self._make_handle(collective, work, full)

    def _make_handle(self, collective: LaunchedCollective, work: dist.Work, full: torch.Tensor) -> Handle:
        """Return the handle of a launched collective; a modelled link makes its own."""
        # On a GPU a wait only orders streams: with a timeout it would block the host.
        order = self.order if full.device.type == "cpu" else None
        return _WorkHandle(collective, work, order)


class _WorkHandle:
    """Handle of a collective that waits for the process group's work object."""

    def __init__(
        self, collective: LaunchedCollective, work: dist.Work, order: CollectiveOrder | None
    ) -> None:
        self._collective = collective
        self._work: dist.Work | None = work
        self._order = order

    def wait(self) -> None:
        """Block until the result is ready (on a GPU, make the current stream wait)."""
        if self._work is None:
            return
        work, self._work = self._work, None
        if self._order is not None:
            self._order.check_agreed()
        with wait_range(self._collective):
            while not self._wait_for_work(work):
                assert self._order is not None
                self._order.poll()

    def _wait_for_work(self, work: dist.Work) -> bool:
        """Wait, for at most ``POLL_S`` if the order is checked, and return True if the work is complete."""
        start_s = time.monotonic()
        try:
            if self._order is None:
                work.wait()
            else:
                work.wait(timedelta(seconds=POLL_S))
        except RuntimeError as error:
            if self._order is None:
                raise make_failure(self._collective, error) from error
            # A failed reduce_scatter of gloo is never completed: an early failure is not a timeout.
            if not work.is_completed() and time.monotonic() - start_s >= POLL_S:
                return False
            self._order = None  # it failed, or it completed just after the timeout
            return self._wait_for_work(work)
        return True


def make_failure(collective: LaunchedCollective, error: BaseException) -> RuntimeError:
    """Make the one-line error of a failed collective."""
    return RuntimeError(f"{collective.kind} of unit {collective.unit} failed: {error}")


def _get_group_name(group: dist.ProcessGroup | None) -> str:
    group = group if group is not None else dist.group.WORLD
    assert group is not None
    return group.group_name


def launch_range(collective: LaunchedCollective) -> record_function:
    """Return the range around the launch of a collective, on the calling thread."""
    return record_function(f"{RANGE_PREFIX}launch {_format_identity(collective)} {_format_size(collective)}")


def wait_range(collective: LaunchedCollective) -> record_function:
    """Return the range around the wait for a collective, on the calling thread."""
    return record_function(f"{RANGE_PREFIX}wait {_format_identity(collective)}")


def comm_range(collective: LaunchedCollective) -> record_function:
    """Return the range of the transfer itself, on the thread of a modelled link."""
    return record_function(f"{RANGE_PREFIX}comm {_format_identity(collective)} {_format_size(collective)}")


def compute_range(phase: str, unit: str) -> record_function:
    """Return the range of modelled compute."""
    return record_function(f"{RANGE_PREFIX}compute {phase} unit={unit}")


def copy_range(what: str, unit: str, size_bytes: int) -> record_function:
    """Return the range of a modelled copy between device and host."""
    return record_function(f"{RANGE_PREFIX}copy {what} unit={unit} bytes={size_bytes}")


def prefetch_miss_range(unit: str, expected: str) -> record_function:
    """Return the marker of a unit that was needed out of the recorded order."""
    return record_function(f"{RANGE_PREFIX}prefetch_miss unit={unit} expected={expected}")


def _format_identity(collective: LaunchedCollective) -> str:
    return f"{collective.kind} pg={collective.group} seq={collective.sequence} unit={collective.unit}"


def _format_size(collective: LaunchedCollective) -> str:
    return f"bytes={collective.bytes} dtype={collective.dtype}"
