"""Read a Kineto trace (Chrome trace format, JSON) into columns.

Absolute time is ``baseTimeNanoseconds + 1000 * ts``, with ``ts`` in microseconds and up to three decimals,
exact to the nanosecond. ``displayTimeUnit`` is the unit in which viewers show times, not the unit of the
file.

The array of events is read through a window that moves over the text. The fast path guesses the end of the
last complete event in the window and decodes everything before it at once. If the guess was wrong, or the
text is not valid JSON, decoding fails: then brackets are counted, and the events are bisected to find the
broken ones. A wrong guess never loses an event.

A trace is an object with the events under one of its keys, or a bare list of events; other files are refused,
with a guess at what they are. Keys may come before and after the events, in any order. Values of other keys
are skipped: some programs write their entire environment into a trace.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.collectors.read.kineto.reading.columns import NUMBER_LIMIT, TextCodes, to_int64
from zprof.collectors.read.kineto.reading.decoding import EventChunk, RepairedChunk
from zprof.collectors.read.kineto.reading.events import DECODE_ERRORS
from zprof.collectors.read.kineto.reading.repair import repair_event
from zprof.collectors.read.kineto.reading.rows import EventRows
from zprof.collectors.read.kineto.reading.structure import Separators, find_brackets, find_elements
from zprof.collectors.read.kineto.reading.text import TextSource, TextWindow, TraceText
from zprof.collectors.read.kineto.trace import (
    ABSENT,
    Mask,
    ReadReport,
    TextColumn,
    Trace,
    TraceHeader,
    TraceProcessGroup,
    int64_or_none,
)
from zprof.run.files import open_plain

#: Limit on repeated ``traceEvents``: each costs a scan of the entire window.
_MAX_ARRAYS = 64
EVENTS_KEY = b"traceEvents"
_SPACE, _BETWEEN = re.compile(rb"\s+"), re.compile(rb"[\s,]+")
_PADDING = re.compile(rb"[\s\0]+")
_KEY = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+:', re.DOTALL)
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]++")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE, _OPEN, _CLOSE, _CURLY_OPEN, _CURLY_CLOSE, _BACKSLASH = b'"[]{}\\'
#: A list of groups with ten thousand ranks or so takes a few megabytes.
_MAX_VALUE_BYTES = 16 << 20
HEADER_KEYS = (
    b"baseTimeNanoseconds",
    b"distributedInfo",
    b"deviceProperties",
    b"host_name",
)
_MAX_RANKS = 1 << 22
_MAX_TEXT_LENGTH = 256
_OTHER_FILE_KINDS = (
    (b"\x80", "it is a pickle", "pass a CUDA memory snapshot directly to: zprof import"),
    (b"<", "it is an HTML or XML page", "download the file itself"),
    (b"PK\x03\x04", "it is a zip archive", "unpack it"),
    (b"PAR1", "it is a Parquet file", "pass the run directory"),
    (b"version https://git-lfs", "it is a Git LFS pointer", "run: git lfs pull"),
)
_EXPORT_HINT = "pass a trace exported by torch.profiler with export_chrome_trace"


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
        if not self.document.has_events:
            reason = "it has no traceEvents" if self.document.is_complete else "it ends before the events"
            raise BadInput(reason)
        rows, array, is_complete = self._rows, self._array, self.document.is_complete
        if not rows.with_phase and not (array.is_empty and is_complete):
            raise BadInput("none of its entries is an event")
        return _build_trace(rows, self.document, array.dropped, cut_short=is_damaged or not is_complete)


def _build_trace(rows: EventRows, document: "Document", dropped: int, *, cut_short: bool) -> Trace:
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
        lane_names=rows.lane_names,
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
    return codes == texts.texts.index("") if "" in texts.texts else np.zeros(len(codes), dtype=np.bool_)


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
        spans, array_end = find_elements(window.data, start, window.end)
        self._separators.learn(window.data, spans)
        broken_at = self._read_spans(spans, self._read_element)
        last_stop = spans[-1][1] if spans else start
        if broken_at is not None:
            window.start = self._read_by_separators(broken_at)
        elif array_end is not None:
            is_end = window.data[array_end] == _CLOSE
            window.start = array_end if is_end else self._read_by_separators(last_stop, array_end + 1)
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
        spans, array_end = find_elements(data, start, stop)
        is_end = array_end is not None and data[array_end] == _CLOSE and len(spans) == 1
        if is_end and (self._try_decode(*spans[0]) or self._repair(*spans[0])):
            return array_end
        self.dropped += 1
        return None

    def _repair(self, start: int, stop: int) -> bool:
        repaired_event = repair_event(bytes(self._window.data[start:stop]))
        if repaired_event is not None:
            self._rows.repaired += repaired_event.changed
            self._rows.add(RepairedChunk(repaired_event))
        return repaired_event is not None


class Document:
    """The outer part of a trace.

    ``values``: the text of each requested value. ``is_complete``: the text ends at the end of the document.

    Args:
        window: Window at the start of the text.
        wanted_keys: Keys whose values are kept.
        read_events: Called after the opening bracket of the events; returns True if it reached their end.
    """

    def __init__(
        self, window: TextWindow, wanted_keys: Collection[bytes], read_events: Callable[[], bool]
    ) -> None:
        self._window = window
        self._wanted_keys = frozenset(wanted_keys)
        self._read_events = read_events
        self.values: dict[bytes, bytes] = {}
        self.has_events = False
        self.is_complete = False

    def read(self) -> None:
        """Read the entire document.

        Raises:
            BadInput: it is not a trace.
        """
        window = self._window
        while window.end - window.start < len(_BYTE_ORDER_MARK) and window.read_more():
            pass
        if window.data.startswith(_BYTE_ORDER_MARK, window.start):
            window.start += len(_BYTE_ORDER_MARK)
        first = self._window.skip(_SPACE)
        if first not in (_OPEN, _CURLY_OPEN):
            raise make_not_a_trace_error(self._window)
        self._window.start += 1
        if first == _CURLY_OPEN:
            reached_end = self._read_object()
        elif self._window.skip(_SPACE) != _CURLY_OPEN:
            raise make_not_a_trace_error(self._window)
        else:
            self.has_events = True
            reached_end = self._read_events()
        self.is_complete = reached_end and self._window.skip(_PADDING) is None

    def _read_object(self) -> bool:
        while (first := self._window.skip(_BETWEEN)) is not None:
            if first == _CURLY_CLOSE:
                self._window.start += 1
                return True
            key = self._match(_KEY) if first == _QUOTE else None
            if key is None:
                break
            kind = self._window.skip(_SPACE)
            if kind == _OPEN and key.group(1) == EVENTS_KEY:
                self._window.start += 1
                self.has_events = True
                if not self._read_events():
                    break
            elif kind is None or not self._read_value(key.group(1), kind):
                break
        return False

    def _read_value(self, key: bytes, kind: int) -> bool:
        if kind in (_OPEN, _CURLY_OPEN):
            value = skip_bracketed(self._window, keep_text=key in self._wanted_keys)
        else:
            match = self._match(_TEXT if kind == _QUOTE else _SCALAR)
            value = match.group() if match else None
        if value is not None and key in self._wanted_keys:
            self.values[key] = value
        return value is not None

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Advance past a match once the window extends beyond it, and return a copy of the match."""
        window = self._window
        while True:
            match = pattern.match(window.data, window.start, window.end)
            if (match and match.end() < window.end) or not window.read_more():
                break
        if match is None:
            return None
        copy = pattern.match(match.group())
        window.start = match.end()
        return copy


def skip_bracketed(window: TextWindow, *, keep_text: bool) -> bytes | None:
    """Advance past a list or object of any size; return its text if ``keep_text``, or None if it does not
    end.
    """
    text, depth, in_string = bytearray(), 0, False
    while True:
        # The window's end, before trailing backslashes, whose meaning depends on what follows.
        stop = window.end
        while stop > window.start and window.data[stop - 1] == _BACKSLASH and not window.ended:
            stop -= 1
        brackets = find_brackets(window.data, window.start, stop, in_string=in_string)
        ends = (brackets.depth + depth == 0).nonzero()[0]
        stop = int(brackets.position[ends[0]]) + 1 if len(ends) else stop
        if keep_text and len(text) <= _MAX_VALUE_BYTES:
            text += window.data[window.start : stop]
        window.start = stop
        if len(ends):
            return bytes(text) if len(text) <= _MAX_VALUE_BYTES else b""
        depth += int(brackets.depth[-1]) if len(brackets.depth) else 0
        in_string = brackets.in_string
        if not window.read_more():
            return None


def parse_header(values: Mapping[bytes, bytes]) -> TraceHeader:
    """Parse the header from the text of each value; a damaged value or another type counts as absent."""
    parsed = {key: _parse_value(values.get(key, b"null")) for key in HEADER_KEYS}
    base, info, devices, host = (parsed[key] for key in HEADER_KEYS)
    info = info if isinstance(info, dict) else {}
    return TraceHeader(
        base_ns=max(0, to_int64(base)),
        rank=_count_or_none(info.get("rank")),
        world_size=_count_or_none(info.get("world_size")),
        backend=_read_text(info.get("backend")),
        groups=tuple(_read_groups(info.get("pg_config"))),
        devices=tuple(_read_text(d.get("name")) for d in _list_or_empty(devices) if isinstance(d, dict)),
        host=_read_text(host),
    )


def _parse_value(text: bytes) -> Any:
    try:
        return json.loads(
            text.decode(errors="replace"),
            strict=False,
            parse_int=lambda digits: int(digits) if len(digits) < 64 else None,
        )
    except (ValueError, RecursionError):
        return None


def _read_groups(listed: object) -> Iterator[TraceProcessGroup]:
    ranks_left = _MAX_RANKS
    for entry in _list_or_empty(listed):
        ranks = _read_ranks(entry.get("ranks")) if isinstance(entry, dict) else ()
        ranks_left -= len(ranks)
        if ranks and ranks_left >= 0:
            yield TraceProcessGroup(
                name=_read_text(entry.get("pg_name")),
                description=_read_text(entry.get("pg_desc")),
                ranks=ranks,
            )


def _read_ranks(value: object) -> tuple[int, ...]:
    """Parse ``[1, 0]`` or ``"[1, 0]"``; empty if an entry is not a rank."""
    listed = _parse_value(value.encode(errors="replace")) if isinstance(value, str) else value
    ranks = [_count_or_none(rank) for rank in _list_or_empty(listed)]
    return tuple(sorted({rank for rank in ranks if rank is not None})) if None not in ranks else ()


def _list_or_empty(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _count_or_none(value: object) -> int | None:
    number = to_int64(value)
    return number if number != ABSENT and number >= 0 else None


def _read_text(value: object) -> str:
    """Return a text or an integer as text, cut to a limit."""
    if isinstance(value, int) and not isinstance(value, bool) and int64_or_none(value) is not None:
        return str(value)
    text = value.encode(errors="replace").decode() if isinstance(value, str) else ""
    return text[:_MAX_TEXT_LENGTH]


def make_not_a_trace_error(window: TextWindow) -> BadInput:
    """Return the error for a file that is not a trace, from the text at the window's position."""
    rest = window.data[window.start : window.end]
    if not rest:
        return BadInput("it is empty or cut short", hint=_EXPORT_HINT)
    for prefix, what, hint in _OTHER_FILE_KINDS:
        if rest.startswith(prefix):
            return BadInput(what, hint=hint)
    if rest.startswith(b"[") and window.data[1 : window.start].strip() == b"[":
        hint = "it may be a memory timeline; pass a memory snapshot instead"
        return BadInput("it is a list of lists, not of events", hint=hint)
    return BadInput("it is not a JSON object or a list of events", hint=_EXPORT_HINT)


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Add the file's name to errors.

    Raises:
        BadInput: in place of OSError, and of a BadInput without the name.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{path}: cannot be read ({reason})", hint="pass a trace file") from None
    except BadInput as error:
        hint = error.hint or "export the trace again"
        raise BadInput(f"{path}: not a Kineto trace ({error.message})", hint=hint) from None
