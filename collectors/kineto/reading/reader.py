"""Reads a Kineto trace (Chrome trace format, JSON) into columns.

Absolute time is ``baseTimeNanoseconds + 1000 * ts``, with ``ts`` in microseconds and up to three
decimals, computed on the digits.
"""

import gzip
import zlib
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from zprof.collectors.kineto.arguments import Arguments, number
from zprof.collectors.kineto.columns import ABSENT, Group, ReadReport, Trace, TraceHeader, Words
from zprof.model.errors import BadInput
from zprof.run.plain_file import open_plain

_MAX_NS = 1 << 62
_NOTHING = msgspec.Raw(b"")
_WORDS = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_PREFIXES = ("c10d::", "gloo:", "nccl:", "record_param_comms")


class _Event(msgspec.Struct):
    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    pid: Any = None
    tid: Any = None
    args: msgspec.Raw = _NOTHING


class _File(msgspec.Struct, rename={"base": "baseTimeNanoseconds"}):
    traceEvents: list[_Event]
    base: int = 0
    distributedInfo: Any = None
    deviceProperties: Any = None
    host_name: Any = ""
    record_shapes: Any = None


def read_trace(path: Path, on_bytes: Callable[[int], None] | None = None) -> Trace:
    """Read a trace file.

    Args:
        path: .json, .json.gz or .json.zst; its content decides.
        on_bytes: Told how many bytes of the file have been read so far.

    Raises:
        BadInput: it cannot be read, or is not such a trace.
    """
    try:
        with open_plain(path) as stream:
            data = stream.read()
        if on_bytes is not None:
            on_bytes(len(data))
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        if text.lstrip()[:1] == b"[":
            file = _File(traceEvents=msgspec.json.decode(text, type=list[_Event], strict=False))
        else:
            file = msgspec.json.decode(text, type=_File, strict=False)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: cannot be read ({error})", hint="give a trace file") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not a Kineto trace ({error})", hint="export the trace again") from None
    return _trace(file)


def _trace(file: _File) -> Trace:
    rows = [
        (*span, event, _arguments(event))
        for event in file.traceEvents
        if event.ph == "X" and (span := _span(event, file.base)) is not None
    ]
    kept = [a or Arguments() for _, _, _, a in rows]
    category = _words(_WORDS.get(str(e.cat), str(e.cat)) for _, _, e, _ in rows)
    name = _words(str(e.name) for _, _, e, _ in rows)
    thread = [_id(e.tid) for _, _, e, _ in rows]
    stream = [_id(a.stream) for a in kept]
    for row, code in enumerate(category.codes):
        device = category.texts[code]
        if device == "gpu_user_annotation" or (device in _DEVICE and stream[row] == ABSENT):
            stream[row] = thread[row]
    return Trace(
        start_ns=np.array([start for start, _, _, _ in rows], dtype=np.int64),
        duration_ns=np.array([duration for _, duration, _, _ in rows], dtype=np.int64),
        category=category,
        name=name,
        process=np.array([_id(e.pid) for _, _, e, _ in rows], dtype=np.int64),
        thread=np.array(thread, dtype=np.int64),
        stream=np.array(stream, dtype=np.int64),
        correlation=np.array([_id(a.correlation) for a in kept], dtype=np.int64),
        external_id=np.array([_id(a.external_id) for a in kept], dtype=np.int64),
        bytes=np.array([_id(a.bytes) for a in kept], dtype=np.int64),
        arguments={
            row: a
            for row, a in enumerate(kept)
            if a.collective is not None
            or a.group is not None
            or category[row] == "cuda_sync"
            or name[row].startswith(_PREFIXES)
        },
        thread_names=_thread_names(file.traceEvents),
        header=_header(file),
        report=ReadReport(events=len(file.traceEvents)),
    )


_decoder = msgspec.json.Decoder(Arguments)


def _arguments(event: _Event) -> Arguments | None:
    try:
        return _decoder.decode(event.args)
    except (msgspec.DecodeError, RecursionError):
        return None


def _words(texts: Iterable[str]) -> Words:
    known: dict[str, int] = {}
    codes = [known.setdefault(text, len(known)) for text in texts]
    return Words(codes=np.array(codes, dtype=np.int32), texts=tuple(known))


def _span(event: _Event, base_ns: int) -> tuple[int, int] | None:
    start, duration = microseconds_to_ns(event.ts), microseconds_to_ns(event.dur)
    if start is None or duration is None or duration < 0 or not 0 <= base_ns + start < _MAX_NS:
        return None
    return base_ns + start, duration


def microseconds_to_ns(number: msgspec.Raw) -> int | None:
    """A JSON number of microseconds as whole nanoseconds, without going through a double."""
    whole, _, fraction = bytes(number).partition(b".")
    if whole.isdigit() and (not fraction or fraction.isdigit()):
        return int(whole[:19]) * 1000 + int(fraction[:3].ljust(3, b"0"))
    try:
        value = Decimal(bytes(number).decode("ascii")) * 1000
        return int(value) if abs(value) < _MAX_NS else None
    except (ArithmeticError, ValueError):
        return None


def _id(value: object) -> int:
    if isinstance(value, str):
        value = value.removeprefix("stream ")
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
    found = number(value)
    return ABSENT if found is None else found


def _thread_names(events: list[_Event]) -> dict[int, frozenset[str]]:
    names: dict[int, frozenset[str]] = {}
    for event in events:
        if event.ph == "M" and event.name == "thread_name":
            arguments = _arguments(event)
            if arguments is not None and isinstance(arguments.name, str):
                thread = _id(event.tid)
                names[thread] = names.get(thread, frozenset()) | {arguments.name}
    return names


def _header(file: _File) -> TraceHeader:
    info = file.distributedInfo if isinstance(file.distributedInfo, dict) else {}
    listed = info.get("pg_config")
    devices = file.deviceProperties if isinstance(file.deviceProperties, list) else []
    return TraceHeader(
        base_ns=file.base,
        rank=number(info.get("rank")),
        world_size=number(info.get("world_size")),
        backend=str(info.get("backend", "")),
        groups=tuple(_groups(listed if isinstance(listed, list) else [])),
        devices=tuple(str(d.get("name", "")) for d in devices if isinstance(d, dict)),
        host=str(file.host_name),
        with_shapes=bool(file.record_shapes) if file.record_shapes is not None else None,
    )


def _groups(listed: list[Any]) -> Iterable[Group]:
    for entry in listed:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and all(isinstance(rank, int) and rank >= 0 for rank in ranks):
            name, description = entry.get("pg_name", ""), entry.get("pg_desc", "")
            yield Group(name=str(name), description=str(description), ranks=tuple(sorted(ranks)))
