"""Unpacks the next piece of a text on a thread, while its user works on this one."""

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

#: So much that a thread has time to get a word in: who decodes gives way every 5 ms, or 2 MB of text.
PIECE_BYTES = 2 << 20


class Unpacked(Protocol):
    """A text that is unpacked into a buffer of the caller."""

    def readinto(self, target: memoryview, /) -> int:
        """Fill the begin of ``target``; 0 at the end."""


class Ahead:
    """The same text, always one piece ahead; what fails fails where its piece would begin."""

    def __init__(self, source: Unpacked, piece_bytes: int = PIECE_BYTES) -> None:
        self._source = source
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._spare, self._next = bytearray(piece_bytes), bytearray(piece_bytes)
        self._left = memoryview(b"")
        self._size = self._thread.submit(source.readinto, memoryview(self._next))

    def readinto(self, target: memoryview, /) -> int:
        """Fill the begin of ``target``; 0 at the end.

        Raises:
            Exception: whatever the source raises.
        """
        if not self._left:
            size = self._size.result()
            if not size:
                return 0
            self._left = memoryview(self._next)[:size]
            self._spare, self._next = self._next, self._spare
            self._size = self._thread.submit(self._source.readinto, memoryview(self._next))
        size = min(len(self._left), len(target))
        target[:size], self._left = self._left[:size], self._left[size:]
        return size
