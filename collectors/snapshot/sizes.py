"""What a block took of its segment: a trace has requested sizes only.

The allocator (``CUDACachingAllocator.cpp``) rounds a request up to 512 bytes, takes the front of a free
block, and splits the rest off where it is worth keeping: 512 bytes in the small pool (up to 1 MiB) and in
expandable segments, more than 1 MiB in the large pool.  Free neighbours are always merged, so the free block
at an address reaches to the next block in use, or to the end of the segment:

    block = rounded             where free - rounded > 1 MiB
          = free                else (large pool; the rest goes to the block as well)

Which blocks are in use is known at every entry, so this is exact, but for large blocks from before the
history with more than 1 MiB free behind them: theirs is the least that it can be.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence

import numpy as np

from zprof.collectors.snapshot.fields import Integers
from zprof.collectors.snapshot.stretches import NONE, Stretch

UNIT_BYTES = 512
SMALL_BYTES = 1 << 20
#: What happens, in the order in which it does at one entry.  What was there before the first entry is
#: measured when all of it is in place (_OCCUPY, _MEASURE), a new block when it arrives.
_UNMAP, _RELEASE, _MAP, _OCCUPY, _MEASURE, _ARRIVE = range(6)


def rounded(requested: Integers) -> Integers:
    """The least that the allocator takes for these requests."""
    return np.maximum((requested + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES, UNIT_BYTES)


def block_sizes(
    address: Integers, requested: Integers, born: Integers, released: Integers, stretches: Sequence[Stretch]
) -> Integers:
    """The size of each block; ``born`` and ``released`` are entries, NONE before the first and not yet."""
    found = rounded(requested)
    large = found > SMALL_BYTES
    events = _events(np.flatnonzero(large), born, released, stretches)
    space = _Space(address, stretches)
    for kind, which in events:
        if kind != _MEASURE:
            space.happen(kind, which)
        if kind >= _MEASURE:
            rest = space.free_behind(which) - int(found[which])
            if 0 < rest <= SMALL_BYTES:
                found[which] += rest
    return found


def _events(
    large: Integers, born: Integers, released: Integers, stretches: Sequence[Stretch]
) -> list[tuple[int, int]]:
    """What happens, in the order of the entries: kind, and which block or stretch."""
    whole = [number for number, stretch in enumerate(stretches) if not stretch.expandable]
    begin = np.array([stretches[number].begin for number in whole], dtype=np.int64)
    end = np.array([stretches[number].end for number in whole], dtype=np.int64)
    gone, freed = end != NONE, released[large] >= 0
    there, new = large[born[large] == NONE], large[born[large] != NONE]
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
    """The large blocks in use and the segments held, at one point of the walk."""

    def __init__(self, address: Integers, stretches: Sequence[Stretch]) -> None:
        self._address: list[int] = address.tolist()
        self._stretches = stretches
        self._used: list[int] = []
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def happen(self, kind: int, which: int) -> None:
        """Something comes or goes."""
        if kind in (_ARRIVE, _OCCUPY):
            insort(self._used, self._address[which])
        elif kind == _RELEASE:
            _remove(self._used, self._address[which])
        elif kind == _MAP:
            stretch = self._stretches[which]
            insort(self._starts, stretch.address)
            self._ends[stretch.address] = stretch.address + stretch.size
        else:
            _remove(self._starts, self._stretches[which].address)

    def free_behind(self, which: int) -> int:
        """Bytes from a block's begin to the next one in use, or to the end of its segment; 0 if unknown."""
        address = self._address[which]
        at = bisect_right(self._starts, address) - 1
        end = self._ends[self._starts[at]] if at >= 0 else 0
        after = bisect_right(self._used, address)
        if after < len(self._used):
            end = min(end, self._used[after])
        return end - address


def _remove(values: list[int], value: int) -> None:
    at = bisect_right(values, value) - 1
    if at >= 0 and values[at] == value:
        del values[at]
