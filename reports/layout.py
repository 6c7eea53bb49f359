"""Lines of text in the columns of a terminal, or 80: headings, wrapped words, code, bars."""

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from zprof.model.formatting import display_width, shorten

#: The width of a file and a pipe; the least that tables need, and the most that can still be read.
WIDTH = 80
_MIN_WIDTH, _MAX_WIDTH = 60, 120
INDENT = "  "
_WIDTH: ContextVar[int] = ContextVar("page_width", default=WIDTH)
_COMMENT = re.compile(r"^(.*\S)\s+# (.*)$")
#: Python's parser takes long for longer lines.
_MAX_CODE = 500
_NO_BREAK = "\0"
#: A space between a number and its unit, where no line may end.
_UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|B|[KMGT]i?B|[MG]B/s)(?![A-Za-z/]))")
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def get_page_width() -> int:
    """Return the columns that a line may have."""
    return _WIDTH.get()


@contextmanager
def page_columns(columns: int) -> Iterator[None]:
    """Lay out for a terminal of so many columns, within reason."""
    token = _WIDTH.set(max(_MIN_WIDTH, min(columns, _MAX_WIDTH)))
    try:
        yield
    finally:
        _WIDTH.reset(token)


def render_heading(title: str, note: str = "") -> list[str]:
    """Return a title on the left and a note on the right; on lines of its own if there is no room for it."""
    title = shorten(title, get_page_width())
    space = get_page_width() - display_width(title) - display_width(note)
    if space >= 2 or not note:
        return [f"{title}{' ' * space}{note}".rstrip()]
    lines = wrap(note, first="", width=get_page_width())
    return [title, *(" " * (get_page_width() - display_width(line)) + line for line in lines)]


def format_fix_line(text: str, *, first: str, rest: str | None = None) -> list[str]:
    """Return a line of a fix: text is wrapped, code never; a comment without room stands above it."""
    if display_width(first) + display_width(text) <= get_page_width():
        return [f"{first}{text}".rstrip()]
    if not is_code(text):
        return wrap(text, first=first, rest=rest)
    commented = _COMMENT.match(text)
    if commented is None:
        return [f"{first}{text}"]
    rest = " " * display_width(first) if rest is None else rest
    return [*wrap(commented[2], first=f"{first}# ", rest=f"{rest}# "), f"{rest}{commented[1]}"]


def is_code(text: str) -> bool:
    """Return if a line is one of Python or of a JSON object, and not words; a comment may follow."""
    if len(text) > _MAX_CODE:
        return False
    commented = _COMMENT.match(text)
    line = (commented[1] if commented else text).strip()
    for candidate in (line, f"{line} pass", f"{{{line.rstrip(',')}}}", _balanced(line)):
        try:
            ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return True
    return False


def _balanced(line: str) -> str:
    """Return a line of a call that goes over several lines as a call of its own."""
    opened = line.count("(") - line.count(")")
    return "f(" * max(0, -opened) + line + ")" * max(0, opened)


def wrap(text: str, *, first: str = INDENT, rest: str | None = None, width: int | None = None) -> list[str]:
    """Return ``text`` in lines of a width (the page's); ``rest`` starts the lines after the first."""
    width = width or get_page_width()
    rest = " " * display_width(first) if rest is None else rest
    lines, line = [], first
    is_empty = True
    for word in _words(text, max(1, width - max(display_width(first), display_width(rest)))):
        if not is_empty and display_width(line) + 1 + display_width(word) > width:
            lines.append(line)
            line, is_empty = rest, True
        line += word if is_empty else f" {word}"
        is_empty = False
    return [*lines, line.rstrip()]


def _words(text: str, width: int) -> list[str]:
    """Return the words, and in pieces those that no line can hold."""
    words: list[str] = []
    for word in _UNIT_SPACE.sub(_NO_BREAK, text).split(" "):
        left = word.replace(_NO_BREAK, " ")
        while display_width(left) > width:
            piece = shorten(left, width + 1)[:-1] or left[:1]
            words.append(piece)
            left = left[len(piece) :]
        words.append(left)
    return words


def render_bar(share: float, width: int) -> str:
    """Return a bar of ``share`` (0 to 1) of ``width`` columns, in eighths; empty only for nothing."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
