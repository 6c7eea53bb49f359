"""Finds where one event ends and the next begins, from how the first ones of the file are laid out.

``},`` + newline + indent + ``{`` cannot stand within a string, and inside an event the indent is another.
In a file without newlines the first key of an event belongs to the sign: ``}, {"ph"``.  A wrong guess is
harmless: what it cuts off is no JSON.
"""

import re

_GAP = re.compile(rb"\s*,\s*")
_FIRST_KEY = re.compile(rb'\{\s*"[^"\\]{0,60}"')


class Separators:
    """Knows nothing until it has ``learn``ed."""

    def __init__(self) -> None:
        self._sign = b""
        self._skip = 0

    def learn(self, text: bytearray, spans: list[tuple[int, int]]) -> None:
        """Take the gap between the first two elements as the sign."""
        if len(spans) < 2:
            return
        stop, start = spans[0][1], spans[1][0]
        gap = bytes(text[stop:start])
        if not _GAP.fullmatch(gap):
            return
        key = _FIRST_KEY.match(text, start)
        begin = key.group() if b"\n" not in gap and key else b"{"
        self._sign, self._skip = b"}" + gap + begin, 1 + len(gap)

    def last(self, text: bytearray, start: int, stop: int) -> tuple[int, int] | None:
        """The end of the last event but one, and the begin of the last, which may not be complete."""
        found = text.rfind(self._sign, start, stop) if self._sign else -1
        return (found + 1, found + self._skip) if found >= 0 else None

    def around(self, text: bytearray, start: int, place: int, stop: int) -> tuple[int, int]:
        """Begin and end of the event at ``place`` between two separators, or the ends."""
        before, behind = (
            (text.rfind(self._sign, start, place), text.find(self._sign, place, stop))
            if self._sign
            else (-1, -1)
        )
        return before + self._skip if before >= 0 else start, behind + 1 if behind >= 0 else stop

    def spans(self, text: bytearray, start: int, stop: int) -> tuple[list[tuple[int, int]], int]:
        """All between separators, as (start, stop), and the begin of what follows the last."""
        spans: list[tuple[int, int]] = []
        while self._sign and (found := text.find(self._sign, start, stop)) >= 0:
            spans.append((start, found + 1))
            start = found + self._skip
        return spans, start
