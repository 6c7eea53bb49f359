"""Reads the outer part of a trace: an object with the events under one of its keys, or a bare list of events.

Keys stand before and after the events, in any order.  Values of keys that nobody asked for are passed over
unread: there are programs that write their whole environment into a trace.
"""

import re
from collections.abc import Callable, Collection

from zprof.collectors.kineto.reading.refusals import no_trace
from zprof.collectors.kineto.reading.structure import brackets
from zprof.collectors.kineto.reading.window import Window
from zprof.model.errors import BadInput

EVENTS = b"traceEvents"
_SPACE, _BETWEEN = re.compile(rb"\s+"), re.compile(rb"[\s,]+")
_PADDING = re.compile(rb"[\s\0]+")
_KEY = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+:', re.DOTALL)
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}]++")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE, _OPEN, _CURLY_OPEN, _CURLY_CLOSE, _BACKSLASH = b'"[{}\\'
#: A list of groups of some ten thousand ranks has some megabytes.
_MOST_VALUE_BYTES = 16 << 20


class Document:
    """``values``: the text of each value asked for.  ``complete``: the text ends where it should.

    Args:
        window: At the begin of the text.
        asked: Keys whose values are kept.
        read_events: Called behind the bracket that opens the events; answers whether it saw them end.
    """

    def __init__(self, window: Window, asked: Collection[bytes], read_events: Callable[[], bool]) -> None:
        self._window = window
        self._asked = frozenset(asked)
        self._read_events = read_events
        self.values: dict[bytes, bytes] = {}
        self.has_events = False
        self.complete = False

    def read(self) -> None:
        """Read all of it.

        Raises:
            BadInput: it is something else.
        """
        self._pass_byte_order_mark()
        first = self._window.skip(_SPACE)
        if first not in (_OPEN, _CURLY_OPEN):
            raise no_trace(self._window)
        self._window.start += 1
        closed = self._read_list() if first == _OPEN else self._read_object()
        self.complete = closed and self._window.skip(_PADDING) is None

    def _pass_byte_order_mark(self) -> None:
        window = self._window
        while window.end - window.start < len(_BYTE_ORDER_MARK) and window.more():
            pass
        if window.data.startswith(_BYTE_ORDER_MARK, window.start):
            window.start += len(_BYTE_ORDER_MARK)

    def _read_list(self) -> bool:
        if self._window.skip(_SPACE) != _CURLY_OPEN:
            raise no_trace(self._window)
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
            if kind == _OPEN and key.group(1) == EVENTS:
                self._window.start += 1
                self.has_events = True
                if not self._read_events():
                    break
            elif kind is None or not self._read_value(key.group(1), kind):
                break
        return False

    def _read_value(self, key: bytes, kind: int) -> bool:
        if kind in (_OPEN, _CURLY_OPEN):
            value = bracketed(self._window, keep=key in self._asked)
        else:
            found = self._match(_TEXT if kind == _QUOTE else _SCALAR)
            value = found.group() if found else None
        if value is not None and key in self._asked:
            self.values[key] = value
        return value is not None

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """Move behind what matches here, once more than that is in sight."""
        window = self._window
        while True:
            found = pattern.match(window.data, window.start, window.end)
            if (found and found.end() < window.end) or not window.more():
                break
        if found is None:
            return None
        copied = pattern.match(found.group())
        window.start = found.end()
        return copied


def bracketed(window: Window, *, keep: bool) -> bytes | None:
    """Move behind the list or object that begins here, of any size; its text where it is to be kept."""
    kept, depth, in_string = bytearray(), 0, False
    while True:
        stop = _without_backslashes(window)
        found = brackets(window.data, window.start, stop, in_string=in_string)
        ends = (found.depth + depth == 0).nonzero()[0]
        stop = int(found.position[ends[0]]) + 1 if len(ends) else stop
        if keep and len(kept) <= _MOST_VALUE_BYTES:
            kept += window.data[window.start : stop]
        window.start = stop
        if len(ends):
            return bytes(kept) if len(kept) <= _MOST_VALUE_BYTES else b""
        depth += int(found.depth[-1]) if len(found.depth) else 0
        in_string = found.in_string
        if not window.more():
            return None


def _without_backslashes(window: Window) -> int:
    """The end of the window, but before backslashes whose meaning hangs on what follows."""
    stop = window.end
    while stop > window.start and window.data[stop - 1] == _BACKSLASH and not window.ended:
        stop -= 1
    return stop


def refuse_without_events(document: Document) -> None:
    """An object without events is no trace.

    Raises:
        BadInput: it has none.
    """
    if not document.has_events:
        why = "it has no traceEvents" if document.complete else "it ends before its events"
        raise BadInput(why)
