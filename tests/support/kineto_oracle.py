"""A second, slow reader of traces on the standard library's json and Decimal, to hold the fast one to.

It reads a whole text of good JSON and shares no code with the product.
"""

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal

import pyarrow

from tests.support.real_traces import TRACES

ABSENT = -(2**62)
REAL = sorted(TRACES.glob("**/*.json.gz")) if TRACES.is_dir() else []
_WORDS = {"Operator": "cpu_op", "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
_WORDS |= {"Runtime": "cuda_runtime", "async": "ac2g", "async_cpu_to_gpu": "ac2g"}
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def pack(text, packing):
    """As a file of that packing would have it."""
    if packing == "gzip":
        return gzip.compress(text)
    if packing == "two gzips":
        return gzip.compress(text[: len(text) // 3]) + gzip.compress(text[len(text) // 3 :])
    return pyarrow.compress(text, codec="zstd", asbytes=True) if packing == "zstd" else text


PACKINGS = ("plain", "gzip", "two gzips", "zstd")


def expected(text):
    """(number of objects in traceEvents, rows of events with a duration and a place in time)."""
    top = json.loads(text, parse_float=Decimal)
    listed = top if isinstance(top, list) else top["traceEvents"]
    base = 0 if isinstance(top, list) else top.get("baseTimeNanoseconds", 0)
    events = [event for event in listed if isinstance(event, dict)]
    rows = [_row(event, base) for event in events if event.get("ph") == "X"]
    return len(events), [row for row in rows if row is not None]


def seen(trace):
    """The rows of a ``Trace`` in the same form."""
    columns = [
        trace.start_ns, trace.duration_ns, trace.process, trace.thread, trace.stream, trace.correlation,
        trace.external_id, trace.bytes,
    ]  # fmt: skip
    texts = [[words[row] for row in range(len(words))] for words in (trace.category, trace.name)]
    return list(zip(*(column.tolist() for column in columns), *texts, strict=True))


def _row(event, base):
    start, duration = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
    if start is None or duration is None or duration < 0 or (start == 0 and duration == 0):
        return None
    if not 0 <= base + start <= base + start + duration < 2**62:
        return None
    arguments = event["args"] if isinstance(event.get("args"), dict) else {}
    category = event.get("cat")
    category = _WORDS.get(category, category) if isinstance(category, str) else ""
    name = event.get("name")
    thread = _whole(event.get("tid"))
    stream = _whole(arguments.get("stream")) if category in (*_DEVICE, "cuda_sync") else ABSENT
    if category == "gpu_user_annotation" or (category in _DEVICE and stream == ABSENT):
        stream = thread
    external = _whole(arguments.get("External id"))
    return (
        base + start,
        duration,
        _whole(event.get("pid")),
        thread,
        stream,
        _whole(arguments.get("correlation")),
        _whole(arguments.get("external id")) if external == ABSENT else external,
        _whole(arguments.get("bytes")) if category in (*_DEVICE, "cuda_sync") else ABSENT,
        category,
        name if isinstance(name, str) else "",
    )


def _nanoseconds(value):
    if isinstance(value, str):
        value = Decimal(value) if value.replace(".", "", 1).replace("-", "", 1).isdigit() else None
    if value is None or isinstance(value, bool | list | dict | float):
        return None
    nanoseconds = Decimal(value) * 1000
    if abs(nanoseconds) >= 2**62:
        return None
    return int(nanoseconds.to_integral_value(ROUND_HALF_EVEN))


def _whole(value):
    if isinstance(value, str):
        digits = value.removeprefix("stream ")
        value = int(digits) if digits.removeprefix("-").isdecimal() else None
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**62:
        return ABSENT
    return value
