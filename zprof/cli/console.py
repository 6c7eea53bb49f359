"""The only place that prints: data to stdout, notes and errors to stderr.

A terminal or pipe that cannot encode a glyph gets its ASCII replacement, never a traceback.
"""

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

from zprof.model.errors import BadInput

_ASCII = str.maketrans(
    {
        "✓": "+", "✗": "x", "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "µ": "u", "±": "+-", "…": "...",
        "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "|", "▎": "|", "▏": "|",
    }
)  # fmt: skip


class ReaderGone(Exception):
    """Who read stdout went away (``| head``): there is nothing more to do, and nobody to tell."""


def open_closed_streams() -> None:
    """Have something behind descriptors 0, 1 and 2 where the caller closed them.

    The next file that is opened would get the number, and what a child prints.  Opened for the other
    direction, they refuse what a closed one would.
    """
    for descriptor, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, flags)


def data(text: str) -> None:
    """What the user asked for.

    Raises:
        BadInput: it cannot be written.
        ReaderGone: nobody reads it.
    """
    try:
        _write(sys.stdout, text)
    except OSError as error:
        _give_up(error)


def page(text: str) -> None:
    """A page of text for a reader: in colour on a terminal that has it (https://no-color.org).

    Raises as ``data``.
    """
    if has_colour():
        from zprof.reports.terminal import coloured

        text = coloured(text)
    data(text)


def has_colour() -> bool:
    """Return if stdout is a terminal that shows colours, and the user wants them."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal() -> bool:
    """Whether somebody sees at once what goes to stdout."""
    return are_terminals(sys.stdout)


def are_terminals(*streams: TextIO | None) -> bool:
    """Return whether each is a terminal; Python has None for one that was closed when it started."""
    return all(stream is not None and not stream.closed and stream.isatty() for stream in streams)


def flush() -> None:
    """Write what others (argparse) left in stdout; raises as ``data``."""
    if sys.stdout is not None and not sys.stdout.closed:
        try:
            sys.stdout.flush()
        except OSError as error:
            _give_up(error)


def note(text: str) -> None:
    """Progress and hints, one line; where stderr cannot be written there is nobody to tell."""
    try:
        _write(sys.stderr, f"{text}\n")
    except OSError:
        _discard(sys.stderr)


def encodable(text: str, encoding: str) -> str:
    """``text`` in characters that ``encoding`` has."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
    return text


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # it was closed when Python started
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    stream.write(encodable(text, getattr(stream, "encoding", None) or "ascii"))
    stream.flush()


def _give_up(error: OSError) -> None:
    _discard(sys.stdout)
    if isinstance(error, BrokenPipeError):
        raise ReaderGone from None
    raise BadInput(f"stdout: cannot be written ({error.strerror})", hint="-o FILE writes to a file") from None


def _discard(stream: TextIO | None) -> None:
    """Python flushes at exit what is left in a stream, and complains where it still cannot."""
    if stream is None:
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
