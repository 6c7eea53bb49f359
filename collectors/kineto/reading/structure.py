"""Find where events start and end in the JSON text: by brackets outside strings, vectorized, and by the
separator between events.

The separator is learned from the layout of the first events: ``},`` + newline + indent + ``{`` cannot occur
within a string, and the indent inside an event differs. In a file without newlines, the first key of an event
is part of it: ``}, {"ph"``. A wrong guess is harmless: what it cuts off is not valid JSON.
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_QUOTE, _BACKSLASH = 0x22, 0x5C
#: ``[`` and ``{`` differ in this bit only, and so do ``]`` and ``}``.
_CURLY = 0x20
_OPEN, _CLOSE = 0x7B, 0x7D
#: Text searched at a time; temporary arrays take about ten times its size.
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Brackets:
    """Brackets of a text. ``depth`` is the depth after each. ``in_string``: the text ends in a string."""

    position: npt.NDArray[np.int64]
    depth: npt.NDArray[np.int64]
    opens: npt.NDArray[np.bool_]
    in_string: bool


def find_brackets(text: bytearray, start: int, stop: int, *, in_string: bool = False) -> Brackets:
    """Return the brackets of ``text[start:stop]`` outside strings, by position in ``text``."""
    letters = np.frombuffer(text, dtype=np.uint8)
    found, escaped = [np.zeros(0, dtype=np.int64)], False
    for begin in range(start, stop, _PIECE_BYTES):
        piece = letters[begin : min(begin + _PIECE_BYTES, stop)]
        quotes, escaped = _find_quotes(piece, escaped)
        folded = piece | _CURLY
        position = np.flatnonzero((folded == _OPEN) | (folded == _CLOSE))
        outside = (np.searchsorted(quotes, position) + in_string) % 2 == 0
        found.append(position[outside] + begin)
        in_string = bool((len(quotes) + in_string) % 2)
    positions = np.concatenate(found)
    opens = letters[positions] | _CURLY == _OPEN
    depth = np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int64)
    return Brackets(position=positions, depth=depth, opens=opens, in_string=in_string)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """The complete bracketed elements of an array, as (start, stop), and the array's end, or None."""

    spans: list[tuple[int, int]]
    closed: int | None


def find_elements(text: bytearray, start: int, stop: int) -> Elements:
    """Return the elements of ``text[start:stop]``, which starts between two elements of an array."""
    found = find_brackets(text, start, stop)
    below = np.flatnonzero(found.depth < 0)
    closed = int(below[0]) if len(below) else len(found.depth)
    depth, opens, position = found.depth[:closed], found.opens[:closed], found.position[:closed]
    starts = position[opens & (depth == 1)].tolist()
    stops = (position[~opens & (depth == 0)] + 1).tolist()
    return Elements(
        spans=list(zip(starts, stops, strict=False)),
        closed=int(found.position[closed]) if len(below) else None,
    )


def _find_quotes(letters: npt.NDArray[np.uint8], escaped: bool) -> tuple[npt.NDArray[np.int64], bool]:
    """Return the unescaped quotes, and whether the next character is escaped, as the first one may be."""
    quotes = np.flatnonzero(letters == _QUOTE)
    slashes = np.flatnonzero(letters == _BACKSLASH)
    if escaped and len(quotes) and quotes[0] == 0:
        quotes = quotes[1:]
    if not len(slashes):
        return quotes, False
    first = slashes[np.diff(slashes, prepend=-2) > 1]
    last = slashes[np.diff(slashes, append=len(letters) + 2) > 1]
    if escaped and first[0] == 0:
        first[0] = 1  # an escaped backslash escapes nothing
    behind = (last + 1)[(last - first) % 2 == 0]
    return np.setdiff1d(quotes, behind, assume_unique=True), bool(len(behind) and behind[-1] == len(letters))


_GAP = re.compile(rb"\s*,\s*")
_FIRST_KEY = re.compile(rb'\{\s*"[^"\\]{0,60}"')


class Separators:
    """The separator between events, unknown until ``learn`` has seen two of them."""

    def __init__(self) -> None:
        self._sign = b""
        self._skip = 0

    def learn(self, text: bytearray, spans: list[tuple[int, int]]) -> None:
        """Learn the separator from the gap between the first two elements."""
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
        """Return the end of the last event but one, and the start of the last, which may be incomplete."""
        found = text.rfind(self._sign, start, stop) if self._sign else -1
        return (found + 1, found + self._skip) if found >= 0 else None

    def around(self, text: bytearray, start: int, place: int, stop: int) -> tuple[int, int]:
        """Return start and end of the event at ``place``, between two separators or the limits."""
        before, behind = (
            (text.rfind(self._sign, start, place), text.find(self._sign, place, stop))
            if self._sign
            else (-1, -1)
        )
        return before + self._skip if before >= 0 else start, behind + 1 if behind >= 0 else stop

    def spans(self, text: bytearray, start: int, stop: int) -> tuple[list[tuple[int, int]], int]:
        """Return the spans between separators, as (start, stop), and the start of what follows the last."""
        spans: list[tuple[int, int]] = []
        while self._sign and (found := text.find(self._sign, start, stop)) >= 0:
            spans.append((start, found + 1))
            start = found + self._skip
        return spans, start
