"""The ``events`` table of a trace, by start; columns go over as arrays, not as Python's numbers and texts."""

from typing import Any

import numpy as np
import pyarrow as pa

from zprof.collectors.kineto.columns import ABSENT, Int64s, Trace, Words

#: The profiler's bookkeeping about itself.
_NOT_EVENTS = ("Trace", "")
#: Threads that are called by a word.
_NO_THREAD = -1


def event_columns(trace: Trace) -> dict[str, Any]:
    """The columns of ``zprof.run.schema.EVENTS``."""
    rows = _rows(trace)
    return {
        "start_ns": trace.start_ns[rows],
        "duration_ns": trace.duration_ns[rows],
        "category": _texts(trace.category, rows),
        "name": _texts(trace.name, rows),
        "thread": _threads(trace.thread[rows]),
        "stream": _numbers(trace.stream[rows]),
        "correlation": _numbers(trace.correlation[rows]),
        "external_id": _numbers(trace.external_id[rows]),
        "bytes": _numbers(trace.bytes[rows]),
    }


def _rows(trace: Trace) -> Int64s | slice:
    """All events by start; no copy where they stand so already."""
    events = trace.category.where(lambda category: category not in _NOT_EVENTS)
    start = trace.start_ns
    if events.all():
        in_order = bool((start[1:] >= start[:-1]).all())
        return slice(None) if in_order else np.argsort(start, kind="stable")
    rows = np.flatnonzero(events)
    return rows[np.argsort(start[rows], kind="stable")]


def _texts(words: Words, rows: Int64s | slice) -> pa.DictionaryArray:
    """The same codes, and the same texts."""
    return pa.DictionaryArray.from_arrays(pa.array(words.codes[rows]), pa.array(_sound(words.texts)))


def _sound(texts: tuple[str, ...]) -> list[str]:
    """Texts that UTF-8 can hold: half of a surrogate pair, as JSON may spell it, becomes a question mark."""
    return [text.encode("utf-8", "replace").decode() if not text.isascii() else text for text in texts]


def _threads(threads: Int64s) -> Int64s:
    return np.where(threads == ABSENT, _NO_THREAD, threads)


def _numbers(values: Int64s) -> pa.Array:
    return pa.array(values, mask=values == ABSENT)
