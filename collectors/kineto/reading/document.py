"""Read the outer part of a trace (an object with the events under one of its keys, or a bare list of events),
parse its header, and identify files that are not traces.

Keys may come before and after the events, in any order. Values of other keys are skipped: some programs write
their entire environment into a trace.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zprof.collectors.kineto.reading.columns import to_int64
from zprof.collectors.kineto.reading.structure import find_brackets
from zprof.collectors.kineto.reading.text import TextWindow
from zprof.collectors.kineto.trace import ABSENT, TraceHeader, TraceProcessGroup, int64_or_none
from zprof.model.errors import BadInput

EVENTS_KEY = b"traceEvents"
_SPACE, _BETWEEN = re.compile(rb"\s+"), re.compile(rb"[\s,]+")
_PADDING = re.compile(rb"[\s\0]+")
_KEY = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+:', re.DOTALL)
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]++")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE, _OPEN, _CURLY_OPEN, _CURLY_CLOSE, _BACKSLASH = b'"[{}\\'
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
        self._skip_byte_order_mark()
        first = self._window.skip(_SPACE)
        if first not in (_OPEN, _CURLY_OPEN):
            raise make_not_a_trace_error(self._window)
        self._window.start += 1
        reached_end = self._read_list() if first == _OPEN else self._read_object()
        self.is_complete = reached_end and self._window.skip(_PADDING) is None

    def _skip_byte_order_mark(self) -> None:
        window = self._window
        while window.end - window.start < len(_BYTE_ORDER_MARK) and window.read_more():
            pass
        if window.data.startswith(_BYTE_ORDER_MARK, window.start):
            window.start += len(_BYTE_ORDER_MARK)

    def _read_list(self) -> bool:
        if self._window.skip(_SPACE) != _CURLY_OPEN:
            raise make_not_a_trace_error(self._window)
        self.has_events = True
        return self._read_events()

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
        stop = stop
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


def check_has_events(document: Document) -> None:
    """Check that a document has events.

    Raises:
        BadInput: it has none.
    """
    if not document.has_events:
        reason = "it has no traceEvents" if document.is_complete else "it ends before the events"
        raise BadInput(reason)


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
        return json.loads(text.decode(errors="replace"), strict=False, parse_int=_parse_integer)
    except (ValueError, RecursionError):
        return None


def _parse_integer(digits: str) -> int | None:
    return int(digits) if len(digits) < 64 else None


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
