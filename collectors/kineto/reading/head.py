"""Reads only a trace's header: which rank wrote it, without reading its events."""

import json
from io import BufferedReader
from pathlib import Path

from zprof.collectors.kineto.columns import TraceHeader
from zprof.collectors.kineto.reading.document import Document, bracketed
from zprof.collectors.kineto.reading.header import ASKED, header
from zprof.collectors.kineto.reading.refusals import refusing
from zprof.collectors.kineto.reading.text import TraceText
from zprof.collectors.kineto.reading.window import Text, Window
from zprof.run.plain_file import open_plain

_RANK = b"distributedInfo"
_HEAD_BYTES, _TAIL_BYTES = 4 << 20, 1 << 20


def read_header(path: Path) -> TraceHeader | None:
    """The header, where the first megabytes of the text, or the last of a plain file, have it.

    Of a large file it may be in part: keys in the middle are not looked for.

    Returns:
        None where only reading all of the file can tell the rank.

    Raises:
        BadInput: the file cannot be read, or is no trace.
    """
    with refusing(path), open_plain(path) as file:
        text = TraceText(file)
        document = _head(text)
        values = document.values
        if not document.complete and not text.packed:
            values = _tail(file) | values
        return header(values) if document.complete or _RANK in values else None


class _Begin:
    """The begin of a text."""

    def __init__(self, text: Text, size: int) -> None:
        self._text = text
        self._left = size

    def readinto(self, target: memoryview, /) -> int:
        size = self._text.readinto(target[: self._left])
        self._left -= size
        return size


def _head(text: Text) -> Document:
    window = Window(_Begin(text, _HEAD_BYTES))

    def pass_over() -> bool:
        window.start -= 1
        return bracketed(window, keep=False) is not None

    document = Document(window, ASKED, pass_over)
    document.read()
    return document


def _tail(file: BufferedReader) -> dict[bytes, bytes]:
    """Values of keys that stand near the end."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL_BYTES))
    text = file.read(_TAIL_BYTES).decode(errors="replace")
    found = {key: _value_of(text, key.decode()) for key in ASKED}
    return {key: value.encode(errors="replace") for key, value in found.items() if value is not None}


def _value_of(text: str, key: str) -> str | None:
    """The JSON behind the last ``"key":``."""
    _, sign, rest = text.rpartition(f'"{key}":')
    rest = rest.lstrip()
    try:
        _, stop = json.JSONDecoder().raw_decode(rest) if sign else ("", 0)
    except (ValueError, RecursionError):
        return None
    return rest[:stop] or None
