"""Buffers that gradients pass through on their way to a reduction.

Few are in flight at a time: whoever needs one more waits for the oldest reduction.  Without that bound a
slow network would keep every unit's whole gradient alive until the end of the backward.
"""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

import torch

from zprof.reference_engine.comm import Handle


class Memory(Protocol):
    """Where buckets come from."""

    def take(self, elements: int) -> torch.Tensor | None:
        """A bucket of that size and arbitrary content; None: not before another was given back."""

    def allocate(self, elements: int) -> torch.Tensor:
        """A new one, whatever there is."""

    def give_back(self, bucket: torch.Tensor) -> None:
        """It is not used any more."""

    def reset(self) -> None:
        """None is used any more."""


class FreshMemory:
    """Memory for the length of a backward pass."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._spare: list[torch.Tensor] = []

    def take(self, elements: int) -> torch.Tensor | None:
        """See :class:`Memory`."""
        for index, bucket in enumerate(self._spare):
            if bucket.numel() == elements:
                return self._spare.pop(index)
        self._spare.clear()  # or the pool would end up with a bucket of every unit's size
        return self.allocate(elements)

    def allocate(self, elements: int) -> torch.Tensor:
        """See :class:`Memory`."""
        return torch.empty(elements, dtype=self._dtype, device=self._device)

    def give_back(self, bucket: torch.Tensor) -> None:
        """See :class:`Memory`."""
        self._spare.append(bucket)

    def reset(self) -> None:
        """Own no memory."""
        self._spare.clear()


class KeptMemory:
    """Chunks that are allocated once and stay; a bucket is the begin of one."""

    def __init__(self, sizes: Iterable[int], dtype: torch.dtype, device: torch.device) -> None:
        """Allocate chunks of these numbers of elements."""
        self._chunks = [torch.empty(size, dtype=dtype, device=device) for size in sizes]
        self._free = list(self._chunks)
        self._dtype = dtype
        self._device = device

    def take(self, elements: int) -> torch.Tensor | None:
        """See :class:`Memory`.  The smallest chunk that is large enough."""
        fitting = [chunk for chunk in self._free if chunk.numel() >= elements]
        if not fitting:
            return None
        smallest = min(fitting, key=torch.Tensor.numel)
        self._free = [chunk for chunk in self._free if chunk is not smallest]
        return smallest[:elements]

    def allocate(self, elements: int) -> torch.Tensor:
        """One chunk more, for a backward that has more units under way than their nesting says; it stays."""
        chunk = torch.empty(elements, dtype=self._dtype, device=self._device)
        self._chunks.append(chunk)
        return chunk[:]

    def give_back(self, bucket: torch.Tensor) -> None:
        """See :class:`Memory`."""
        self._free += [chunk for chunk in self._chunks if chunk.data_ptr() == bucket.data_ptr()]

    def reset(self) -> None:
        """All chunks are free."""
        self._free = list(self._chunks)


class BucketPool:
    """Buckets that are filled, lent to a reduction, and used again."""

    def __init__(self, memory: Memory, limit: int) -> None:
        """Allow ``limit`` buckets in flight."""
        self._memory = memory
        self._limit = limit
        self._in_flight: deque[tuple[torch.Tensor, Handle]] = deque()

    def take(self, elements: int) -> torch.Tensor:
        """A bucket of that size; its content is arbitrary."""
        while len(self._in_flight) >= self._limit:
            self._settle_oldest()
        bucket = self._memory.take(elements)
        while bucket is None and self._in_flight:
            self._settle_oldest()
            bucket = self._memory.take(elements)
        return self._memory.allocate(elements) if bucket is None else bucket

    def lend(self, bucket: torch.Tensor, handle: Handle) -> None:
        """The bucket is in use until ``handle`` was waited for."""
        self._in_flight.append((bucket, handle))

    def give_back(self, bucket: torch.Tensor) -> None:
        """The bucket is not used any more, by no reduction either."""
        self._memory.give_back(bucket)

    def drain(self) -> None:
        """Wait for all reductions; all buckets are free."""
        while self._in_flight:
            self._settle_oldest()
        self._memory.reset()

    def _settle_oldest(self) -> None:
        bucket, handle = self._in_flight.popleft()
        handle.wait()
        self._memory.give_back(bucket)
