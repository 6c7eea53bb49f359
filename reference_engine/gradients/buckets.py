"""Buffers that gradients pass through on their way to a reduction.

Few are in flight at a time: whoever needs one more waits for the oldest reduction.  Without that bound a
slow network would keep every unit's whole gradient alive until the end of the backward.
"""

from collections import deque

import torch

from zprof.reference_engine.comm import Handle


class BucketPool:
    """Buckets of a backward pass; after :meth:`drain` the pool owns no memory."""

    def __init__(self, limit: int) -> None:
        """Allow ``limit`` buckets in flight."""
        self._limit = limit
        self._in_flight: deque[tuple[torch.Tensor, Handle]] = deque()
        self._spare: list[torch.Tensor] = []

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """A bucket of the size, dtype and device of ``like``; its content is arbitrary."""
        while len(self._in_flight) >= self._limit:
            self._settle_oldest()
        for index, bucket in enumerate(self._spare):
            if bucket.shape == like.shape and bucket.dtype == like.dtype and bucket.device == like.device:
                return self._spare.pop(index)
        return torch.empty_like(like)

    def lend(self, bucket: torch.Tensor, handle: Handle) -> None:
        """The bucket is in use until ``handle`` was waited for."""
        self._in_flight.append((bucket, handle))

    def drain(self) -> None:
        """Wait for all reductions and free all buckets."""
        while self._in_flight:
            self._settle_oldest()
        self._spare.clear()

    def _settle_oldest(self) -> None:
        bucket, handle = self._in_flight.popleft()
        handle.wait()
        self._spare.append(bucket)
