"""One column while it grows: blocks, so that neither many small arrays nor copies of a large one are kept."""

import mmap
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

_BLOCK_ROWS = 1 << 16
_Number = TypeVar("_Number", np.int32, np.int64)


class Growing(Generic[_Number]):
    """Takes rows at its end."""

    def __init__(self, kind: type[_Number]) -> None:
        self._kind: type[_Number] = kind
        self._blocks: list[npt.NDArray[_Number]] = []
        self._used = _BLOCK_ROWS

    def __len__(self) -> int:
        return len(self._blocks) * _BLOCK_ROWS - (_BLOCK_ROWS - self._used if self._blocks else 0)

    def append(self, rows: npt.NDArray[_Number]) -> None:
        """Copies them."""
        while len(rows):
            if self._used == _BLOCK_ROWS:
                self._blocks.append(self._block())
                self._used = 0
            taken = rows[: _BLOCK_ROWS - self._used]
            self._blocks[-1][self._used : self._used + len(taken)] = taken
            self._used, rows = self._used + len(taken), rows[len(taken) :]

    def _block(self) -> npt.NDArray[_Number]:
        """Of its own pages: they go back to the system at once when it is done with, others may not."""
        size = _BLOCK_ROWS * np.dtype(self._kind).itemsize
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(pages, dtype=self._kind)

    def finish(self) -> npt.NDArray[_Number]:
        """The column; it cannot grow after."""
        whole = np.empty(len(self), dtype=self._kind)
        blocks, self._blocks = self._blocks[::-1], []
        for begin in range(0, len(whole), _BLOCK_ROWS):
            part = whole[begin : begin + _BLOCK_ROWS]
            part[:] = blocks.pop()[: len(part)]
        return whole
