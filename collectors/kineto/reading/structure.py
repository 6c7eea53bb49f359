"""Finds the brackets of JSON that stand outside strings, without looking at each byte in Python."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_QUOTE, _BACKSLASH = 0x22, 0x5C
#: ``[`` and ``{`` differ from each other in this bit only, and so do ``]`` and ``}``.
_CURLY = 0x20
_OPEN, _CLOSE = 0x7B, 0x7D


@dataclass(frozen=True, slots=True, kw_only=True)
class Brackets:
    """``depth``: after each bracket, from 0 at the begin of the text.  ``in_string``: it ends in one."""

    position: npt.NDArray[np.int64]
    depth: npt.NDArray[np.int64]
    opens: npt.NDArray[np.bool_]
    in_string: bool


def brackets(text: bytearray, start: int, stop: int, *, in_string: bool = False) -> Brackets:
    """All brackets of ``text[start:stop]`` outside strings, by position from the begin of ``text``."""
    letters = np.frombuffer(text, dtype=np.uint8)[start:stop]
    quotes = _closing_and_opening(letters)
    folded = letters | _CURLY
    position = np.flatnonzero((folded == _OPEN) | (folded == _CLOSE))
    outside = (np.searchsorted(quotes, position) + in_string) % 2 == 0
    position = position[outside]
    opens = folded[position] == _OPEN
    return Brackets(
        position=position + start,
        depth=np.cumsum(np.where(opens, 1, -1)),
        opens=opens,
        in_string=bool((len(quotes) + in_string) % 2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """The complete bracketed elements of an array, as (start, stop), and where the array ends, if it does."""

    spans: list[tuple[int, int]]
    closed: int | None


def elements(text: bytearray, start: int, stop: int) -> Elements:
    """Those of ``text[start:stop]``, which begins between two elements of an array."""
    found = brackets(text, start, stop)
    below = np.flatnonzero(found.depth < 0)
    closed = int(below[0]) if len(below) else len(found.depth)
    depth, opens, position = found.depth[:closed], found.opens[:closed], found.position[:closed]
    starts = position[opens & (depth == 1)].tolist()
    stops = (position[~opens & (depth == 0)] + 1).tolist()
    return Elements(
        spans=list(zip(starts, stops, strict=False)),
        closed=int(found.position[closed]) if len(below) else None,
    )


def _closing_and_opening(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Where strings begin and end."""
    quotes = np.flatnonzero(letters == _QUOTE)
    slashes = np.flatnonzero(letters == _BACKSLASH)
    if not len(slashes):
        return quotes
    first = slashes[np.diff(slashes, prepend=-2) > 1]
    last = slashes[np.diff(slashes, append=len(letters) + 2) > 1]
    escaped = (last + 1)[(last - first) % 2 == 0]
    return np.setdiff1d(quotes, escaped, assume_unique=True)
