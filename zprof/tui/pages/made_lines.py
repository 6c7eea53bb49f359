"""Lines of a table that are made when they are looked at: of thousands a screen draws the first."""

from collections.abc import Callable, Sequence
from typing import overload

from zprof.tui.tables import Line


class MadeLines(Sequence[Line]):
    """So many lines, each made once, by its place."""

    def __init__(self, count: int, make: Callable[[int], Line]) -> None:
        self._make = make
        self._made: list[Line | None] = [None] * count

    @property
    def made(self) -> int:
        """How many are made by now."""
        return sum(line is not None for line in self._made)

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, at: int) -> Line: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Line]: ...
    def __getitem__(self, at: int | slice) -> Line | Sequence[Line]:
        """The line at a place, or the lines of a stretch."""
        if isinstance(at, slice):
            return [self._at(place) for place in range(*at.indices(len(self)))]
        return self._at(range(len(self))[at])

    def _at(self, place: int) -> Line:
        found = self._made[place]
        if found is None:
            found = self._made[place] = self._make(place)
        return found


def most_of(shown: int, count: int, which: str) -> str:
    """That a table has only some of what there is; nothing where it has all."""
    return f"the {shown} {which} of {count}  " if count > shown else ""
