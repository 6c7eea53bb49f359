"""The stretches of device memory that the allocator held, found by walking the trace backwards.

At the end it holds the segments.  Backwards, a segment_free or segment_unmap brings a stretch back, a
segment_alloc or segment_map takes its bytes away and so gives them their birth.  What is left at the first
entry was there when the history begins.  A segment of mapped pieces (expandable) falls into them.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from zprof.collectors.snapshot.held import Held
from zprof.collectors.snapshot.trace import Action, Trace

_ENDS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_BEGINS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_MAPS = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
NONE = -1


@dataclass(frozen=True, slots=True)
class _Open:
    """A stretch that is held at the point of the walk; ``end`` is the entry that gives it back."""

    address: int
    size: int
    end: int
    held: int
    expandable: bool


@dataclass(frozen=True, slots=True)
class Stretch:
    """One row of the table: ``begin`` and ``end`` are entries (NONE: before the first, not yet).

    ``held`` is the segment of the snapshot that it is a part of, NONE where it is gone by then.
    """

    address: int
    size: int
    begin: int
    end: int
    held: int
    expandable: bool


@dataclass(slots=True)
class Walk:
    """The backwards walk; ``odd`` counts entries that contradict what is held."""

    open: dict[int, _Open] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    found: list[Stretch] = field(default_factory=list)
    odd: int = 0

    def put(self, stretch: _Open) -> None:
        """``stretch`` is held from here backwards."""
        if stretch.size <= 0 or any(True for _ in self._within(stretch.address, stretch.size)):
            self.odd += stretch.size > 0
            return
        self.open[stretch.address] = stretch
        insort(self.starts, stretch.address)

    def take(self, address: int, size: int, entry: int) -> None:
        """``entry`` is where these bytes came to be held."""
        pieces = [self.open[start] for start in self._within(address, size)]
        covered = 0
        for piece in pieces:
            covered += self._cut(piece, address, address + size, entry)
        self.odd += covered != size

    def finish(self) -> list[Stretch]:
        """What is left was there before; all rows, oldest first."""
        rest = [Stretch(o.address, o.size, NONE, o.end, o.held, o.expandable) for o in self.open.values()]
        return sorted(rest + self.found, key=lambda row: (row.begin, row.address))

    def _cut(self, piece: _Open, low: int, high: int, entry: int) -> int:
        """Give the part of ``piece`` inside [low, high) its birth, keep the rest; the bytes of the part."""
        self._drop(piece.address)
        start, stop = max(low, piece.address), min(high, piece.address + piece.size)
        self.found.append(Stretch(start, stop - start, entry, piece.end, piece.held, piece.expandable))
        for left, right in ((piece.address, start), (stop, piece.address + piece.size)):
            self.put(_Open(left, right - left, piece.end, piece.held, piece.expandable))
        return stop - start

    def _drop(self, address: int) -> None:
        del self.open[address]
        del self.starts[bisect_left(self.starts, address)]

    def _within(self, address: int, size: int) -> Iterator[int]:
        """Starts of what is held of [address, address + size)."""
        first = max(bisect_right(self.starts, address) - 1, 0)
        for at in range(first, len(self.starts)):
            start = self.starts[at]
            if start >= address + size:
                return
            if start + self.open[start].size > address:
                yield start


def stretches_of(trace: Trace, held: Held) -> tuple[Sequence[Stretch], int]:
    """All stretches, and how many entries contradict the segments."""
    walk = Walk()
    columns = zip(held.address.tolist(), held.size.tolist(), held.expandable.tolist(), strict=True)
    for number, (address, size, expandable) in enumerate(columns):
        walk.put(_Open(address, size, NONE, number, expandable))
    entries = np.flatnonzero(np.isin(trace.action, [*_BEGINS, *_ENDS]))
    for entry in entries[::-1].tolist():
        action, address, size = trace.action[entry], int(trace.address[entry]), int(trace.size[entry])
        if action in _ENDS:
            walk.put(_Open(address, size, entry, NONE, action in _MAPS))
        else:
            walk.take(address, size, entry)
    return walk.finish(), walk.odd
