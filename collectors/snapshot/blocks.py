"""Find the lives of blocks (which free ends which allocation) and how much of its segment each block took.

A block that is freed in the trace without an allocation in it was there when the history starts; so was a
block in use at the end without an allocation in the trace. So lives are exact from the first entry on, even
if a ring of limited length has lost what came before.

The allocator (``CUDACachingAllocator.cpp``) rounds a request up to 512 bytes, takes the front of a free
block, and splits the rest off if it is worth keeping: 512 bytes in the small pool (up to 1 MiB) and in
expandable segments, more than 1 MiB in the large pool. Free neighbors are always merged, so the free block at
an address reaches to the next block in use, or to the end of the segment:

    block = rounded             if free - rounded > 1 MiB
          = free                else (large pool; the rest goes to the block as well)

This is exact except for large blocks from before the history with more than 1 MiB free after them: theirs is
a lower bound.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from zprof.collectors.snapshot.columns import Integers
from zprof.collectors.snapshot.segments import NO_ENTRY, HeldBlocks, SegmentSpan
from zprof.collectors.snapshot.trace import DeviceTrace, TraceAction

#: No event: the block is still in use, or was there before the first entry.
NO_EVENT = -1
#: The free was requested before the first entry.
BEFORE_TRACE = -2


@dataclass(slots=True, kw_only=True)
class BlockLives:
    """One row per life, as indices into the trace's entries.

    ``entry``: its allocation, or, if that is not in the trace (``before``), the first event about it;
    ``NO_EVENT`` if only the segments list it: then ``held`` is its block there. ``requested``:
    free_requested. ``completed``: free_completed.
    """

    entry: list[int] = field(default_factory=list)
    before: list[bool] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    #: Allocations at an address whose previous life has no end in the trace.
    overlaps: int = 0
    #: Blocks in use by the trace that the segments lack, and those that they have with another size.
    not_held: int = 0
    resized: int = 0
    #: True if the trace lacks this kind of entry.
    requests_lost: bool = False
    completions_lost: bool = False

    def add(self, entry: int, *, before: bool, requested: int = NO_EVENT, completed: int = NO_EVENT) -> int:
        """Add a life and return its row."""
        self.entry.append(entry)
        self.before.append(before)
        self.requested.append(requested)
        self.completed.append(completed)
        self.held.append(NO_EVENT)
        return len(self.entry) - 1

    def arrays(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Return ``entry``, ``requested``, ``completed`` and ``held`` as arrays."""
        columns = (self.entry, self.requested, self.completed, self.held)
        first, second, third, fourth = (np.array(each, dtype=np.int64) for each in columns)
        return first, second, third, fourth


class BlockReplay:
    """Replays the entries of one device; ``open`` has the row of each block in use, by address."""

    def __init__(self, trace: DeviceTrace) -> None:
        self.lives = BlockLives()
        self.open: dict[int, int] = {}
        self._trace = trace
        self._no_completions = not trace.has(TraceAction.FREE_COMPLETED)

    def run(self) -> None:
        """Replay all entries, in order."""
        handlers = {
            TraceAction.ALLOC: self._alloc,
            TraceAction.FREE_REQUESTED: self._request,
            TraceAction.FREE_COMPLETED: self._complete,
        }
        wanted = np.flatnonzero(np.isin(self._trace.action, list(handlers)))
        actions = self._trace.action[wanted].tolist()
        addresses = self._trace.address[wanted].tolist()
        for index, action, address in zip(wanted.tolist(), actions, addresses, strict=True):
            handlers[action](index, address)

    def _alloc(self, index: int, address: int) -> None:
        row = self.open.get(address)
        if row is not None:
            self._end_unseen(row, index)
        self.open[address] = self.lives.add(index, before=False)

    def _end_unseen(self, row: int, index: int) -> None:
        """End the last life at an address that is allocated again."""
        if self.lives.requested[row] == NO_EVENT:
            self.lives.requested[row] = index
        elif self._no_completions:
            return
        self.lives.overlaps += 1
        self.lives.completed[row] = index

    def _request(self, index: int, address: int) -> None:
        row = self.open.get(address)
        if row is None:
            self.open[address] = self.lives.add(index, before=True, requested=index)
        elif self.lives.requested[row] == NO_EVENT:
            self.lives.requested[row] = index

    def _complete(self, index: int, address: int) -> None:
        row = self.open.pop(address, None)
        if row is None:
            row = self.lives.add(index, before=True)
        self.lives.completed[row] = index


def join_held(replay: BlockReplay, trace: DeviceTrace, blocks: HeldBlocks) -> None:
    """Join the blocks in use at the end to the open lives; a block without one was there before the trace."""
    lives = replay.lives
    rest = dict(replay.open)
    columns = zip(blocks.address.tolist(), blocks.requested.tolist(), blocks.awaiting.tolist(), strict=True)
    for number, (address, requested, awaiting) in enumerate(columns):
        row = rest.pop(address, None)
        if row is None:
            row = lives.add(NO_EVENT, before=True, requested=BEFORE_TRACE if awaiting else NO_EVENT)
        elif int(trace.size[lives.entry[row]]) != requested:
            lives.resized += 1
        lives.held[row] = number


def close_open_lives(lives: BlockLives, trace: DeviceTrace) -> None:
    """End the lives that the trace leaves open because it was recorded without a kind of entry.

    A block that is free again was given back. If that entry is missing for a block that the trace allocated,
    the trace lacks free_requested entries, and both events are taken as simultaneous; otherwise the block was
    given back before the history. The same applies the other way round to a trace without free_completed
    entries, except for blocks that the segments list as awaiting their free.
    """
    _, requested, completed, held = lives.arrays()
    before = np.array(lives.before, dtype=np.bool_)
    unsaid = (completed >= 0) & (requested == NO_EVENT)
    lives.requests_lost = bool((unsaid & ~before).any())
    requested[unsaid] = completed[unsaid] if lives.requests_lost else BEFORE_TRACE
    if not trace.has(TraceAction.FREE_COMPLETED):
        ended = (requested >= 0) & (completed == NO_EVENT) & (held == NO_EVENT)
        lives.completions_lost = bool(ended.any())
        completed[ended] = requested[ended]
    lives.not_held = int(((completed == NO_EVENT) & (held == NO_EVENT)).sum())
    lives.requested, lives.completed = requested.tolist(), completed.tolist()


UNIT_BYTES = 512
SMALL_BYTES = 1 << 20
#: Kinds of events, in their order at one entry. Blocks from before the first entry are measured once all of
#: them are in place (_OCCUPY, _MEASURE), a new block when it arrives.
_UNMAP, _RELEASE, _MAP, _OCCUPY, _MEASURE, _ARRIVE = range(6)


def round_requests(requested: Integers) -> Integers:
    """Return the least bytes that the allocator takes for these requests."""
    return np.maximum((requested + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES, UNIT_BYTES)


def measure_blocks(
    address: Integers,
    requested: Integers,
    born: Integers,
    released: Integers,
    stretches: Sequence[SegmentSpan],
) -> Integers:
    """Return the size of each block.

    ``born`` and ``released`` are entries; ``NO_ENTRY`` means before the first entry, and not yet.
    """
    found = round_requests(requested)
    large = found > SMALL_BYTES
    events = _order_events(np.flatnonzero(large), born, released, stretches)
    space = _Space(address, stretches)
    for kind, which in events:
        if kind != _MEASURE:
            space.happen(kind, which)
        if kind >= _MEASURE:
            rest = space.free_behind(which) - int(found[which])
            if 0 < rest <= SMALL_BYTES:
                found[which] += rest
    return found


def _order_events(
    large: Integers, born: Integers, released: Integers, stretches: Sequence[SegmentSpan]
) -> list[tuple[int, int]]:
    """Return the events as (kind, block or segment span), in the order of the entries."""
    whole = [number for number, stretch in enumerate(stretches) if not stretch.expandable]
    begin = np.array([stretches[number].begin for number in whole], dtype=np.int64)
    end = np.array([stretches[number].end for number in whole], dtype=np.int64)
    gone, freed = end != NO_ENTRY, released[large] >= 0
    there, new = large[born[large] == NO_ENTRY], large[born[large] != NO_ENTRY]
    parts = [
        (_MAP, np.array(whole, dtype=np.int64), begin),
        (_UNMAP, np.array(whole, dtype=np.int64)[gone], end[gone]),
        (_OCCUPY, there, born[there]),
        (_MEASURE, there, born[there]),
        (_ARRIVE, new, born[new]),
        (_RELEASE, large[freed], released[large][freed]),
    ]
    kinds = np.concatenate([np.full(len(which), kind, dtype=np.int64) for kind, which, _ in parts])
    which = np.concatenate([each for _, each, _ in parts])
    entry = np.concatenate([each for _, _, each in parts])
    order = np.lexsort((kinds, entry))
    return list(zip(kinds[order].tolist(), which[order].tolist(), strict=True))


class _Space:
    """The large blocks in use and the segments held, at one point of the replay."""

    def __init__(self, address: Integers, stretches: Sequence[SegmentSpan]) -> None:
        self._address: list[int] = address.tolist()
        self._stretches = stretches
        self._used: list[int] = []
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def happen(self, kind: int, which: int) -> None:
        """Apply an event."""
        if kind in (_ARRIVE, _OCCUPY):
            insort(self._used, self._address[which])
        elif kind == _RELEASE:
            _remove_sorted(self._used, self._address[which])
        elif kind == _MAP:
            stretch = self._stretches[which]
            insort(self._starts, stretch.address)
            self._ends[stretch.address] = stretch.address + stretch.size
        else:
            _remove_sorted(self._starts, self._stretches[which].address)

    def free_behind(self, which: int) -> int:
        """Return the bytes from a block to the next one in use or its segment's end; <= 0 if unknown."""
        address = self._address[which]
        at = bisect_right(self._starts, address) - 1
        end = self._ends[self._starts[at]] if at >= 0 else 0
        after = bisect_right(self._used, address)
        if after < len(self._used):
            end = min(end, self._used[after])
        return end - address


def _remove_sorted(values: list[int], value: int) -> None:
    at = bisect_right(values, value) - 1
    if at >= 0 and values[at] == value:
        del values[at]
