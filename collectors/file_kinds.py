"""Detect snapshots, traces, flight-recorder dumps and archives by their first bytes. File names are not
trusted.
"""

import re
import zlib
from enum import StrEnum
from typing import BinaryIO

_HEAD_BYTES = 64 << 10
#: A zstd block holds up to 128 KiB and cannot be decoded before its end.
_ZSTD_HEAD_BYTES = 256 << 10
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
#: Keys at the top level of a trace or in its first event.
_TRACE_KEY = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|traceName|displayTimeUnit'
    rb"|baseTimeNanoseconds|record_shapes|profile_memory|with_(?:stack|flops|modules)|trace_id|ph"
    rb'|(?:cupti|roctracer|hip_runtime|cuda_runtime)_version)"\s*:'
)
#: Keys of a flight-recorder dump; its JSON starts with its entries, whose first key is the last one here.
_DUMP_KEY = re.compile(rb'"(?:pg_config|pg_status|collective_seq_id)"\s*:')
#: The first of these keys in a pickle tells dumps from snapshots.
_PICKLE_KEY = re.compile(rb"(pg_config|pg_status|collective_seq_id)|segments|device_traces")
#: A log that would look like JSON ("[rank0]:", "[E ProcessGroupNCCL.cpp:474]"), or has such a line.
_LOG_LINE = re.compile(
    rb"\A\s*\[(?:rank\d+\]:|[A-Za-z]\w* ?\d*\]|[EWIF]\d* \S)|ProcessGroupNCCL\.cpp:\d|"
    rb"\] Watchdog caught collective operation timeout: WorkNCCL\("
)


class FileKind(StrEnum):
    """Kinds of files that a user may pass as a run. ``JSON`` may be a trace that its first bytes do not
    reveal.
    """

    SNAPSHOT = "snapshot"
    GZIP_SNAPSHOT = "gzip snapshot"
    TRACE = "trace"
    DUMP = "flight-recorder dump"
    LOG = "log"
    JSON = "json"
    TORCH_ARCHIVE = "torch archive"
    OTHER = "other"


def detect_file_kind(file: BinaryIO) -> FileKind:
    """Return the kind of ``file``. Reads from its start and rewinds it."""
    head = file.read(_HEAD_BYTES) or b""  # None: a non-blocking file without data yet
    if head.startswith(_ZSTD):
        head += file.read(_ZSTD_HEAD_BYTES)
    file.seek(0)
    if head.startswith(_GZIP):
        content_kind = _detect_by_head(_inflate_head(head))
        return FileKind.GZIP_SNAPSHOT if content_kind is FileKind.SNAPSHOT else content_kind
    if head.startswith(_ZSTD):
        content_kind = _detect_by_head(_unpack_zstd_head(head))
        is_read_packed = content_kind not in (FileKind.SNAPSHOT, FileKind.DUMP)
        return content_kind if is_read_packed else FileKind.OTHER
    return _detect_by_head(head)


def _detect_by_head(head: bytes) -> FileKind:
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        key = _PICKLE_KEY.search(head)
        return FileKind.DUMP if key and key[1] else FileKind.SNAPSHOT
    if head.startswith(b"PK\x03\x04"):
        return FileKind.TORCH_ARCHIVE
    if _LOG_LINE.search(head):
        return FileKind.LOG
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        if _TRACE_KEY.search(head):
            return FileKind.TRACE
        return FileKind.DUMP if _DUMP_KEY.search(head) else FileKind.JSON
    return FileKind.OTHER


def _inflate_head(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def _unpack_zstd_head(head: bytes) -> bytes:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(head), "zstd") as stream:
            return bytes(stream.read(_HEAD_BYTES))
    except (OSError, pa.ArrowException):
        return b""
