"""The part of a long text that is in memory: one buffer, used again and again."""

import re
from typing import Protocol

from zprof.model.errors import BadInput

_BLOCK_BYTES = 512 << 10
#: One event, or one value of the header, may be this large.
_MOST_BYTES = 64 << 20


class Text(Protocol):
    """Gives a text piece by piece."""

    def readinto(self, target: memoryview, /) -> int:
        """Fill the begin of ``target``; 0 at the end of the text."""


class Window:
    """``data[start:end]`` is what has been read and not used yet; users move ``start``.

    There is always a byte before ``start`` and one behind ``end``, in which a user may write.
    """

    def __init__(self, text: Text, block_bytes: int = _BLOCK_BYTES) -> None:
        self._text = text
        self._block_bytes = block_bytes
        self.data = bytearray(4 * block_bytes + 2)
        self.start = self.end = 1
        self.ended = False

    def more(self) -> bool:
        """Read on; at least as much again as is unused, so that looking at it anew costs no more than 2x.

        Returns:
            False at the end of the text.

        Raises:
            BadInput: the unused part has grown beyond any event.
        """
        if self.ended:
            return False
        unused = self.end - self.start
        if unused > _MOST_BYTES:
            raise BadInput(f"one entry is larger than {_MOST_BYTES >> 20} MiB", hint="export the trace again")
        before, wanted = self.end - self.start, max(self._block_bytes, unused)
        self._make_room(unused + wanted)
        with memoryview(self.data) as view:
            while wanted and not self.ended:
                size = self._text.readinto(view[self.end : self.end + wanted])
                self.end, wanted, self.ended = self.end + size, wanted - size, not size
        return self.end - self.start > before

    def _make_room(self, size: int) -> None:
        """Move the unused part to the front; into a larger buffer where it does not fit."""
        unused = self.data[self.start : self.end]
        if size + 2 > len(self.data):
            self.data = bytearray(2 * size + 2)
        self.data[1 : 1 + len(unused)] = unused
        self.start, self.end = 1, 1 + len(unused)

    def skip(self, filler: re.Pattern[bytes]) -> int | None:
        """Move to the first byte that ``filler`` does not match and return it; None at the end."""
        while True:
            found = filler.match(self.data, self.start, self.end)
            self.start = found.end() if found else self.start
            if self.start < self.end:
                return self.data[self.start]
            if not self.more():
                return None
