"""Segments of the simulated allocator with their blocks, and its state after an entry."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

UNIT = 512
MIB = 1 << 20
SMALL = MIB
FREE, ACTIVE, AWAITING = "inactive", "active_allocated", "active_pending_free"


@dataclass(eq=False, slots=True)
class SimulatedBlock:
    """A piece of a segment; neighbours in the segment are linked."""

    address: int
    size: int
    segment: "SimulatedSegment"
    requested: int = 0
    state: str = FREE
    frames: Sequence[dict[str, Any]] = field(default_factory=list)
    previous: "SimulatedBlock | None" = None
    next: "SimulatedBlock | None" = None

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(eq=False, slots=True)
class SimulatedSegment:
    """Reserved memory, or a run of mapped pages of an expandable segment."""

    address: int
    size: int
    small: bool
    stream: int
    pool: tuple[int, int]
    expandable: bool
    first: SimulatedBlock | None = None

    @property
    def kind(self) -> tuple[bool, int, tuple[int, int]]:
        """What a block must have in common with a request to serve it."""
        return self.small, self.stream, self.pool

    @property
    def end(self) -> int:
        return self.address + self.size

    def blocks(self) -> Iterator[SimulatedBlock]:
        block = self.first
        while block is not None:
            yield block
            block = block.next


@dataclass(frozen=True, slots=True)
class AllocatorState:
    """The allocator after one entry: (address, requested, block) of what is in use and what awaits its
    free, and (address, size) of what is held."""

    live: frozenset[tuple[int, int, int]]
    awaiting: frozenset[tuple[int, int, int]]
    held: tuple[tuple[int, int], ...]

    @property
    def requested_bytes(self) -> int:
        return sum(requested for _, requested, _ in self.live)

    @property
    def allocated_bytes(self) -> int:
        """torch.cuda.memory_allocated."""
        return sum(size for _, _, size in self.live)

    @property
    def reserved_bytes(self) -> int:
        """torch.cuda.memory_reserved."""
        return sum(size for _, size in self.held)


def join_blocks(low: SimulatedBlock, high: SimulatedBlock) -> SimulatedBlock:
    """Return one free block in the place of two neighbours."""
    low.size += high.size
    low.next = high.next
    if high.next is not None:
        high.next.previous = low
    low.state, low.requested, low.frames = FREE, 0, []
    return low
