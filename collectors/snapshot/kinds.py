"""What a file is, by its first bytes: names of files say nothing."""

import zlib
from enum import StrEnum
from typing import BinaryIO

_HEAD_BYTES = 4096
_SHOWN_BYTES = 64


class FileKind(StrEnum):
    """Files that somebody may take for a run."""

    SNAPSHOT = "snapshot"
    GZIP_SNAPSHOT = "gzip snapshot"
    TRACE = "trace"
    TORCH_ARCHIVE = "torch archive"
    OTHER = "other"


def kind_of(file: BinaryIO) -> FileKind:
    """Look at the head of ``file``, which is at its beginning and is left there."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    if head.startswith(b"\x1f\x8b"):
        inside = _kind(_inflated(head))
        return FileKind.GZIP_SNAPSHOT if inside is FileKind.SNAPSHOT else inside
    return _kind(head)


def _kind(head: bytes) -> FileKind:
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return FileKind.SNAPSHOT
    if head.startswith(b"PK\x03\x04"):
        return FileKind.TORCH_ARCHIVE
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return FileKind.TRACE
    return FileKind.OTHER


def _inflated(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _SHOWN_BYTES)
    except zlib.error:
        return b""
