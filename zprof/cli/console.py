"""Print: data to stdout, notes and errors to stderr.  No other module prints.

If the terminal or pipe cannot encode a glyph, its ASCII replacement is printed.
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
    """The reader of stdout is gone (``| head``): there is nothing more to do, and nobody to notify."""


def open_closed_streams() -> None:
    """Open descriptors 0, 1 and 2 on /dev/null if the caller closed them.

    Otherwise the next opened file would get the number, and with it the output of a child.  They are opened
    for the wrong direction, so they fail as closed ones would.
    """
    for descriptor, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, flags)


def data(text: str) -> None:
    """Print the output that the user asked for.

    Raises:
        BadInput: stdout cannot be written.
        ReaderGone: the reader has closed the pipe.
    """
    try:
        _write(sys.stdout, text)
    except OSError as error:
        _give_up(error)


def page(text: str) -> None:
    """Print a page of text, in colour if the terminal supports it (https://no-color.org).

    Raises the same errors as ``data``.
    """
    if has_colour():
        from zprof.reports.terminal import coloured

        text = coloured(text)
    data(text)


def has_colour() -> bool:
    """Return whether stdout is a terminal with colours, and the user wants them."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return are_terminals(sys.stdout)


def are_terminals(*streams: TextIO | None) -> bool:
    """Return whether all are terminals; Python sets None for a stream that was closed when it started."""
    return all(stream is not None and not stream.closed and stream.isatty() for stream in streams)


def flush() -> None:
    """Flush what others (argparse) left in stdout; raises the same errors as ``data``."""
    if sys.stdout is not None and not sys.stdout.closed:
        try:
            sys.stdout.flush()
        except OSError as error:
            _give_up(error)


def note(text: str) -> None:
    """Print one line of progress or a hint; does nothing if stderr cannot be written."""
    try:
        _write(sys.stderr, f"{text}\n")
    except OSError:
        _discard(sys.stderr)


def encodable(text: str, encoding: str) -> str:
    """Return ``text`` in characters that ``encoding`` has."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
    return text


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed when Python started
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    stream.write(encodable(text, getattr(stream, "encoding", None) or "ascii"))
    stream.flush()


def _give_up(error: OSError) -> None:
    _discard(sys.stdout)
    if isinstance(error, BrokenPipeError):
        raise ReaderGone from None
    raise BadInput(f"stdout: cannot be written ({error.strerror})", hint="-o FILE writes to a file") from None


def _discard(stream: TextIO | None) -> None:
    """Redirect a stream to /dev/null: Python flushes at exit what is left, and complains if it still
    cannot.
    """
    if stream is None:
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
