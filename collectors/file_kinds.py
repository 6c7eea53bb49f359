"""Detect what a file is (snapshot, trace, archive) from its first bytes; file names are not trusted."""

import re
import zlib
from enum import StrEnum
from typing import BinaryIO

import pyarrow as pa

_HEAD_BYTES = 64 << 10
#: zstd packs up to 128 KiB into a block, and nothing of a block can be read before its end.
_ZSTD_HEAD_BYTES = 256 << 10
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
#: Keys that stand at the top of a trace, or in its first event.
_TRACE_KEY = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|traceName|displayTimeUnit'
    rb"|baseTimeNanoseconds|record_shapes|profile_memory|with_(?:stack|flops|modules)|trace_id|ph"
    rb'|(?:cupti|roctracer|hip_runtime|cuda_runtime)_version)"\s*:'
)


class FileKind(StrEnum):
    """Files that somebody may take for a run.  ``JSON`` may be a trace: nothing at its head says so."""

    SNAPSHOT = "snapshot"
    GZIP_SNAPSHOT = "gzip snapshot"
    TRACE = "trace"
    JSON = "json"
    TORCH_ARCHIVE = "torch archive"
    OTHER = "other"


def detect_file_kind(file: BinaryIO) -> FileKind:
    """Look at the head of ``file``, which is at its beginning and is left there."""
    head = file.read(_HEAD_BYTES) or b""  # None: a file of the kernel that has nothing to read yet
    if head.startswith(_ZSTD):
        head += file.read(_ZSTD_HEAD_BYTES)
    file.seek(0)
    if head.startswith(_GZIP):
        inside = _detect_by_head(_inflate_head(head))
        return FileKind.GZIP_SNAPSHOT if inside is FileKind.SNAPSHOT else inside
    if head.startswith(_ZSTD):
        inside = _detect_by_head(_unpack_zstd_head(head))
        return FileKind.OTHER if inside is FileKind.SNAPSHOT else inside
    return _detect_by_head(head)


def _detect_by_head(head: bytes) -> FileKind:
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return FileKind.SNAPSHOT
    if head.startswith(b"PK\x03\x04"):
        return FileKind.TORCH_ARCHIVE
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return FileKind.TRACE if _TRACE_KEY.search(head) else FileKind.JSON
    return FileKind.OTHER


def _inflate_head(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def _unpack_zstd_head(head: bytes) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(head), "zstd") as stream:
            return bytes(stream.read(_HEAD_BYTES))
    except (OSError, pa.ArrowException):
        return b""
