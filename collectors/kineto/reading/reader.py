"""Read a Kineto trace (Chrome trace format, JSON) into columns.

Absolute time is ``baseTimeNanoseconds + 1000 * ts``, with ``ts`` in microseconds and up to three decimals,
exact to the nanosecond. ``displayTimeUnit`` says how viewers show times, not how they are written.

The array of events is read through a window that moves over the text. The fast path guesses where the last
complete event of the window ends and decodes everything before it at once. If the guess was wrong, or the
text is not valid JSON, decoding fails: then brackets are counted, and the events are bisected until the
broken ones are found. No event is lost to a wrong guess.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.reading.columns import NUMBER_LIMIT, TextCodes
from zprof.collectors.kineto.reading.decoding import Piece, RepairedPiece
from zprof.collectors.kineto.reading.document import (
    HEADER_KEYS,
    Document,
    name_file_in_errors,
    parse_header,
    refuse_without_events,
)
from zprof.collectors.kineto.reading.events import DECODE_ERRORS
from zprof.collectors.kineto.reading.repair import repair_event
from zprof.collectors.kineto.reading.rows import EventRows
from zprof.collectors.kineto.reading.structure import Separators, find_elements
from zprof.collectors.kineto.reading.text import TextSource, TraceText, Window
from zprof.collectors.kineto.trace import Mask, ReadReport, TextColumn, Trace
from zprof.model.errors import BadInput
from zprof.run.plain_file import open_plain


def read_trace(path: Path, on_bytes: Callable[[int], None] | None = None) -> Trace:
    """Read a trace file: plain, gzip or zstd.

    Args:
        path: A regular file, of any name.
        on_bytes: Called after each block with the number of bytes of the file read so far.

    Raises:
        BadInput: it cannot be read, or is not such a trace.
    """
    with name_file_in_errors(path), open_plain(path) as file:
        text = TraceText(file, on_bytes)
        trace = read_text(text, lambda: text.damaged)
        return replace(trace, report=replace(trace.report, trailing_bytes=text.trailing_bytes))


def read_text(
    text: TextSource, damaged: Callable[[], bool] = lambda: False, block_bytes: int = 512 << 10
) -> Trace:
    """Read the text of a trace, ``block_bytes`` at a time.

    Raises:
        BadInput: it is not a trace.
    """
    reading = _TraceReading(Window(text, block_bytes))
    reading.document.read()
    return reading.trace(damaged=damaged())


#: Limit on repeated ``traceEvents``: each costs a scan of the whole window.
_MAX_ARRAYS = 64


class _TraceReading:
    """The reading of one file. If ``traceEvents`` occurs twice, the last counts, as in all JSON."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._arrays = 0
        self.document = Document(window, HEADER_KEYS, self._read_events)

    def _read_events(self) -> bool:
        self._arrays += 1
        if self._arrays > _MAX_ARRAYS:
            raise BadInput(f"it has traceEvents more than {_MAX_ARRAYS} times")
        self._rows = EventRows()
        self._array = EventArray(self._window, self._rows)
        return self._array.read()

    def trace(self, *, damaged: bool) -> Trace:
        refuse_without_events(self.document)
        rows, array, complete = self._rows, self._array, self.document.complete
        if not rows.phased and not (array.empty and complete):
            raise BadInput("none of its entries is an event")
        return _build_trace(rows, self.document, array.dropped, cut_short=damaged or not complete)


def _build_trace(rows: EventRows, document: Document, dropped: int, *, cut_short: bool) -> Trace:
    top = parse_header(document.values)
    columns = {name: column.finish() for name, column in rows.columns.items()}
    codes = {name: column.finish() for name, column in rows.codes.items()}
    columns["start"] += top.base_ns
    placed = (columns["start"] >= 0) & (columns["start"] < NUMBER_LIMIT - columns["duration"])
    arguments = rows.wanted.rows
    nameless = _mask_empty_texts(rows.names, codes["name"]) | _mask_empty_texts(
        rows.categories.texts, codes["category"]
    )
    untimed = len(placed) - int(placed.sum())
    if untimed:
        columns = {name: column[placed] for name, column in columns.items()}
        codes = {name: column[placed] for name, column in codes.items()}
        new = np.cumsum(placed) - 1
        arguments = {int(new[row]): each for row, each in arguments.items() if placed[row]}
    return Trace(
        start_ns=columns["start"],
        duration_ns=columns["duration"],
        category=TextColumn(codes=codes["category"], texts=tuple(rows.categories.texts.texts)),
        name=TextColumn(codes=codes["name"], texts=tuple(rows.names.texts)),
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
            timeless=rows.timeless + untimed,
            nameless=rows.events - rows.phased + int(nameless.sum()),
            unkept_names=rows.names.unkept + rows.categories.texts.unkept,
            unkept_arguments=rows.wanted.unkept,
            cut_short=cut_short,
        ),
    )


def _mask_empty_texts(texts: TextCodes, codes: npt.NDArray[np.int32]) -> Mask:
    mask: Mask = codes == texts.texts.index("") if "" in texts.texts else np.zeros(len(codes), dtype=np.bool_)
    return mask


_BETWEEN = re.compile(rb"[\s,]+")
_OPEN, _CLOSE, _CURLY_OPEN = b"[]{"
#: An event that does not end within this size is broken; others may start in it.
_MAX_EVENT_BYTES = 1 << 20
_Spans = list[tuple[int, int]]


class EventArray:
    """Reads the array of events.

    ``dropped`` counts the pieces that could not be read; ``empty`` is True for ``[]``.
    """

    def __init__(self, window: Window, rows: EventRows) -> None:
        self._window = window
        self._rows = rows
        self._separators = Separators()
        self.dropped = 0
        self.empty = False

    def read(self) -> bool:
        """Read from the opening to the closing bracket; return False if the text ends first."""
        window = self._window
        self.empty = window.skip(_BETWEEN) == _CLOSE
        while (byte := window.skip(_BETWEEN)) is not None:
            if byte == _CLOSE:
                window.start += 1
                return True
            cut = self._separators.last(window.data, window.start, window.end)
            if cut is not None and self._decodes(window.start, cut[0]):
                window.start = cut[1]
                window.more()  # One event is left, probably incomplete.
            elif not self._read_slowly() and not window.more():
                break
        return False

    def _decodes(self, start: int, stop: int) -> bool:
        """Decode a part of the window as an array, in temporary brackets; return False if it is invalid."""
        data = self._window.data
        around = data[start - 1], data[stop]
        data[start - 1], data[stop] = _OPEN, _CLOSE
        try:
            self._rows.add(Piece(data, start, stop, self._separators))
        except DECODE_ERRORS:
            return False
        finally:
            data[start - 1], data[stop] = around
        return True

    def _read_slowly(self) -> bool:
        """Read the elements that are complete by their brackets; return False if there are none."""
        window, before = self._window, self._window.start
        found = find_elements(window.data, before, window.end)
        self._separators.learn(window.data, found.spans)
        trouble = self._read_spans(found.spans, self._read_element)
        reached = found.spans[-1][1] if found.spans else before
        if trouble is not None:
            window.start = self._read_by_signs(trouble)
        elif found.closed is not None:
            ends = window.data[found.closed] == _CLOSE
            window.start = found.closed if ends else self._read_by_signs(reached, found.closed + 1)
        elif window.ended or window.end - reached > _MAX_EVENT_BYTES:
            window.start = self._read_by_signs(reached)
        else:
            window.start = reached
        return window.start > before

    def _read_by_signs(self, start: int, otherwise: int | None = None) -> int:
        """Read events by their separators only, because brackets do not match.

        Returns:
            Where to continue; ``otherwise``, or ``start``, if there are no separators.
        """
        spans, last = self._separators.spans(self._window.data, start, self._window.end)
        if not spans:
            self.dropped += otherwise is not None
            return start if otherwise is None else otherwise
        closed = self._read_spans(spans, self._read_piece)
        return last if closed is None else closed

    def _read_spans(self, spans: _Spans, read_one: Callable[[int, int], int | None]) -> int | None:
        """Decode all spans at once, else by halves, else by ``read_one``, which may return where to go on."""
        if not spans or self._decodes(spans[0][0], spans[-1][1]):
            return None
        if len(spans) == 1:
            return read_one(*spans[0])
        middle = len(spans) // 2
        stopped = self._read_spans(spans[:middle], read_one)
        return self._read_spans(spans[middle:], read_one) if stopped is None else stopped

    def _read_element(self, start: int, stop: int) -> int | None:
        """Read one bracketed element; return its start if it is broken and may contain others."""
        data = self._window.data
        if data[start] == _CURLY_OPEN and not self._repair(start, stop):
            if self._separators.last(data, start, stop) is not None:
                return start
            self.dropped += 1
        return None

    def _read_piece(self, start: int, stop: int) -> int | None:
        """Read the text between two separators; return the end of the array if it is in there."""
        if self._repair(start, stop):
            return None
        data = self._window.data
        found = find_elements(data, start, stop)
        ends = found.closed is not None and data[found.closed] == _CLOSE and len(found.spans) == 1
        if ends and (self._decodes(*found.spans[0]) or self._repair(*found.spans[0])):
            return found.closed
        self.dropped += 1
        return None

    def _repair(self, start: int, stop: int) -> bool:
        mended = repair_event(bytes(self._window.data[start:stop]))
        if mended is not None:
            self._rows.repaired += mended.changed
            self._rows.add(RepairedPiece(mended))
        return mended is not None
