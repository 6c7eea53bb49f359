"""Follows a file of lines that grows: only new bytes are read, and half a line waits for its rest."""

import os
from collections.abc import Callable
from pathlib import Path

from zprof.run.plain_file import open_plain


class FollowedFile:
    """Whole lines as they come.  A line that is too long is left out, without keeping it in memory.

    ``too_long`` counts those of this file, ``read_bytes`` all bytes ever read.

    Args:
        path: A file that may not be there yet, and may be replaced.
        longest: Bytes of a line, without its end.
        restarted: Called where another file stands in the place of the one that was followed.
    """

    def __init__(self, path: Path, longest: int, restarted: Callable[[], None]) -> None:
        self._path, self._longest, self._restarted = path, longest, restarted
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._half = b""
        self._skips = False
        self.too_long, self.read_bytes = 0, 0

    def lines(self, most_bytes: int) -> list[bytes]:
        """The lines that ended since the last call, of at most so many new bytes.

        Raises:
            OSError: it is there and cannot be read, or is no regular file.
        """
        try:
            content = self._new_bytes(most_bytes)
        except FileNotFoundError:
            return []
        return self._split(content) if content else []

    def _new_bytes(self, most_bytes: int) -> bytes:
        state = os.stat(self._path)
        same = self._file == (state.st_dev, state.st_ino)
        if same and state.st_size == self._offset:
            return b""
        with open_plain(self._path) as file:
            state = os.fstat(file.fileno())
            if self._file != (state.st_dev, state.st_ino) or state.st_size < self._offset:
                self._begin((state.st_dev, state.st_ino))
            file.seek(self._offset)
            content = file.read(most_bytes)
        self._offset += len(content)
        self.read_bytes += len(content)
        return content

    def _begin(self, file: tuple[int, int]) -> None:
        if self._file is not None:
            self._restarted()
        self._file, self._offset, self._half, self._skips, self.too_long = file, 0, b"", False, 0

    def _split(self, content: bytes) -> list[bytes]:
        *ended, rest = content.split(b"\n")
        lines = []
        for place, line in enumerate(ended):
            whole = self._half + line if place == 0 else line
            skips, self._half, self._skips = self._skips and place == 0, b"", False
            if skips or len(whole) > self._longest:
                self.too_long += not skips
            else:
                lines.append(whole)
        self._half += rest
        if len(self._half) > self._longest:
            self.too_long += not self._skips
            self._half, self._skips = b"", True
        elif self._skips:
            self._half = b""
        return lines
