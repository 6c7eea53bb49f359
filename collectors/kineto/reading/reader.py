"""Read a Kineto trace (Chrome trace format, JSON) into columns.

Absolute time is ``baseTimeNanoseconds + 1000 * ts``, with ``ts`` in microseconds and up to three decimals,
exact to the nanosecond. ``displayTimeUnit`` is the unit in which viewers show times, not the unit of the
file.

The array of events is read through a window that moves over the text. The fast path guesses the end of the
last complete event in the window and decodes everything before it at once. If the guess was wrong, or the
text is not valid JSON, decoding fails: then brackets are counted, and the events are bisected to find the
broken ones. A wrong guess never loses an event.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from zprof.collectors.kineto.reading.columns import NUMBER_LIMIT, TextCodes
from zprof.collectors.kineto.reading.decoding import EventChunk, RepairedChunk
from zprof.collectors.kineto.reading.document import (
    HEADER_KEYS,
    Document,
    check_has_events,
    name_file_in_errors,
    parse_header,
)
from zprof.collectors.kineto.reading.events import DECODE_ERRORS
from zprof.collectors.kineto.reading.repair import repair_event
from zprof.collectors.kineto.reading.rows import EventRows
from zprof.collectors.kineto.reading.structure import Separators, find_elements
from zprof.collectors.kineto.reading.text import TextSource, TextWindow, TraceText
from zprof.collectors.kineto.trace import Mask, ReadReport, TextColumn, Trace
from zprof.model.errors import BadInput
from zprof.run.plain_file import open_plain

#: Limit on repeated ``traceEvents``: each costs a scan of the entire window.
_MAX_ARRAYS = 64
_BETWEEN = re.compile(rb"[\s,]+")
_OPEN, _CLOSE, _CURLY_OPEN = b"[]{"


def read_trace(path: Path, on_bytes: Callable[[int], None] | None = None) -> Trace:
    """Read a trace file: plain, gzip or zstd.

    Args:
        path: A regular file, of any name.
        on_bytes: Called after each block with the number of bytes of the file read so far.

    Raises:
        BadInput: the file cannot be read, or is not a trace.
    """
    with name_file_in_errors(path), open_plain(path) as file:
        text = TraceText(file, on_bytes)
        trace = read_text(text, lambda: text.is_damaged)
        return replace(trace, report=replace(trace.report, trailing_bytes=text.trailing_bytes))


def read_text(
    text: TextSource, is_damaged: Callable[[], bool] = lambda: False, block_bytes: int = 512 << 10
) -> Trace:
    """Read the text of a trace, ``block_bytes`` at a time.

    Raises:
        BadInput: it is not a trace.
    """
    reading = _TraceReading(TextWindow(text, block_bytes))
    reading.document.read()
    return reading.trace(is_damaged=is_damaged())


class _TraceReading:
    """Read one file. If ``traceEvents`` occurs twice, the last one counts, as usual in JSON."""

    def __init__(self, window: TextWindow) -> None:
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

    def trace(self, *, is_damaged: bool) -> Trace:
        check_has_events(self.document)
        rows, array, is_complete = self._rows, self._array, self.document.is_complete
        if not rows.with_phase and not (array.is_empty and is_complete):
            raise BadInput("none of its entries is an event")
        return _build_trace(rows, self.document, array.dropped, cut_short=is_damaged or not is_complete)


def _build_trace(rows: EventRows, document: Document, dropped: int, *, cut_short: bool) -> Trace:
    header = parse_header(document.values)
    columns = {name: column.finish() for name, column in rows.columns.items()}
    codes = {name: column.finish() for name, column in rows.codes.items()}
    columns["start"] += header.base_ns
    has_valid_time = (columns["start"] >= 0) & (columns["start"] < NUMBER_LIMIT - columns["duration"])
    arguments = rows.kept_arguments.rows
    without_name = _mask_empty_texts(rows.names, codes["name"]) | _mask_empty_texts(
        rows.categories.texts, codes["category"]
    )
    invalid_times = len(has_valid_time) - int(has_valid_time.sum())
    if invalid_times:
        columns = {name: column[has_valid_time] for name, column in columns.items()}
        codes = {name: column[has_valid_time] for name, column in codes.items()}
        new_rows = np.cumsum(has_valid_time) - 1
        arguments = {int(new_rows[row]): entry for row, entry in arguments.items() if has_valid_time[row]}
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
        process_names=rows.process_names,
        header=header,
        report=ReadReport(
            events=rows.events,
            repaired=rows.repaired,
            dropped=dropped,
            without_time=rows.without_time + invalid_times,
            without_name=rows.events - rows.with_phase + int(without_name.sum()),
            dropped_names=rows.names.dropped + rows.categories.texts.dropped,
            dropped_arguments=rows.kept_arguments.dropped,
            cut_short=cut_short,
        ),
    )


def _mask_empty_texts(texts: TextCodes, codes: npt.NDArray[np.int32]) -> Mask:
    mask: Mask = codes == texts.texts.index("") if "" in texts.texts else np.zeros(len(codes), dtype=np.bool_)
    return mask


#: An event that does not end within this size is broken; other events may start within it.
_MAX_EVENT_BYTES = 1 << 20
_Spans = list[tuple[int, int]]


class EventArray:
    """Read the array of events.

    ``dropped`` counts the pieces that could not be read; ``is_empty`` is True for ``[]``.
    """

    def __init__(self, window: TextWindow, rows: EventRows) -> None:
        self._window = window
        self._rows = rows
        self._separators = Separators()
        self.dropped = 0
        self.is_empty = False

    def read(self) -> bool:
        """Read from the opening to the closing bracket; return False if the text ends first."""
        window = self._window
        self.is_empty = window.skip(_BETWEEN) == _CLOSE
        while (byte := window.skip(_BETWEEN)) is not None:
            if byte == _CLOSE:
                window.start += 1
                return True
            last_separator = self._separators.find_last(window.data, window.start, window.end)
            if last_separator is not None and self._try_decode(window.start, last_separator[0]):
                window.start = last_separator[1]
                window.read_more()  # One event is left, probably incomplete.
            elif not self._read_slowly() and not window.read_more():
                break
        return False

    def _try_decode(self, start: int, stop: int) -> bool:
        """Decode a part of the window as an array, in temporary brackets; return False if it is invalid."""
        data = self._window.data
        saved = data[start - 1], data[stop]
        data[start - 1], data[stop] = _OPEN, _CLOSE
        try:
            self._rows.add(EventChunk(data, start, stop, self._separators))
        except DECODE_ERRORS:
            return False
        finally:
            data[start - 1], data[stop] = saved
        return True

    def _read_slowly(self) -> bool:
        """Read the elements that have matching brackets; return False if there are none."""
        window, start = self._window, self._window.start
        found = find_elements(window.data, start, window.end)
        self._separators.learn(window.data, found.spans)
        broken_at = self._read_spans(found.spans, self._read_element)
        last_stop = found.spans[-1][1] if found.spans else start
        if broken_at is not None:
            window.start = self._read_by_separators(broken_at)
        elif found.end is not None:
            is_end = window.data[found.end] == _CLOSE
            window.start = found.end if is_end else self._read_by_separators(last_stop, found.end + 1)
        elif window.ended or window.end - last_stop > _MAX_EVENT_BYTES:
            window.start = self._read_by_separators(last_stop)
        else:
            window.start = last_stop
        return window.start > start

    def _read_by_separators(self, start: int, fallback: int | None = None) -> int:
        """Read events using separators only, because brackets do not match.

        Returns:
            Position at which to continue; ``fallback``, or ``start``, if there are no separators.
        """
        spans, last = self._separators.split(self._window.data, start, self._window.end)
        if not spans:
            self.dropped += fallback is not None
            return start if fallback is None else fallback
        array_end = self._read_spans(spans, self._read_chunk)
        return last if array_end is None else array_end

    def _read_spans(self, spans: _Spans, read_one: Callable[[int, int], int | None]) -> int | None:
        """Decode all spans at once, else in halves, else with ``read_one``, which may return where to
        continue.
        """
        if not spans or self._try_decode(spans[0][0], spans[-1][1]):
            return None
        if len(spans) == 1:
            return read_one(*spans[0])
        middle = len(spans) // 2
        resume_at = self._read_spans(spans[:middle], read_one)
        return self._read_spans(spans[middle:], read_one) if resume_at is None else resume_at

    def _read_element(self, start: int, stop: int) -> int | None:
        """Read one bracketed element; return its start if it is broken and may contain other events."""
        data = self._window.data
        if data[start] == _CURLY_OPEN and not self._repair(start, stop):
            if self._separators.find_last(data, start, stop) is not None:
                return start
            self.dropped += 1
        return None

    def _read_chunk(self, start: int, stop: int) -> int | None:
        """Read the text between two separators; return the end of the array if the text contains it."""
        if self._repair(start, stop):
            return None
        data = self._window.data
        found = find_elements(data, start, stop)
        is_end = found.end is not None and data[found.end] == _CLOSE and len(found.spans) == 1
        if is_end and (self._try_decode(*found.spans[0]) or self._repair(*found.spans[0])):
            return found.end
        self.dropped += 1
        return None

    def _repair(self, start: int, stop: int) -> bool:
        repaired_event = repair_event(bytes(self._window.data[start:stop]))
        if repaired_event is not None:
            self._rows.repaired += repaired_event.changed
            self._rows.add(RepairedChunk(repaired_event))
        return repaired_event is not None
