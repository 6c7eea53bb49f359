"""Buffers that gradients pass through on their way to a reduction (reference engine, BucketPool).

At most ``limit`` are in flight: whoever needs one more waits for the oldest.  A buffer that is back is used
again where the size is the same, else it goes before another is allocated.
"""

from collections import deque

from zprof.planner.memory.walk.ledger import Ledger
from zprof.planner.memory.walk.slots import REDUCED, SCRATCH


class FreshPool:
    """Buffers for the length of a backward pass."""

    def __init__(self, ledger: Ledger, limit: int) -> None:
        self._ledger = ledger
        self._limit = limit
        self._in_flight: deque[tuple[int, int]] = deque()
        self._spare: list[int] = []

    def take(self, size_bytes: int) -> None:
        """A buffer of that size."""
        while len(self._in_flight) >= self._limit:
            self._settle()
        if size_bytes in self._spare:
            self._spare.remove(size_bytes)
            return
        self._ledger.add(REDUCED, -sum(self._spare))
        self._spare.clear()
        self._ledger.add(REDUCED, size_bytes)

    def lend(self, size_bytes: int, copy_bytes: int) -> None:
        """It is reduced; the backend copies it for as long."""
        self._ledger.add(SCRATCH, copy_bytes)
        self._in_flight.append((size_bytes, copy_bytes))

    def drain(self) -> None:
        """All reductions are over, and the buffers freed."""
        while self._in_flight:
            self._settle()
        self._ledger.add(REDUCED, -sum(self._spare))
        self._spare.clear()

    def _settle(self) -> None:
        size_bytes, copy_bytes = self._in_flight.popleft()
        self._ledger.add(SCRATCH, -copy_bytes)
        self._spare.append(size_bytes)


class KeptPool:
    """Buffers that were allocated once, as many as may be in flight."""

    def __init__(self, ledger: Ledger, limit: int) -> None:
        self._ledger = ledger
        self._limit = limit
        self._in_flight: deque[int] = deque()

    def take(self, size_bytes: int) -> None:
        """One of them."""
        while len(self._in_flight) >= self._limit:
            self._ledger.add(SCRATCH, -self._in_flight.popleft())

    def lend(self, size_bytes: int, copy_bytes: int) -> None:
        """It is reduced; the backend copies it for as long."""
        self._ledger.add(SCRATCH, copy_bytes)
        self._in_flight.append(copy_bytes)

    def drain(self) -> None:
        """All reductions are over."""
        while self._in_flight:
            self._ledger.add(SCRATCH, -self._in_flight.popleft())


Pool = FreshPool | KeptPool
