"""Synthetic CUDA memory snapshots with known truth: a small caching allocator that keeps a history.

It rounds, splits and merges as torch's does (512 bytes; small pool up to 1 MiB in segments of 2 MiB; large
ones in 20 MiB or multiples of 2 MiB; in the large pool a rest of up to 1 MiB is not split off), keeps streams
and pools apart, lets blocks await their free, maps and unmaps expandable segments, and loses the oldest
entries of a short ring.  ``truth`` has the state after each entry that was recorded.
"""

import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNIT = 512
MIB = 1 << 20
SMALL = MIB
START_US = 1_760_000_000_000_000
FREE, ACTIVE, AWAITING = "inactive", "active_allocated", "active_pending_free"


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    state: str = FREE
    frames: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Segment:
    address: int
    small: bool
    stream: int
    pool: tuple[int, int]
    expandable: bool
    blocks: list[Block]

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    @property
    def end(self) -> int:
        return self.address + self.size

    def merge(self) -> None:
        """Join free neighbours."""
        joined: list[Block] = []
        for block in self.blocks:
            if joined and joined[-1].state == block.state == FREE:
                joined[-1] = Block(joined[-1].address, joined[-1].size + block.size)
            else:
                joined.append(block)
        self.blocks = joined


@dataclass(frozen=True)
class Truth:
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


class Allocator:
    """One device.  Nothing is recorded before ``begin_history``."""

    def __init__(
        self,
        device: int = 0,
        *,
        expandable: bool = False,
        base: int = 0x7F00_0000_0000,
        max_split: int | None = None,
        divisions: int = 0,
    ) -> None:
        self.device, self.expandable = device, expandable
        self.max_split, self.divisions = max_split, divisions
        self.segments: list[Segment] = []
        self.entries: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.truth: list[Truth] = []
        self.now_us = START_US
        self._next = base
        self._holes: list[tuple[int, int]] = []
        self._limit: int | None = 0

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
        found = self._find(size, stream, pool) or self._grow(size, stream, pool)
        segment, block = found
        rest = block.size - size
        may_split = self.max_split is None or segment.small or segment.expandable
        is_whole = not may_split and size >= (self.max_split or 0)
        if not is_whole and (rest >= UNIT if segment.small or segment.expandable else rest > MIB):
            at = segment.blocks.index(block)
            segment.blocks.insert(at + 1, Block(block.address + size, rest))
            block.size = size
        block.state, block.requested, block.frames = ACTIVE, requested, list(frames or [])
        self._record(
            "alloc", block.address, requested, stream, pool,
            frames=block.frames, user_metadata=tag, compile_context=compile_context,
        )  # fmt: skip
        return block.address

    def free(self, address: int, *, awaiting: bool = False) -> None:
        """Give a block back; with ``awaiting`` another stream still uses it until ``complete``."""
        segment, block = self._at(address, ACTIVE)
        block.state = AWAITING
        self._record("free_requested", address, block.requested, segment.stream, segment.pool)
        if not awaiting:
            self.complete(address)

    def complete(self, address: int) -> None:
        segment, block = self._at(address, AWAITING)
        requested, block.state, block.requested, block.frames = block.requested, FREE, 0, []
        segment.merge()
        self._record("free_completed", address, requested, segment.stream, segment.pool)

    def empty_cache(self) -> None:
        """Give wholly free segments, or free pages of expandable ones, back to the device."""
        for segment in list(self.segments):
            if segment.expandable:
                self._unmap(segment)
            elif all(block.state == FREE for block in segment.blocks):
                self.segments.remove(segment)
                self._holes.append((segment.address, segment.size))
                self._record("segment_free", segment.address, segment.size, segment.stream, segment.pool)

    def oom(self, requested: int, device_free: int) -> None:
        self._record("oom", device_free, requested, 0, (0, 0))

    def annotate(self, name: str, stage: str) -> None:
        self.annotations.append({"name": name, "stage": stage, "device": self.device, "time_us": self.now_us})

    def addresses(self, state: str = ACTIVE) -> list[int]:
        return [b.address for segment in self.segments for b in segment.blocks if b.state == state]

    def state(self) -> Truth:
        blocks = [block for segment in self.segments for block in segment.blocks]
        return Truth(
            live=frozenset((b.address, b.requested, b.size) for b in blocks if b.state == ACTIVE),
            awaiting=frozenset((b.address, b.requested, b.size) for b in blocks if b.state == AWAITING),
            held=tuple(sorted((segment.address, segment.size) for segment in self.segments)),
        )

    def _round(self, requested: int) -> int:
        """Round up to 512 bytes, or to one of ``divisions`` sizes between two powers of two."""
        if self.divisions < 2 or requested <= UNIT * self.divisions:
            return max(UNIT, -(-requested // UNIT) * UNIT)
        power = 1
        while power * 2 <= requested:
            power *= 2
        return next(
            size
            for k in range(self.divisions + 1)
            if (size := power + k * power // self.divisions) >= requested
        )

    def _fits(self, block: Block, size: int) -> bool:
        """Blocks from ``max_split`` on serve only requests from there on, and those of about their size."""
        if self.max_split is None or self.expandable or size <= SMALL:
            return True
        if size < self.max_split:
            return block.size < self.max_split
        return block.size < size + 20 * MIB

    def _find(self, size: int, stream: int, pool: tuple[int, int]) -> tuple[Segment, Block] | None:
        fits = [
            (block.size, block.address, segment, block)
            for segment in self.segments
            if (segment.small, segment.stream, segment.pool) == (size <= SMALL, stream, pool)
            for block in segment.blocks
            if block.state == FREE and block.size >= size and self._fits(block, size)
        ]
        return min(fits, key=lambda fit: fit[:2])[2:] if fits else None

    def _grow(self, size: int, stream: int, pool: tuple[int, int]) -> tuple[Segment, Block]:
        small = size <= SMALL
        page = 2 * MIB if small or size >= 10 * MIB else 20 * MIB
        wanted = -(-size // page) * page
        if not self.expandable:
            address = self._place(wanted)
            segment = Segment(address, small, stream, pool, False, [Block(address, wanted)])
            self.segments.append(segment)
            self._record("segment_alloc", address, wanted, stream, pool)
            return segment, segment.blocks[0]
        address = self._place(wanted, gap=0)
        self._map(Segment(address, small, stream, pool, True, [Block(address, wanted)]))
        self._record("segment_map", address, wanted, stream, pool)
        found = self._find(size, stream, pool)
        assert found is not None
        return found

    def _place(self, wanted: int, gap: int = 2 * MIB) -> int:
        for hole in self._holes:
            if hole[1] >= wanted:
                self._holes.remove(hole)
                if hole[1] > wanted:
                    self._holes.append((hole[0] + wanted, hole[1] - wanted))
                return hole[0]
        address = self._next
        self._next += wanted + gap
        return address

    def _map(self, new: Segment) -> None:
        """Join newly mapped pages to the mapped neighbours of the same kind."""
        kind = (new.small, new.stream, new.pool)
        for other in list(self.segments):
            if (other.small, other.stream, other.pool) != kind or not other.expandable:
                continue
            if other.end == new.address or new.end == other.address:
                self.segments.remove(other)
                first, second = (other, new) if other.end == new.address else (new, other)
                new = Segment(first.address, *kind, True, first.blocks + second.blocks)
        new.merge()
        self.segments.append(new)

    def _unmap(self, segment: Segment) -> None:
        """Unmap the whole 2 MiB pages inside its free blocks."""
        for block in [b for b in segment.blocks if b.state == FREE]:
            low = -(-block.address // (2 * MIB)) * (2 * MIB)
            high = (block.address + block.size) // (2 * MIB) * (2 * MIB)
            if high <= low:
                continue
            owner = next(s for s in self.segments if any(b is block for b in s.blocks))
            at = next(i for i, b in enumerate(owner.blocks) if b is block)
            left = owner.blocks[:at] + _block(block.address, low)
            right = _block(high, block.address + block.size) + owner.blocks[at + 1 :]
            self.segments.remove(owner)
            kind = (owner.small, owner.stream, owner.pool, True)
            self.segments += [Segment(part[0].address, *kind, part) for part in (left, right) if part]
            self._holes.append((low, high - low))
            self._record("segment_unmap", low, high - low, owner.stream, owner.pool)

    def _at(self, address: int, state: str) -> tuple[Segment, Block]:
        for segment in self.segments:
            for block in segment.blocks:
                if block.address == address and block.state == state:
                    return segment, block
        raise AssertionError(f"no {state} block at {address}")

    def _record(
        self, action: str, address: int, size: int, stream: int, pool: tuple[int, int], **more: Any
    ) -> None:
        if self._limit == 0:
            return
        where = {"device_free": address} if action == "oom" else {"addr": address}
        entry = {"action": action, **where, "size": size, "stream": stream, "time_us": self.now_us}
        self.entries.append(entry | {"frames": [], "pool_id": pool} | more)
        self.truth.append(self.state())
        if self._limit is not None:
            del self.entries[: -self._limit], self.truth[: -self._limit]


def _block(low: int, high: int) -> list[Block]:
    return [Block(low, high - low)] if high > low else []


def snapshot_of(*allocators: Allocator, awaiting: str = AWAITING) -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot`` would give; ``awaiting`` is the spelling of that state."""
    traces: list[list[dict[str, Any]]] = [[] for _ in range(1 + max(a.device for a in allocators))]
    for allocator in allocators:
        traces[allocator.device] = list(allocator.entries)
    return {
        "segments": [_segment(a.device, s, awaiting) for a in allocators for s in a.segments],
        "device_traces": traces,
        "external_annotations": [note for a in allocators for note in a.annotations],
        "allocator_settings": _settings(allocators[0]),
    }


def _settings(allocator: Allocator) -> dict[str, Any]:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1 if allocator.max_split is None else allocator.max_split,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": allocator.expandable,
        "roundup_power2_divisions": {str(1 << k): allocator.divisions for k in range(16)},
    }


def _segment(device: int, segment: Segment, awaiting: str) -> dict[str, Any]:
    active = [block for block in segment.blocks if block.state != FREE]
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(block.size for block in active if block.state == ACTIVE),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": segment.pool,
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": awaiting if block.state == AWAITING else block.state,
                "frames": block.frames,
            }
            for block in segment.blocks
        ],
    }


def frames(*functions: str, file: str = "train.py") -> list[dict[str, Any]]:
    """A stack, innermost first."""
    return [{"filename": file, "line": 10 + i, "name": name} for i, name in enumerate(functions)]


def write_snapshot(path: Path, snapshot: object, protocol: int = 4) -> Path:
    """As ``torch.cuda.memory._dump_snapshot`` writes it."""
    path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
    return path


def random_history(
    seed: int,
    steps: int,
    *,
    device: int = 0,
    ring: int | None = None,
    max_split: int | None = None,
    divisions: int = 0,
) -> Allocator:
    """A random history: some blocks before it begins, then allocations, frees, delays and cache flushes."""
    chance = random.Random(seed)
    allocator = Allocator(device, expandable=chance.random() < 0.4, max_split=max_split, divisions=divisions)
    stacks = [frames(f"layer{i}", "forward", "main") for i in range(4)]
    begin = chance.randrange(steps) if chance.random() < 0.5 else 0
    for step in range(steps):
        if step == begin:
            allocator.begin_history(ring)
        allocator.tick(chance.choice([0, 0, 1, 250]))
        _act(allocator, chance, stacks)
    return allocator


def _act(allocator: Allocator, chance: random.Random, stacks: list[list[dict[str, Any]]]) -> None:
    live, waiting, dice = allocator.addresses(), allocator.addresses(AWAITING), chance.random()
    if waiting and dice < 0.15:
        allocator.complete(chance.choice(waiting))
    elif live and dice < 0.45:
        allocator.free(chance.choice(live), awaiting=chance.random() < 0.3)
    elif dice < 0.48:
        allocator.empty_cache()
    elif dice < 0.5:
        allocator.oom(1 << 40, device_free=chance.randrange(MIB))
    else:
        allocator.alloc(
            chance.choice([1, 100, 512, 4000, 300_000, MIB, MIB + 1, 3_000_000, 12_000_000, 40_000_000]),
            stream=chance.choice([0, 0, 7]),
            pool=chance.choice([(0, 0), (0, 0), (0, 1)]),
            frames=chance.choice(stacks),
            tag=chance.choice(["", "", "activations"]),
        )
