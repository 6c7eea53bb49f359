"""Print data to stdout, notes and errors to stderr; no other module prints.

A glyph that the stream cannot encode is printed as its ASCII replacement.
"""

import errno
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from zprof.base.errors import BadInput

if TYPE_CHECKING:
    from zprof.reports.page import Page

_ASCII = str.maketrans(
    {
        "✓": "+", "✗": "x", "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "µ": "u", "±": "+-", "…": "...",
        "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "|", "▎": "|", "▏": "|",
    }
)  # fmt: skip

#: Maximum digits of COLUMNS; pages have a maximum width anyway.
_MAX_DIGITS = 9


class StdoutClosed(Exception):
    """Raised when the reader of stdout has exited (``| head``): exit silently."""


def open_closed_streams() -> None:
    """Open descriptors 0, 1 and 2 on /dev/null if the caller closed them.

    Otherwise the next file to be opened would reuse the descriptor and receive a child's output.  They are
    opened in the wrong mode, so using them still fails.
    """
    for descriptor, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, flags)


def print_data(text: str) -> None:
    """Print the output that the user asked for.

    Raises:
        BadInput: Stdout is not writable.
        StdoutClosed: The reader has closed the pipe.
    """
    try:
        _write(sys.stdout, text)
    except OSError as error:
        _raise_write_error(error)


def print_page(page: "Page") -> None:
    """Print a page as text, in colour if ``has_colour()``.

    Raises the same errors as ``print_data``.
    """
    from zprof.reports.text import render_text

    print_data(render_text(page, coloured=has_colour()))


def has_colour() -> bool:
    """Return True if text on stdout may be coloured.

    NO_COLOR (https://no-color.org) and TERM=dumb turn colour off; FORCE_COLOR turns it on in a pipe as well.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0", "false"):
        return True
    return is_terminal() and os.environ.get("TERM") != "dumb"


def get_columns() -> int | None:
    """Return the terminal width, or in a pipe the value of COLUMNS; None if neither is known."""
    if is_terminal():
        return get_terminal_columns()
    stated = os.environ.get("COLUMNS", "")[:_MAX_DIGITS]
    return int(stated) or None if stated.isascii() and stated.isdecimal() else None


def get_terminal_columns() -> int:
    """Return the width of the terminal, or 80."""
    from shutil import get_terminal_size

    return get_terminal_size().columns


def is_terminal() -> bool:
    """Return True if stdout is a terminal."""
    return are_terminals(sys.stdout)


def are_terminals(*streams: TextIO | None) -> bool:
    """Return True if all streams are terminals; None stands for a stream that was closed at start-up."""
    return all(stream is not None and not stream.closed and stream.isatty() for stream in streams)


def flush() -> None:
    """Flush stdout, e.g. argparse's buffered output; raises the same errors as ``print_data``."""
    if sys.stdout is not None and not sys.stdout.closed:
        try:
            sys.stdout.flush()
        except OSError as error:
            _raise_write_error(error)


def print_note(text: str) -> None:
    """Print one line of progress or a hint; does nothing if stderr cannot be written."""
    try:
        _write(sys.stderr, f"{text}\n")
    except OSError:
        _discard(sys.stderr)


def make_encodable(text: str, encoding: str) -> str:
    """Replace characters that ``encoding`` cannot represent."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
    return text


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # closed when Python started
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    stream.write(make_encodable(text, getattr(stream, "encoding", None) or "ascii"))
    stream.flush()


def _raise_write_error(error: OSError) -> None:
    _discard(sys.stdout)
    if isinstance(error, BrokenPipeError):
        raise StdoutClosed from None
    raise BadInput(
        f"cannot write to stdout ({error.strerror})", hint="use -o FILE to write to a file"
    ) from None


def _discard(stream: TextIO | None) -> None:
    """Redirect a stream to /dev/null: Python flushes it at exit and would report the error again."""
    if stream is None:
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
