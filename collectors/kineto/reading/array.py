"""Reads the array of events out of a window that moves over the text.

The fast way guesses where the last complete event of the window ends and decodes all up to there at once.
What the guess cut wrongly, or is not JSON as it should be, does not decode: then brackets are counted, and
halves of halves are decoded until the events are found that are to blame.  No event is lost to a wrong guess.
"""

import re

from zprof.collectors.kineto.reading.events import NOT_DECODED
from zprof.collectors.kineto.reading.mend import mend
from zprof.collectors.kineto.reading.rows import Rows
from zprof.collectors.kineto.reading.separators import Separators
from zprof.collectors.kineto.reading.structure import elements
from zprof.collectors.kineto.reading.window import Window

_BETWEEN = re.compile(rb"[\s,]+")
_OPEN, _CLOSE, _CURLY_OPEN, _CURLY_CLOSE = b"[]{}"
#: Each costs counting the brackets of a window again.
_MOST_NEW_BEGINNINGS = 32


class EventArray:
    """``dropped``: events that could not be read.  ``strangers``: entries that are no objects."""

    def __init__(self, window: Window, rows: Rows) -> None:
        self._window = window
        self._rows = rows
        self._separators = Separators()
        self._beginnings = 0
        self.dropped = 0
        self.strangers = 0

    def read(self) -> bool:
        """Read from behind the opening bracket to behind the closing one; False where the text ends first."""
        window = self._window
        while (byte := window.skip(_BETWEEN)) is not None:
            if byte == _CLOSE:
                window.start += 1
                return True
            cut = self._separators.last(window.data, window.start, window.end)
            if cut is not None and self._decodes(window.start, cut[0]):
                window.start = cut[1]
            elif not self._read_slowly(cut[0] if cut else None) and not window.more():
                break
        return False

    def _decodes(self, start: int, stop: int) -> bool:
        """Whether that part of the window is a row of events; brackets are put around it for the time."""
        data = self._window.data
        around = data[start - 1], data[stop]
        data[start - 1], data[stop] = _OPEN, _CLOSE
        try:
            self._rows.add(memoryview(data)[start - 1 : stop + 1])
        except NOT_DECODED:
            return False
        finally:
            data[start - 1], data[stop] = around
        return True

    def _read_slowly(self, stop: int | None) -> bool:
        """Read what is complete, up to ``stop`` where that is known to end an event.

        Returns:
            False where nothing is complete yet.
        """
        window, self._beginnings = self._window, 0
        end = window.end if stop is None else stop
        reached = self._read_part(window.start, end, whole=stop is not None)
        moved = reached > window.start
        window.start = reached
        return moved

    def _read_part(self, start: int, stop: int, *, whole: bool) -> int:
        """Read the events of a part; returns where to go on: at the end of the array, if it is there."""
        data = self._window.data
        found = elements(data, start, stop)
        self._separators.learn(data, found.spans)
        self._read_spans(found.spans)
        reached = found.spans[-1][1] if found.spans else start
        if found.closed is not None and data[found.closed] == _CLOSE:
            return found.closed
        if found.closed is not None:
            return self._begin_anew(found.closed, stop)
        return self._begin_anew(reached, stop) if whole and reached < stop else reached

    def _begin_anew(self, start: int, stop: int) -> int:
        """Brackets do not match: what is there is lost up to where the next event seems to begin."""
        self._beginnings += 1
        self.dropped += 1
        begin = self._separators.following(self._window.data, start, stop)
        if begin is None or self._beginnings > _MOST_NEW_BEGINNINGS:
            return stop
        return self._read_part(begin, stop, whole=True)

    def _read_spans(self, spans: list[tuple[int, int]]) -> None:
        """Decode all at once, or each half."""
        if not spans or self._decodes(spans[0][0], spans[-1][1]):
            return
        if len(spans) > 1:
            self._read_spans(spans[: len(spans) // 2])
            self._read_spans(spans[len(spans) // 2 :])
        else:
            self._read_one(*spans[0])

    def _read_one(self, start: int, stop: int) -> None:
        data = self._window.data
        if data[start] != _CURLY_OPEN:
            self.strangers += 1
            return
        mended = mend(bytes(data[start:stop]))
        if mended is not None:
            self._rows.add_mended(mended)
        elif self._separators.following(data, start, stop) is not None:
            self._begin_anew(start, stop)
        else:
            self.dropped += 1
