"""Decompress the text of a trace file (plain, gzip or zstd, detected by content), and keep a part of it in
one reused buffer.

A truncated or damaged compressed file is read up to the last byte before the damage. Data after the last
member of a gzip file (padding from a tape or a download) is ignored, as in gzip.
"""

import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedReader
from itertools import chain
from typing import Any, Protocol

from isal import igzip
from isal.igzip_lib import IsalError

from zprof.base.errors import BadInput

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: Errors raised by the three decompressors; type checkers do not know isal's type.
_DAMAGE: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, IsalError)  # type: ignore[assignment]
#: Bytes read and decompressed at a time if a file is damaged.
_SMALL_BYTES = 4096
_CHUNK_BYTES = 1 << 20
#: Real traces compress by a factor of 10 to 60; a few kilobytes that expand to gigabytes are not a trace.
_MIN_LIMIT_BYTES, _MAX_EXPANSION = 256 << 20, 128
_BLOCK_BYTES = 512 << 10
#: Maximum size of one event or one header value.
_MAX_BYTES = 64 << 20


class _Unpacked(Protocol):
    def readinto(self, target: memoryview, /) -> int: ...


class TraceText:
    """Decompress a file into a buffer of the caller.

    ``packed``: the file is compressed. ``is_damaged``: a part could not be decompressed. ``trailing_bytes``:
    ignored bytes after the last gzip member.

    Args:
        file: File, positioned at its start.
        on_bytes: Called with the number of bytes of the file read so far.
    """

    def __init__(self, file: BufferedReader, on_bytes: Callable[[int], None] | None = None) -> None:
        self.is_damaged = False
        self.trailing_bytes = 0
        self._magic = file.peek(4)[:4]
        self.packed = self._magic.startswith((_GZIP, _ZSTD))
        self._file = file
        self._on_bytes = on_bytes
        self._returned_bytes = 0
        if self._magic.startswith(_GZIP):
            unpacked: _Unpacked = igzip.IGzipFile(fileobj=file, mode="rb")  # type: ignore[no-untyped-call]
            self._unpacked = unpacked
        else:
            self._unpacked = _open_zstd(file) if self._magic.startswith(_ZSTD) else file

    def readinto(self, target: memoryview) -> int:
        """Fill the start of ``target`` and return the number of bytes; 0 at the end of the text.

        Raises:
            BadInput: the text is far larger than a trace of this file size.
            OSError: the file itself cannot be read.
        """
        try:
            size = self._unpacked.readinto(target)
        except _DAMAGE as error:
            if self.is_damaged or self.trailing_bytes or not self.packed:
                raise OSError(getattr(error, "errno", None), str(error)) from None
            size = self._resume_slowly(target)
        self._returned_bytes += size
        if self.packed and self._returned_bytes > _compute_max_bytes(self._file):
            raise BadInput(
                f"it unpacks to more than {_MAX_EXPANSION} times its size",
                hint="unpack it and check its contents",
            )
        if self._on_bytes is not None:
            self._on_bytes(self._file.tell())
        return size

    def _resume_slowly(self, target: memoryview) -> int:
        """Resume in small pieces: the fast readers discard the decompressed part of a damaged block."""
        if self._magic.startswith(_GZIP):
            self.trailing_bytes = _count_trailing_bytes(self._file)
        self.is_damaged = not self.trailing_bytes
        self._file.seek(0)
        pieces = (
            _iter_zstd_pieces(self._file) if self._magic.startswith(_ZSTD) else _iter_gzip_pieces(self._file)
        )
        self._unpacked = _PieceReader(_skip_bytes(pieces, self._returned_bytes))
        return self._unpacked.readinto(target)


class _PieceReader:
    """Read pieces of any size into a buffer."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readinto(self, target: memoryview, /) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        size = min(len(self._rest), len(target))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _open_zstd(file: BufferedReader) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(_UnclosableFile(file), mode="r"), "zstd")


class _UnclosableFile:
    """Wrap a file that must stay open: pyarrow closes the files that it has read."""

    closed = False

    def __init__(self, file: BufferedReader) -> None:
        self.read = file.read

    def close(self) -> None:
        """Do nothing."""


def _count_trailing_bytes(file: BufferedReader) -> int:
    """Return the number of bytes after the last gzip member; 0 if a member itself is damaged."""
    file.seek(0)
    packed, unpacked_bytes = file.read(_CHUNK_BYTES), 0
    while packed.startswith(_GZIP):
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            try:
                unpacked_bytes += len(member.decompress(packed, _CHUNK_BYTES))
            except zlib.error:
                return 0
            packed = member.unconsumed_tail or (b"" if member.eof else file.read(_CHUNK_BYTES))
            if unpacked_bytes > _compute_max_bytes(file) or not (packed or member.eof):
                return 0
        packed = member.unused_data.lstrip(b"\0")
        while len(packed) < len(_GZIP) and (next_block := file.read(_CHUNK_BYTES)):
            packed = (packed + next_block).lstrip(b"\0")
    return len(packed) + os.fstat(file.fileno()).st_size - file.tell()


def _compute_max_bytes(file: BufferedReader) -> int:
    return max(_MIN_LIMIT_BYTES, _MAX_EXPANSION * file.tell())


def _iter_gzip_pieces(file: BufferedReader) -> Iterator[bytes]:
    """Yield the text of all members up to the damage, without the data after the last member."""
    packed = file.read(_SMALL_BYTES)
    while packed.startswith(_GZIP[:1]):
        member = zlib.decompressobj(wbits=31)
        while packed and not member.eof:
            unread = member.copy()
            try:
                piece = member.decompress(packed, _SMALL_BYTES)
            except zlib.error:
                yield from _iter_bytes(unread, packed)
                return
            packed = member.unconsumed_tail or (b"" if member.eof else file.read(_SMALL_BYTES))
            yield piece
        packed = (member.unused_data or file.read(_SMALL_BYTES)).lstrip(b"\0")


def _iter_bytes(member: Any, packed: bytes) -> Iterator[bytes]:
    """Yield one byte at a time, up to the damage."""
    with suppress(zlib.error):
        for _ in range(_SMALL_BYTES):
            yield member.decompress(packed, 1)
            packed = member.unconsumed_tail


def _iter_zstd_pieces(file: BufferedReader) -> Iterator[bytes]:
    packed = _open_zstd(file)
    try:
        while piece := packed.read(_SMALL_BYTES):
            yield piece
    except OSError:
        return


def _skip_bytes(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Return the pieces without the first ``size`` bytes."""
    for piece in pieces:
        if len(piece) > size:
            return chain((piece[size:],), pieces)
        size -= len(piece)
    return iter(())


class TextSource(Protocol):
    """A text that is read piece by piece."""

    def readinto(self, target: memoryview, /) -> int:
        """Fill the start of ``target`` and return the number of bytes; 0 at the end of the text."""


class TextWindow:
    """``data[start:end]`` is the text that has been read but not used; users advance ``start``.

    There is always one byte before ``start`` and one after ``end`` that a user may overwrite.
    """

    def __init__(self, text: TextSource, block_bytes: int = _BLOCK_BYTES) -> None:
        self._text = text
        self._block_bytes = block_bytes
        self.data = bytearray(4 * block_bytes + 2)
        self.start = self.end = 1
        self.ended = False

    def read_more(self) -> bool:
        """Read at least as many bytes as are unused, so that scanning them again at most doubles the cost.

        Returns:
            False at the end of the text.

        Raises:
            BadInput: the unused part is larger than any event.
        """
        if self.ended:
            return False
        unused = self.end - self.start
        if unused > _MAX_BYTES:
            raise BadInput(f"one entry is larger than {_MAX_BYTES >> 20} MiB", hint="export the trace again")
        unread, bytes_left = self.end - self.start, max(self._block_bytes, unused)
        self._reserve(unused + bytes_left)
        with memoryview(self.data) as view:
            while bytes_left and not self.ended:
                size = self._text.readinto(view[self.end : self.end + bytes_left])
                self.end, bytes_left, self.ended = self.end + size, bytes_left - size, not size
        return self.end - self.start > unread

    def _reserve(self, size: int) -> None:
        """Move the unused part to the front, into a larger buffer if it does not fit."""
        unused = self.data[self.start : self.end]
        if size + 2 > len(self.data):
            self.data = bytearray(2 * size + 2)
        self.data[1 : 1 + len(unused)] = unused
        self.start, self.end = 1, 1 + len(unused)

    def skip(self, filler: re.Pattern[bytes]) -> int | None:
        """Advance to the first byte that ``filler`` does not match and return it; None at the end."""
        while True:
            match = filler.match(self.data, self.start, self.end)
            self.start = match.end() if match else self.start
            if self.start < self.end:
                return self.data[self.start]
            if not self.read_more():
                return None
