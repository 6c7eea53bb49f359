"""A simulated CUDA caching allocator that keeps a history, as ``torch.cuda.memory._snapshot`` returns it.

It rounds, splits and merges as torch's does (512 bytes; small pool up to 1 MiB in segments of 2 MiB; large
ones in 20 MiB or multiples of 2 MiB; in the large pool a rest of up to 1 MiB is not split off), keeps streams
and pools apart, lets blocks await their free, maps and unmaps expandable segments, and loses the oldest
entries of a short ring.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

from benchmarks.snapshot_truth.segments import (
    ACTIVE,
    AWAITING,
    FREE,
    MIB,
    SMALL,
    UNIT,
    AllocatorState,
    SimulatedBlock,
    SimulatedSegment,
    join_blocks,
)

START_US = 1_760_000_000_000_000


class Allocator:
    """One device.  Nothing is recorded before ``begin_history``.

    ``states`` has the state after each recorded entry; ``keep_states=False`` leaves it empty, as each costs a
    walk over all blocks.  ``reserved_bytes`` is kept up to date.
    """

    def __init__(
        self,
        device: int = 0,
        *,
        expandable: bool = False,
        base: int = 0x7F00_0000_0000,
        keep_states: bool = True,
        max_split: int | None = None,
        divisions: int = 0,
    ) -> None:
        self.device, self.expandable = device, expandable
        self.max_split, self.divisions = max_split, divisions
        self.segments: list[SimulatedSegment] = []
        self.entries: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.states: list[AllocatorState] = []
        self.now_us = START_US
        self.reserved_bytes = 0
        self._keep_states = keep_states
        self._next = base
        self._holes: list[tuple[int, int]] = []
        self._limit: int | None = 0
        self._used: dict[int, SimulatedBlock] = {}
        #: Free blocks of each kind, ordered by size, then address.
        self._free: dict[tuple[bool, int, tuple[int, int]], list[tuple[int, int]]] = {}
        self._free_blocks: dict[int, SimulatedBlock] = {}

    def begin_history(self, max_entries: int | None = None) -> None:
        self._limit = max_entries

    def tick(self, microseconds: int) -> None:
        self.now_us += microseconds

    def alloc(
        self,
        requested: int,
        *,
        stream: int = 0,
        pool: tuple[int, int] = (0, 0),
        frames: Sequence[dict[str, Any]] | None = None,
        tag: str = "",
        compile_context: str = "N/A",
    ) -> int:
        """The address of a new block."""
        size = self._round(requested)
        block = self._find(size, stream, pool) or self._grow(size, stream, pool)
        self._remove_free(block)
        segment, rest = block.segment, block.size - size
        may_split = self.max_split is None or segment.small or segment.expandable
        is_whole = not may_split and size >= (self.max_split or 0)
        if not is_whole and (rest >= UNIT if segment.small or segment.expandable else rest > MIB):
            remainder = SimulatedBlock(block.address + size, rest, segment, previous=block, next=block.next)
            if block.next is not None:
                block.next.previous = remainder
            block.next, block.size = remainder, size
            self._add_free(remainder)
        block.state, block.requested = ACTIVE, requested
        block.frames = [] if frames is None else frames
        self._used[block.address] = block
        self._record(
            "alloc", block.address, requested, stream, pool,
            frames=block.frames, user_metadata=tag, compile_context=compile_context,
        )  # fmt: skip
        return block.address

    def free(self, address: int, *, awaiting: bool = False) -> None:
        """Give a block back; with ``awaiting`` another stream still uses it until ``complete``."""
        block = self._get_used(address, ACTIVE)
        block.state = AWAITING
        self._record("free_requested", address, block.requested, block.segment.stream, block.segment.pool)
        if not awaiting:
            self.complete(address)

    def complete(self, address: int) -> None:
        block = self._get_used(address, AWAITING)
        segment, requested = block.segment, block.requested
        block.state, block.requested, block.frames = FREE, 0, []
        del self._used[address]
        for neighbour in (block.previous, block.next):
            if neighbour is not None and neighbour.state == FREE:
                self._remove_free(neighbour)
                block = join_blocks(
                    *((neighbour, block) if neighbour is block.previous else (block, neighbour))
                )
        self._add_free(block)
        self._record("free_completed", address, requested, segment.stream, segment.pool)

    def empty_cache(self) -> None:
        """Give wholly free segments, or free pages of expandable ones, back to the device."""
        for segment in list(self.segments):
            first = segment.first
            if segment.expandable:
                self._unmap(segment)
            elif first is not None and first.state == FREE and first.next is None:
                self._remove_free(first)
                self.segments.remove(segment)
                self.reserved_bytes -= segment.size
                self._holes.append((segment.address, segment.size))
                self._record("segment_free", segment.address, segment.size, segment.stream, segment.pool)

    def oom(self, requested: int, device_free: int) -> None:
        self._record("oom", device_free, requested, 0, (0, 0))

    def annotate(self, name: str, stage: str) -> None:
        self.annotations.append({"name": name, "stage": stage, "device": self.device, "time_us": self.now_us})

    def addresses(self, state: str = ACTIVE) -> list[int]:
        return [b.address for segment in self.segments for b in segment.blocks() if b.state == state]

    def state(self) -> AllocatorState:
        blocks = self._used.values()
        return AllocatorState(
            live=frozenset((b.address, b.requested, b.size) for b in blocks if b.state == ACTIVE),
            awaiting=frozenset((b.address, b.requested, b.size) for b in blocks if b.state == AWAITING),
            held=tuple(sorted((segment.address, segment.size) for segment in self.segments)),
        )

    def _find(self, size: int, stream: int, pool: tuple[int, int]) -> SimulatedBlock | None:
        fits = self._free.get((size <= SMALL, stream, pool), [])
        at = bisect_left(fits, (size, 0))
        return self._free_blocks[fits[at][1]] if at < len(fits) and self._fits(fits[at][0], size) else None

    def _round(self, requested: int) -> int:
        """Round up to 512 bytes, or to one of ``divisions`` sizes between two powers of two."""
        if self.divisions < 2 or requested <= UNIT * self.divisions:
            return max(UNIT, -(-requested // UNIT) * UNIT)
        power = 1 << (requested.bit_length() - 1)
        steps = (power + k * power // self.divisions for k in range(self.divisions + 1))
        return next(size for size in steps if size >= requested)

    def _fits(self, block_bytes: int, size: int) -> bool:
        """Blocks from ``max_split`` on serve only requests from there on, and those of about their size."""
        if self.max_split is None or self.expandable or size <= SMALL:
            return True
        if size < self.max_split:
            return block_bytes < self.max_split
        return block_bytes < size + 20 * MIB

    def _add_free(self, block: SimulatedBlock) -> None:
        insort(self._free.setdefault(block.segment.kind, []), (block.size, block.address))
        self._free_blocks[block.address] = block

    def _remove_free(self, block: SimulatedBlock) -> None:
        fits = self._free[block.segment.kind]
        del fits[bisect_left(fits, (block.size, block.address))]
        del self._free_blocks[block.address]

    def _grow(self, size: int, stream: int, pool: tuple[int, int]) -> SimulatedBlock:
        small = size <= SMALL
        page = 2 * MIB if small or size >= 10 * MIB else 20 * MIB
        wanted = -(-size // page) * page
        address = self._place(wanted, gap=0 if self.expandable else 2 * MIB)
        segment = SimulatedSegment(address, wanted, small, stream, pool, self.expandable)
        segment.first = SimulatedBlock(address, wanted, segment)
        self._add_free(segment.first)
        self.reserved_bytes += wanted
        if self.expandable:
            self._map(segment)
        else:
            self.segments.append(segment)
        self._record("segment_map" if self.expandable else "segment_alloc", address, wanted, stream, pool)
        if not self.expandable:
            return segment.first  # a new segment serves its request whatever its size
        found = self._find(size, stream, pool)
        assert found is not None
        return found

    def _place(self, wanted: int, gap: int) -> int:
        for hole in self._holes:
            if hole[1] >= wanted:
                self._holes.remove(hole)
                if hole[1] > wanted:
                    self._holes.append((hole[0] + wanted, hole[1] - wanted))
                return hole[0]
        address = self._next
        self._next += wanted + gap
        return address

    def _map(self, new: SimulatedSegment) -> None:
        """Join newly mapped pages to the mapped neighbours of the same kind."""
        for other in list(self.segments):
            if (
                other.expandable
                and other.kind == new.kind
                and (other.end == new.address or new.end == other.address)
            ):
                self.segments.remove(other)
                new = self._join_segments(*((other, new) if other.end == new.address else (new, other)))
        self.segments.append(new)

    def _join_segments(self, low: SimulatedSegment, high: SimulatedSegment) -> SimulatedSegment:
        *_, last = low.blocks()
        first = high.first
        assert first is not None
        for block in high.blocks():
            block.segment = low
        last.next, first.previous = first, last
        low.size += high.size
        if last.state == first.state == FREE:
            self._remove_free(last)
            self._remove_free(first)
            self._add_free(join_blocks(last, first))
        return low

    def _unmap(self, segment: SimulatedSegment) -> None:
        """Unmap the whole 2 MiB pages inside its free blocks."""
        for block in [b for b in segment.blocks() if b.state == FREE]:
            low = -(-block.address // (2 * MIB)) * (2 * MIB)
            high = block.end // (2 * MIB) * (2 * MIB)
            if high > low:
                self._unmap_pages(block, low, high)

    def _unmap_pages(self, block: SimulatedBlock, low: int, high: int) -> None:
        """Split the segment at these pages of a free block."""
        owner = block.segment
        self._remove_free(block)
        self.segments.remove(owner)
        blocks = list(owner.blocks())
        at = blocks.index(block)
        left, right = blocks[:at], blocks[at + 1 :]
        before = [SimulatedBlock(block.address, low - block.address, owner)] if low > block.address else []
        after = [SimulatedBlock(high, block.end - high, owner)] if block.end > high else []
        for part in (left + before, after + right):
            if part:
                self._make_segment(owner, part)
        for rest in before + after:
            self._add_free(rest)
        self.reserved_bytes -= high - low
        self._holes.append((low, high - low))
        self._record("segment_unmap", low, high - low, owner.stream, owner.pool)

    def _make_segment(self, owner: SimulatedSegment, part: list[SimulatedBlock]) -> None:
        """Add a segment of these blocks, which were a part of ``owner``."""
        low, high = part[0].address, part[-1].end
        piece = SimulatedSegment(low, high - low, owner.small, owner.stream, owner.pool, True, part[0])
        for block, previous, following in zip(part, [None, *part], [*part[1:], None], strict=False):
            block.segment, block.previous, block.next = piece, previous, following
        self.segments.append(piece)

    def _get_used(self, address: int, state: str) -> SimulatedBlock:
        block = self._used.get(address)
        assert block is not None, f"no block at {address}"
        assert block.state == state, f"the block at {address} is {block.state}, not {state}"
        return block

    def _record(
        self, action: str, address: int, size: int, stream: int, pool: tuple[int, int], **more: Any
    ) -> None:
        if self._limit == 0:
            return
        where = {"device_free": address} if action == "oom" else {"addr": address}
        entry = {"action": action, **where, "size": size, "stream": stream, "time_us": self.now_us}
        self.entries.append(entry | {"frames": [], "pool_id": pool} | more)
        if self._keep_states:
            self.states.append(self.state())
        if self._limit is not None:
            del self.entries[: -self._limit], self.states[: -self._limit]
