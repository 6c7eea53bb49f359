"""Find where events start and end in the JSON text: by brackets outside strings (vectorized), and by
the separator between events.

The separator is learned from the layout of the first events: ``},`` + newline + indent + ``{`` cannot occur
within a string, and the indent inside an event differs. In a file without newlines, the separator includes
the first key of an event: ``}, {"ph"``. A wrong guess is harmless: the resulting pieces are not valid JSON.
"""

import re

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.base.errors import BadInput

_QUOTE, _BACKSLASH = 0x22, 0x5C
#: ``[`` and ``{`` differ in this bit only, and so do ``]`` and ``}``.
_CURLY = 0x20
_OPEN, _CLOSE = 0x7B, 0x7D
#: Bytes searched at a time; temporary arrays take about ten times as much.
_CHUNK_BYTES = 1 << 20
#: Maximum number of brackets kept at a time (about 30 bytes each); a batch of events has a few thousand.
_MAX_BRACKETS = 8 << 20
_GAP = re.compile(rb"\s*,\s*")
_FIRST_KEY = re.compile(rb'\{\s*"[^"\\]{0,60}"')


class Brackets(Struct, frozen=True, kw_only=True):
    """Brackets of a text. ``depth`` is the depth after each bracket. ``in_string``: the text ends inside a
    string.
    """

    position: npt.NDArray[np.int64]
    depth: npt.NDArray[np.int64]
    opens: npt.NDArray[np.bool_]
    in_string: bool


def find_brackets(text: bytearray, start: int, stop: int, *, in_string: bool = False) -> Brackets:
    """Return the brackets of ``text[start:stop]`` outside strings, by position in ``text``.

    Raises:
        BadInput: there are far more than a trace has.
    """
    characters = np.frombuffer(text, dtype=np.uint8)
    found, escaped = [np.zeros(0, dtype=np.int64)], False
    count = 0
    for begin in range(start, stop, _CHUNK_BYTES):
        chunk = characters[begin : min(begin + _CHUNK_BYTES, stop)]
        quotes, escaped = _find_quotes(chunk, escaped)
        folded = chunk | _CURLY
        position = np.flatnonzero((folded == _OPEN) | (folded == _CLOSE))
        outside = (np.searchsorted(quotes, position) + in_string) % 2 == 0
        found.append(position[outside] + begin)
        count += len(found[-1])
        if count > _MAX_BRACKETS:
            raise BadInput(
                f"one entry has more than {_MAX_BRACKETS >> 20} Mi brackets", hint="export the trace again"
            )
        in_string = bool((len(quotes) + in_string) % 2)
    positions = np.concatenate(found)
    opens = characters[positions] | _CURLY == _OPEN
    depth = np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int64)
    return Brackets(position=positions, depth=depth, opens=opens, in_string=in_string)


def find_elements(text: bytearray, start: int, stop: int) -> tuple[list[tuple[int, int]], int | None]:
    """Return the complete bracketed elements, as (start, stop), and the array's end, or None.

    ``text[start:stop]`` starts between two elements of an array.
    """
    found = find_brackets(text, start, stop)
    negative_depth = np.flatnonzero(found.depth < 0)
    end = int(negative_depth[0]) if len(negative_depth) else len(found.depth)
    depth, opens, position = found.depth[:end], found.opens[:end], found.position[:end]
    starts = position[opens & (depth == 1)].tolist()
    stops = (position[~opens & (depth == 0)] + 1).tolist()
    array_end = int(found.position[end]) if len(negative_depth) else None
    return list(zip(starts, stops, strict=False)), array_end


def _find_quotes(characters: npt.NDArray[np.uint8], escaped: bool) -> tuple[npt.NDArray[np.int64], bool]:
    """Return the unescaped quotes, and True if the character after the text is escaped.

    ``escaped``: the first character is escaped."""
    quotes = np.flatnonzero(characters == _QUOTE)
    slashes = np.flatnonzero(characters == _BACKSLASH)
    if escaped and len(quotes) and quotes[0] == 0:
        quotes = quotes[1:]
    if not len(slashes):
        return quotes, False
    first = slashes[np.diff(slashes, prepend=-2) > 1]
    last = slashes[np.diff(slashes, append=len(characters) + 2) > 1]
    if escaped and first[0] == 0:
        first[0] = 1  # an escaped backslash does not escape anything
    escaped_positions = (last + 1)[(last - first) % 2 == 0]
    return np.setdiff1d(quotes, escaped_positions, assume_unique=True), bool(
        len(escaped_positions) and escaped_positions[-1] == len(characters)
    )


class Separators:
    """Find the separator between events; it is unknown until ``learn`` has seen two events."""

    def __init__(self) -> None:
        self._separator = b""
        self._separator_length = 0

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
        self._separator, self._separator_length = b"}" + gap + begin, 1 + len(gap)

    def find_last(self, text: bytearray, start: int, stop: int) -> tuple[int, int] | None:
        """Return the end of the second-to-last event, and the start of the last, which may be incomplete."""
        found = text.rfind(self._separator, start, stop) if self._separator else -1
        return (found + 1, found + self._separator_length) if found >= 0 else None

    def find_enclosing(self, text: bytearray, start: int, position: int, stop: int) -> tuple[int, int]:
        """Return start and end of the event at ``position``, between two separators or the limits."""
        previous, following = (
            (text.rfind(self._separator, start, position), text.find(self._separator, position, stop))
            if self._separator
            else (-1, -1)
        )
        return (
            previous + self._separator_length if previous >= 0 else start,
            following + 1 if following >= 0 else stop,
        )

    def split(self, text: bytearray, start: int, stop: int) -> tuple[list[tuple[int, int]], int]:
        """Return the spans between separators, as (start, stop), and the start of the text after the last
        one.
        """
        spans: list[tuple[int, int]] = []
        while self._separator and (found := text.find(self._separator, start, stop)) >= 0:
            spans.append((start, found + 1))
            start = found + self._separator_length
        return spans, start
