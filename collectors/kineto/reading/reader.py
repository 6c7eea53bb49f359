"""Reads a Kineto trace (Chrome trace format, JSON) into columns.

Absolute time is ``baseTimeNanoseconds + 1000 * ts``, with ``ts`` in microseconds and up to three decimals,
exact to the nanosecond.  ``displayTimeUnit`` says how viewers show times, not how they are written.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.columns import Mask, ReadReport, Trace, Words
from zprof.collectors.kineto.reading.array import EventArray
from zprof.collectors.kineto.reading.document import Document, refuse_without_events
from zprof.collectors.kineto.reading.header import ASKED, header
from zprof.collectors.kineto.reading.numbers import LIMIT
from zprof.collectors.kineto.reading.refusals import refusing
from zprof.collectors.kineto.reading.rows import Rows
from zprof.collectors.kineto.reading.text import TraceText
from zprof.collectors.kineto.reading.texts import Texts
from zprof.collectors.kineto.reading.window import Text, Window
from zprof.model.errors import BadInput
from zprof.run.plain_file import open_plain


def read_trace(path: Path, on_bytes: Callable[[int], None] | None = None) -> Trace:
    """Read a trace file: plain, gzip or zstd.

    Args:
        path: A regular file, of any name.
        on_bytes: Told how many bytes of the file have been read so far, some times a second.

    Raises:
        BadInput: it cannot be read, or is not such a trace.
    """
    with refusing(path), open_plain(path) as file:
        text = TraceText(file, on_bytes)
        trace = read_text(text, lambda: text.damaged)
        return replace(trace, report=replace(trace.report, trailing_bytes=text.trailing_bytes))


def read_text(text: Text, damaged: Callable[[], bool] = lambda: False, block_bytes: int = 512 << 10) -> Trace:
    """Read the text of a trace, ``block_bytes`` at a time.

    Raises:
        BadInput: it is something else.
    """
    reading = _Reading(Window(text, block_bytes))
    reading.document.read()
    return reading.trace(damaged=damaged())


#: Each costs a look at the whole window.
_MOST_ARRAYS = 64


class _Reading:
    """One file.  Of a key ``traceEvents`` that stands there twice the last counts, as for all of JSON."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._arrays = 0
        self.document = Document(window, ASKED, self._read_events)

    def _read_events(self) -> bool:
        self._arrays += 1
        if self._arrays > _MOST_ARRAYS:
            raise BadInput(f"it has traceEvents more than {_MOST_ARRAYS} times")
        self._rows = Rows()
        self._array = EventArray(self._window, self._rows)
        return self._array.read()

    def trace(self, *, damaged: bool) -> Trace:
        refuse_without_events(self.document)
        rows, array, complete = self._rows, self._array, self.document.complete
        if not rows.phased and not (array.empty and complete):
            raise BadInput("none of its entries is an event")
        return _trace(rows, self.document, array.dropped, cut_short=damaged or not complete)


def _trace(rows: Rows, document: Document, dropped: int, *, cut_short: bool) -> Trace:
    top = header(document.values)
    columns = {name: column.finish() for name, column in rows.columns.items()}
    codes = {name: column.finish() for name, column in rows.codes.items()}
    columns["start"] += top.base_ns
    placed = (columns["start"] >= 0) & (columns["start"] < LIMIT - columns["duration"])
    arguments = rows.wanted.rows
    nameless = _empty(rows.names, codes["name"]) | _empty(rows.categories.texts, codes["category"])
    lost = len(placed) - int(placed.sum())
    if lost:
        columns = {name: column[placed] for name, column in columns.items()}
        codes = {name: column[placed] for name, column in codes.items()}
        new = np.cumsum(placed) - 1
        arguments = {int(new[row]): each for row, each in arguments.items() if placed[row]}
    return Trace(
        start_ns=columns["start"],
        duration_ns=columns["duration"],
        category=Words(codes=codes["category"], texts=tuple(rows.categories.texts.texts)),
        name=Words(codes=codes["name"], texts=tuple(rows.names.texts)),
        process=columns["process"],
        thread=columns["thread"],
        stream=columns["stream"],
        correlation=columns["correlation"],
        external_id=columns["external_id"],
        bytes=columns["bytes"],
        arguments=arguments,
        thread_names={thread: frozenset(names) for thread, names in rows.thread_names.items()},
        header=top,
        report=ReadReport(
            events=rows.events,
            repaired=rows.repaired,
            dropped=dropped,
            timeless=rows.timeless + lost,
            nameless=rows.events - rows.phased + int(nameless.sum()),
            unkept_names=rows.names.unkept + rows.categories.texts.unkept,
            unkept_arguments=rows.wanted.unkept,
            cut_short=cut_short,
        ),
    )


def _empty(texts: Texts, codes: npt.NDArray[np.int32]) -> Mask:
    """Mark the rows whose text is empty or missing."""
    mask: Mask = codes == texts.texts.index("") if "" in texts.texts else np.zeros(len(codes), dtype=np.bool_)
    return mask
