"""The only place that prints: data to stdout, notes and errors to stderr.

A terminal or pipe that cannot hold a glyph gets its ASCII stand-in, never a traceback.
"""

import sys
from typing import TextIO

_ASCII = str.maketrans(
    {
        "✓": "+", "✗": "x", "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "µ": "u", "±": "+-", "…": "...",
        "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "|", "▎": "|", "▏": "|",
    }
)  # fmt: skip


def data(text: str) -> None:
    """What the user asked for."""
    _write(sys.stdout, text)


def note(text: str) -> None:
    """Progress and hints, one line."""
    _write(sys.stderr, f"{text}\n")


def encodable(text: str, encoding: str) -> str:
    """``text`` in characters that ``encoding`` has."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
    return text


def _write(stream: TextIO, text: str) -> None:
    stream.write(encodable(text, getattr(stream, "encoding", None) or "ascii"))
    stream.flush()
