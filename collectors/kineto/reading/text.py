"""The text of a trace file, whatever it is packed in: plain, gzip or zstd, told apart by content.

A compressed file that ends early or is damaged gives what there is, to the last byte before the damage.  What
follows the last member of a gzip file (padding of a tape or a download) is left out, as gzip does.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedReader
from itertools import chain
from typing import Any, Protocol

from isal import igzip
from isal.igzip_lib import IsalError

from zprof.model.errors import BadInput

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: Of the three packers; the type of isal's is not known to type checkers.
_DAMAGE: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, IsalError)  # type: ignore[assignment]
#: Read and unpacked at a time where a file is damaged.
_SMALL_BYTES = 4096
_CHUNK_BYTES = 1 << 20
#: Real traces shrink by 10 to 60; a file of a few kilobytes that becomes gigabytes is no trace.
_LEAST_LIMIT_BYTES, _MOST_EXPANSION = 256 << 20, 128


class _Unpacked(Protocol):
    def readinto(self, target: memoryview, /) -> int: ...


class TraceText:
    """Unpacks into a buffer of the caller.

    ``packed``: it is compressed; ``damaged``: not all of it could be unpacked; ``trailing_bytes``: after the
    last gzip member, left out.

    Args:
        file: Open at its begin.
        on_bytes: Told how many bytes of the file have been read so far.
    """

    def __init__(self, file: BufferedReader, on_bytes: Callable[[int], None] | None = None) -> None:
        self.damaged = False
        self.trailing_bytes = 0
        self._magic = file.peek(4)[:4]
        self.packed = self._magic.startswith((_GZIP, _ZSTD))
        self._file = file
        self._on_bytes = on_bytes
        self._given_bytes = 0
        self._unpacked = _unpacked(file, self._magic)

    def readinto(self, target: memoryview) -> int:
        """Fill the begin of ``target``; 0 at the end of the text.

        Raises:
            BadInput: far more text than a trace of this size has.
            OSError: the file itself cannot be read.
        """
        try:
            size = self._unpacked.readinto(target)
        except _DAMAGE as error:
            if self.damaged or self.trailing_bytes or not self.packed:
                raise OSError(getattr(error, "errno", None), str(error)) from None
            size = self._go_on_slowly(target)
        self._given_bytes += size
        self._bound()
        if self._on_bytes is not None:
            self._on_bytes(self._file.tell())
        return size

    def _go_on_slowly(self, target: memoryview) -> int:
        """The fast readers lose what they have unpacked of the block with the damage."""
        if self._magic.startswith(_GZIP):
            self.trailing_bytes = _trailing_bytes(self._file)
        self.damaged = not self.trailing_bytes
        self._file.seek(0)
        pieces = _zstd_pieces(self._file) if self._magic.startswith(_ZSTD) else _gzip_pieces(self._file)
        self._unpacked = _Pieces(_without(pieces, self._given_bytes))
        return self._unpacked.readinto(target)

    def _bound(self) -> None:
        if self.packed and self._given_bytes > _most_bytes(self._file):
            raise BadInput(
                f"it unpacks to more than {_MOST_EXPANSION} times its size", hint="unpack it and look inside"
            )


class _Pieces:
    """Pieces of any size, read into a buffer."""

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


def _unpacked(file: BufferedReader, magic: bytes) -> _Unpacked:
    if magic.startswith(_GZIP):
        packed: _Unpacked = igzip.IGzipFile(fileobj=file, mode="rb")  # type: ignore[no-untyped-call]
        return packed
    return _zstd(file) if magic.startswith(_ZSTD) else file


def _zstd(file: BufferedReader) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(_Lent(file), mode="r"), "zstd")


class _Lent:
    """A file that pyarrow, which closes what it is done with, leaves open."""

    closed = False

    def __init__(self, file: BufferedReader) -> None:
        self.read = file.read

    def close(self) -> None:
        """Not ours to close."""


def _trailing_bytes(file: BufferedReader) -> int:
    """How many bytes follow the last gzip member and are none; 0 where a member itself is damaged."""
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
            if unpacked_bytes > _most_bytes(file) or not (packed or member.eof):
                return 0
        packed = member.unused_data.lstrip(b"\0")
        while len(packed) < len(_GZIP) and (more := file.read(_CHUNK_BYTES)):
            packed = (packed + more).lstrip(b"\0")
    return len(packed) + os.fstat(file.fileno()).st_size - file.tell()


def _most_bytes(file: BufferedReader) -> int:
    return max(_LEAST_LIMIT_BYTES, _MOST_EXPANSION * file.tell())


def _gzip_pieces(file: BufferedReader) -> Iterator[bytes]:
    """All members, up to the damage; what follows the last member is none."""
    packed = file.read(_SMALL_BYTES)
    while packed.startswith(_GZIP[:1]):
        member = zlib.decompressobj(wbits=31)
        while packed and not member.eof:
            before = member.copy()
            try:
                piece = member.decompress(packed, _SMALL_BYTES)
            except zlib.error:
                yield from _letters(before, packed)
                return
            packed = member.unconsumed_tail or (b"" if member.eof else file.read(_SMALL_BYTES))
            yield piece
        packed = (member.unused_data or file.read(_SMALL_BYTES)).lstrip(b"\0")


def _letters(member: Any, packed: bytes) -> Iterator[bytes]:
    """One byte after the other, up to the damage."""
    with suppress(zlib.error):
        for _ in range(_SMALL_BYTES):
            yield member.decompress(packed, 1)
            packed = member.unconsumed_tail


def _zstd_pieces(file: BufferedReader) -> Iterator[bytes]:
    packed = _zstd(file)
    try:
        while piece := packed.read(_SMALL_BYTES):
            yield piece
    except OSError:
        return


def _without(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """All but the first ``size`` bytes."""
    for piece in pieces:
        if len(piece) > size:
            return chain((piece[size:],), pieces)
        size -= len(piece)
    return iter(())
