"""One column while it grows, in pages of its own that are moved and not copied."""

import mmap
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

_FIRST_ROWS = 1 << 14
_Number = TypeVar("_Number", np.int32, np.int64)


class Growing(Generic[_Number]):
    """Takes rows at its end.

    Its pages go back to the system at once when it is done with, which those of the heap may not.
    """

    def __init__(self, kind: type[_Number]) -> None:
        self._kind: type[_Number] = kind
        self._pages = _pages(_FIRST_ROWS * np.dtype(kind).itemsize)
        self._rows: npt.NDArray[_Number] = np.frombuffer(self._pages, dtype=kind)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def append(self, rows: npt.NDArray[_Number]) -> None:
        """Copies them."""
        end = self._used + len(rows)
        if end > len(self._rows):
            self._grow(max(2 * len(self._rows), end))
        self._rows[self._used : end] = rows
        self._used = end

    def _grow(self, rows: int) -> None:
        """Pages that nobody has written to take no memory, so that doubling costs none."""
        size = rows * np.dtype(self._kind).itemsize
        self._rows = np.empty(0, dtype=self._kind)  # A view of the pages would hold them in place.
        try:
            self._pages.resize(size)
        except SystemError:  # Only Linux moves pages.
            larger = _pages(size)
            larger[: len(self._pages)] = self._pages[:]
            self._pages = larger
        self._rows = np.frombuffer(self._pages, dtype=self._kind)

    def finish(self) -> npt.NDArray[_Number]:
        """The column; it cannot grow after."""
        return self._rows[: self._used]


def _pages(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
