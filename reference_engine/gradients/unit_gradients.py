"""Store a unit's gradients, average them over the ranks, and keep this rank's shard of the mean.

The default of stages 2 and 3 is here: autograd's own ``.grad`` per parameter until the unit's backward ends,
then a bucket that is reduce-scattered.  ``build`` has the alternatives.

torch's optimizers do not update a parameter without a gradient.  Here, a parameter without a gradient on any
rank is not updated.  If only some ranks have a gradient, the parameter is updated with the mean, in which the
other ranks count as zero.  So a rank without a gradient must learn if another rank had one.  The reduced
gradient itself carries this bit, without another collective or extra bytes (IEEE 754, round to nearest):

    -0.0 + -0.0 = -0.0        -0.0 + x = x for every other x        +0.0 + -0.0 = +0.0

A rank without a gradient contributes -0.0 for the parameter's first element in every shard.  A rank with a
gradient contributes its value, but never -0.0.  So the sum is -0.0 if and only if no rank had a gradient.
The host does not read it.  gloo follows these rules.  In-network reduction (SHARP) may not, so transports
between GPUs are probed first (``build.probe_sign_of_zero``).
"""

import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from zprof.reference_engine.comm.collective import Comm, Handle
from zprof.reference_engine.config import ZeroConfig
from zprof.reference_engine.flat_layout import ElementRange, find_first_elements
from zprof.reference_engine.flat_unit import FlatUnit


class UnitGradients(ABC):
    """The gradients of one unit: which parameters have one, their reduction, and the shard of the mean.

    The optimizer reads ``mean_shard`` after a step's last reduction.
    """

    def __init__(
        self,
        unit: FlatUnit,
        full_grads: "FullGrads",
        context: "ReductionContext",
        shard: torch.Tensor | None = None,
        pieces: Sequence[ElementRange | None] = (None,),
    ) -> None:
        """Store full gradients in ``full_grads``, and the shard in ``shard`` or in memory of its own.

        ``pieces`` are the ranges of every shard that will be averaged; None is the flat tensor.
        """
        self.unit = unit
        #: Indices of parameters without a gradient in the current pass.
        self.missing: set[int] = set()
        self._with_gradient: set[int] = set()  # in this step
        self._full_grads = full_grads
        self._comm = context.comm
        self._keeps_sign = context.keeps_sign
        self._micro_batches = context.config.micro_batches
        self._wire_dtype = context.config.wire_dtype
        self._first_elements = {piece: find_first_elements(unit.layout, piece) for piece in pieces}
        # The parameter whose ``.grad`` is the gradient shard: torch requires the same dtype. That is the
        # parameter shard, or else the fp32 master weights.
        if self._wire_dtype == unit.shard.dtype:
            self._grad_holder = unit.shard
        else:
            assert unit.weights is not None  # only trainable units have gradients
            self._grad_holder = unit.weights
        self._shard = shard
        self._keeps_shard = shard is not None or context.config.defragment
        if self._keeps_shard and shard is None:
            self.mean_shard.zero_()

    @property
    def mean_shard(self) -> torch.Tensor:
        """This rank's shard of the mean gradient; uninitialized until a reduction has written to it.

        Without ``defragment``, memory of its own is allocated by a step's first reduction and freed by
        ``zero_grad()``, as in torch: the memory peak of a step is often at the start of its backward, when no
        gradients exist yet.
        """
        if self._shard is None:
            self._shard = torch.empty_like(self._grad_holder.detach(), dtype=self._wire_dtype)
            self._grad_holder.grad = self._shard
        return self._shard

    def start_pass(self) -> None:
        """Start a backward pass."""
        self.missing = set(range(len(self.unit.parameters)))

    def add(self, index: int, *, collect: bool) -> None:
        """Record that parameter ``index`` has a gradient; ``collect`` it if this pass is reduced."""
        self.missing.discard(index)
        self._with_gradient.add(index)
        if collect:
            self._full_grads.collect(index)

    def reduce(self, reduction_pass: "ReductionPass") -> Handle:
        """Launch the reduction; the mean is complete after ``wait()`` on the returned handle."""
        self._full_grads.complete(self.missing)
        return self.launch(reduction_pass)

    @abstractmethod
    def launch(self, reduction_pass: "ReductionPass") -> Handle:
        """Launch the collectives, after all gradients of the pass were stored."""

    def zero(self) -> None:
        """Zero or drop all gradients, and start a new step."""
        self._full_grads.zero()
        if self._keeps_shard:
            self.mean_shard.zero_()
        else:
            self._shard = self._grad_holder.grad = None
        self._with_gradient.clear()

    def average(
        self, buffer: torch.Tensor, reduction_pass: "ReductionPass", piece: ElementRange | None = None
    ) -> None:
        """Divide gradients before their reduction, and encode in their signs which ones this rank has.

        ``buffer`` holds elements ``piece`` of every shard, one shard after the other, or the flat tensor if
        ``piece`` is None.  Allocates nothing.

        If stage 0 reduces after each micro-batch, it holds the running mean, equal on all ranks, plus the
        gradients of the next micro-batch.  Summing it over N ranks and dividing by N gives the next running
        mean, with the signs of zero of the first sum; the last pass also divides by the micro-batches.
        """
        sums_again = not self.unit.policy.shard_optimizer
        divides = reduction_pass.last or not sums_again
        buffer.div_(self._comm.world_size * (self._micro_batches if divides else 1))
        with_gradient = []
        for elements in self._first_elements[piece]:
            if elements.parameter in self._with_gradient:
                with_gradient.append(buffer[elements.buffer])
            elif self._keeps_sign and (reduction_pass.first or not sums_again):
                buffer[elements.buffer].fill_(-0.0)
        if len(self._with_gradient) == len(self.unit.parameters) and (piece is None or piece.first == 0):
            # One strided add covers the first elements of all shards.  The others are single elements, which
            # _foreach_add_ fuses into one kernel; it cannot fuse larger views.
            with_gradient = [view for view in with_gradient if view.numel() == 1]
            buffer[:: max(buffer.numel() // self.unit.layout.ranks, 1)].add_(0.0)
        if with_gradient:
            torch._foreach_add_(with_gradient, 0.0)  # turns -0.0 into 0.0 and keeps every other value

    def list_missing_in_step(self) -> list[int]:
        """List the indices of parameters without a gradient on this rank in this step."""
        return [index for index in range(len(self.unit.parameters)) if index not in self._with_gradient]

    def flag_missing_everywhere(self, index: int, first: int) -> torch.Tensor:
        """Return 1.0 if no rank had a gradient for the parameter, else 0.0: a float32 scalar on the device.

        ``first`` is the position of an element of the parameter, its first in this rank's shard.
        """
        value = self.mean_shard[first]
        if self._keeps_sign:
            return (torch.signbit(value) & (value == 0)).float()
        name = self.unit.layout.slots[index].name
        warnings.warn(
            f"parameter {name} had no gradient on this rank; another rank may have had one, but reductions "
            "on this network do not keep the sign of zero, so a gradient of zero is used",
            stacklevel=2,
        )
        return torch.zeros((), dtype=torch.float32, device=value.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionPass:
    """Position of a reduction within its step: the only one (first and last), or one per micro-batch."""

    first: bool = True
    last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionContext:
    """What the gradients of all units share.

    ``keeps_sign``  True if sums over the ranks keep the sign of zero; else a missing gradient counts as zero
    """

    config: ZeroConfig
    comm: Comm
    keeps_sign: bool


class FullGrads:
    """A unit's full gradients between autograd and their reduction: here, each ``.grad`` of autograd."""

    def __init__(self, unit: FlatUnit) -> None:
        self._unit = unit

    def collect(self, index: int) -> None:
        """Store the gradient of parameter ``index``, which autograd has written to ``.grad``."""

    def complete(self, missing: Iterable[int]) -> None:
        """Finish the pass; a parameter in ``missing`` without any gradient counts as zero."""

    def zero(self) -> None:
        """Zero or drop all gradients."""
        for parameter in self._unit.parameters:
            parameter.grad = None


class BucketAfterBackward(FullGrads):
    """Keeps each ``.grad`` as autograd allocated it until the unit's backward ends, then fills a bucket.

    The bucket is allocated last, after the unit's activations and gathered parameters have been freed.
    """

    def __init__(self, unit: FlatUnit, pool: "BucketPool") -> None:
        super().__init__(unit)
        self._pool = pool

    def take_bucket(self) -> torch.Tensor:
        """Return a bucket with all gradients; the caller reduces it and returns it to the pool."""
        layout = self._unit.layout
        bucket = self._pool.acquire(layout.padded)
        bucket[layout.numel :].zero_()
        for view, parameter in zip(self._unit.views(bucket), self._unit.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
                parameter.grad = None
        return bucket


class BucketedGradients(UnitGradients):
    """Reduce-scatters a bucket with all gradients of a unit."""

    def __init__(
        self,
        unit: FlatUnit,
        full_grads: FullGrads,
        context: ReductionContext,
        *,
        take_bucket: Callable[[], torch.Tensor],
        pool: "BucketPool",
    ) -> None:
        """Reduce the buckets of ``full_grads``, which its method ``take_bucket`` returns."""
        super().__init__(unit, full_grads, context)
        self._take_bucket = take_bucket
        self._pool = pool

    def launch(self, reduction_pass: ReductionPass) -> Handle:
        """Launch the reduce-scatter into the shard, or add its result to the earlier micro-batches'."""
        bucket = self._take_bucket()
        self.average(bucket, reduction_pass)
        mean = self.mean_shard if reduction_pass.first else bucket[self.unit.shard_range]
        handle = self._comm.reduce_scatter(mean, bucket, self.unit.name)
        if not reduction_pass.first:
            handle = ChainedHandle(handle, partial(self.mean_shard.add_, mean))
        self._pool.lend(bucket, handle)
        return handle


class ChainedHandle:
    """Runs a callback once, in the first ``wait()``, after the collective is complete."""

    def __init__(self, handle: Handle, on_complete: Callable[[], object]) -> None:
        self._handle = handle
        self._on_complete: Callable[[], object] | None = on_complete

    def wait(self) -> None:
        """Wait for the collective, and run the callback."""
        if self._on_complete is not None:
            self._handle.wait()
            on_complete, self._on_complete = self._on_complete, None
            on_complete()


class BucketPool:
    """Buckets that are filled with gradients, reduced, and reused; at most ``limit`` are in flight.

    They are freed after each backward pass, or they are the first parts of chunks that are allocated once.
    """

    def __init__(
        self, limit: int, dtype: torch.dtype, device: torch.device, chunk_sizes: Sequence[int] = ()
    ) -> None:
        """Allocate chunks of these sizes, in elements; without any, nothing is kept."""
        self._limit = limit
        self._dtype = dtype
        self._device = device
        self._chunks = [self._allocate(size) for size in chunk_sizes]
        self._free = list(self._chunks)
        self._in_flight: deque[tuple[torch.Tensor, Handle]] = deque()

    def acquire(self, elements: int) -> torch.Tensor:
        """Return an uninitialized bucket of that size; may wait for the oldest reduction."""
        while len(self._in_flight) >= self._limit:
            self._wait_oldest()
        if not self._chunks:
            for index, bucket in enumerate(self._free):
                if bucket.numel() == elements:
                    return self._free.pop(index)
            self._free.clear()  # otherwise the pool would end up with a bucket of every unit's size
            return self._allocate(elements)
        while not (fitting := [chunk for chunk in self._free if chunk.numel() >= elements]):
            if not self._in_flight:  # more units are in flight than the chunks were made for
                fitting = [self._allocate(elements)]
                self._chunks += fitting
                break
            self._wait_oldest()
        smallest = min(fitting, key=torch.Tensor.numel)
        self._free = [chunk for chunk in self._free if chunk is not smallest]
        return smallest[:elements]

    def lend(self, bucket: torch.Tensor, handle: Handle) -> None:
        """Reserve the bucket until the reduction behind ``handle`` is complete."""
        self._in_flight.append((bucket, handle))

    def give_back(self, bucket: torch.Tensor) -> None:
        """Return a bucket that no reduction uses to the pool."""
        chunks = (chunk for chunk in self._chunks if chunk.data_ptr() == bucket.data_ptr())
        self._free.append(next(chunks, bucket))

    def drain(self) -> None:
        """Wait for all reductions and free all buckets."""
        while self._in_flight:
            self._wait_oldest()
        self._free = list(self._chunks)

    def _allocate(self, elements: int) -> torch.Tensor:
        return torch.empty(elements, dtype=self._dtype, device=self._device)

    def _wait_oldest(self) -> None:
        bucket, handle = self._in_flight.popleft()
        handle.wait()
        self.give_back(bucket)
