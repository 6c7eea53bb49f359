"""Reads the array of events out of a window that moves over the text.

The fast way guesses where the last complete event of the window ends and decodes all up to there at once.
What the guess cut wrongly, or is not JSON as it should be, does not decode: then brackets are counted, and
halves of halves are decoded until the events are found that are to blame.  No event is lost to a wrong guess.
"""

import re
from collections.abc import Callable

from zprof.collectors.kineto.reading.decoding import MendedPiece, Piece
from zprof.collectors.kineto.reading.events import NOT_DECODED
from zprof.collectors.kineto.reading.mend import mend
from zprof.collectors.kineto.reading.rows import Rows
from zprof.collectors.kineto.reading.separators import Separators
from zprof.collectors.kineto.reading.structure import elements
from zprof.collectors.kineto.reading.window import Window

_BETWEEN = re.compile(rb"[\s,]+")
_OPEN, _CLOSE, _CURLY_OPEN = b"[]{"
#: An event that is not closed within as much, though others seem to begin in it, is broken.
_MOST_EVENT_BYTES = 1 << 20
_Spans = list[tuple[int, int]]


class EventArray:
    """``dropped``: pieces that could not be read.  ``empty``: nothing at all stands in it."""

    def __init__(self, window: Window, rows: Rows) -> None:
        self._window = window
        self._rows = rows
        self._separators = Separators()
        self.dropped = 0
        self.empty = False

    def read(self) -> bool:
        """Read from behind the opening bracket to behind the closing one; False where the text ends first."""
        window = self._window
        self.empty = window.skip(_BETWEEN) == _CLOSE
        while (byte := window.skip(_BETWEEN)) is not None:
            if byte == _CLOSE:
                window.start += 1
                return True
            cut = self._separators.last(window.data, window.start, window.end)
            if cut is not None and self._decodes(window.start, cut[0]):
                window.start = cut[1]
                window.more()  # One event is left, and hardly all of it.
            elif not self._read_slowly() and not window.more():
                break
        return False

    def _decodes(self, start: int, stop: int) -> bool:
        """Whether that part of the window is a row of events; brackets are put around it for the time."""
        data = self._window.data
        around = data[start - 1], data[stop]
        data[start - 1], data[stop] = _OPEN, _CLOSE
        try:
            self._rows.add(Piece(data, start, stop, self._separators))
        except NOT_DECODED:
            return False
        finally:
            data[start - 1], data[stop] = around
        return True

    def _read_slowly(self) -> bool:
        """Read the elements that are complete by their brackets; False where none is."""
        window, before = self._window, self._window.start
        found = elements(window.data, before, window.end)
        self._separators.learn(window.data, found.spans)
        trouble = self._read_spans(found.spans, self._read_element)
        reached = found.spans[-1][1] if found.spans else before
        if trouble is not None:
            window.start = self._read_by_signs(trouble)
        elif found.closed is not None:
            ends = window.data[found.closed] == _CLOSE
            window.start = found.closed if ends else self._read_by_signs(reached, found.closed + 1)
        elif window.ended or window.end - reached > _MOST_EVENT_BYTES:
            window.start = self._read_by_signs(reached)
        else:
            window.start = reached
        return window.start > before

    def _read_by_signs(self, start: int, otherwise: int | None = None) -> int:
        """Brackets do not match: only the separators tell events apart.

        Returns:
            Where to go on; ``otherwise``, or ``start``, where there are no separators.
        """
        spans, last = self._separators.spans(self._window.data, start, self._window.end)
        if not spans:
            self.dropped += otherwise is not None
            return start if otherwise is None else otherwise
        closed = self._read_spans(spans, self._read_piece)
        return last if closed is None else closed

    def _read_spans(self, spans: _Spans, read_one: Callable[[int, int], int | None]) -> int | None:
        """Decode all at once, or each half, or by ``read_one``; which may say where to go on instead."""
        if not spans or self._decodes(spans[0][0], spans[-1][1]):
            return None
        if len(spans) == 1:
            return read_one(*spans[0])
        middle = len(spans) // 2
        stopped = self._read_spans(spans[:middle], read_one)
        return self._read_spans(spans[middle:], read_one) if stopped is None else stopped

    def _read_element(self, start: int, stop: int) -> int | None:
        """One by its brackets; its begin where it is broken and may have swallowed others."""
        data = self._window.data
        if data[start] == _CURLY_OPEN and not self._mend(start, stop):
            if self._separators.last(data, start, stop) is not None:
                return start
            self.dropped += 1
        return None

    def _read_piece(self, start: int, stop: int) -> int | None:
        """What lies between two separators; the end of the array where it lies in it."""
        if self._mend(start, stop):
            return None
        data = self._window.data
        found = elements(data, start, stop)
        ends = found.closed is not None and data[found.closed] == _CLOSE and len(found.spans) == 1
        if ends and (self._decodes(*found.spans[0]) or self._mend(*found.spans[0])):
            return found.closed
        self.dropped += 1
        return None

    def _mend(self, start: int, stop: int) -> bool:
        mended = mend(bytes(self._window.data[start:stop]))
        if mended is not None:
            self._rows.repaired += mended.changed
            self._rows.add(MendedPiece(mended))
        return mended is not None
