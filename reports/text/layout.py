"""Plain text in the columns of a terminal, or 80: headings, tables, bars, wrapped lines, code."""

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from zprof.model.printable import display_width, shorten

#: In a file and a pipe; and what tables need at least, and lines that can still be read have at most.
WIDTH = 80
_LEAST_WIDTH, _MOST_WIDTH = 60, 120
INDENT = "  "
_WIDTH: ContextVar[int] = ContextVar("page_width", default=WIDTH)
_COMMENT = re.compile(r"^(.*\S)\s+# (.*)$")
#: Longer lines are not looked at: Python's parser takes its time for them.
_LONGEST_CODE = 500


def page_width() -> int:
    """The columns that a line may have."""
    return _WIDTH.get()


@contextmanager
def page_columns(columns: int) -> Iterator[None]:
    """Lay out for a terminal of so many columns, within reason."""
    token = _WIDTH.set(max(_LEAST_WIDTH, min(columns, _MOST_WIDTH)))
    try:
        yield
    finally:
        _WIDTH.reset(token)


def heading(title: str, note: str = "") -> str:
    """A title on the left, what the numbers under it mean on the right, shortened where it has no room."""
    note = shorten(note, max(0, page_width() - display_width(title) - 2))
    space = page_width() - display_width(title) - display_width(note)
    return f"{title}{' ' * max(2, space)}{note}".rstrip()


def headings(title: str, note: str) -> list[str]:
    """The same, with the whole note: on a line of its own where it has no room."""
    if display_width(title) + 2 + display_width(note) <= page_width():
        return [heading(title, note)]
    return [title, " " * max(0, page_width() - display_width(note)) + note]


def code_or_text(text: str, *, first: str, rest: str | None = None) -> list[str]:
    """Lines of a fix: text is wrapped, code never; its comment stands above it where it has no room."""
    if display_width(first) + display_width(text) <= page_width():
        return [f"{first}{text}".rstrip()]
    if not is_code(text):
        return wrap(text, first=first, rest=rest)
    said = _COMMENT.match(text)
    if said is None:
        return [f"{first}{text}"]
    rest = " " * display_width(first) if rest is None else rest
    return [*wrap(said.group(2), first=f"{first}# ", rest=f"{rest}# "), f"{rest}{said.group(1)}"]


def is_code(text: str) -> bool:
    """Whether a line is one of Python or of a JSON object, and not words; a comment may follow."""
    if len(text) > _LONGEST_CODE:
        return False
    said = _COMMENT.match(text)
    line = (said.group(1) if said else text).strip()
    for candidate in (line, f"{line} pass", f"{{{line.rstrip(',')}}}"):
        try:
            ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return True
    return False


def wrap(text: str, *, first: str = INDENT, rest: str | None = None, width: int | None = None) -> list[str]:
    """Words of ``text`` in lines of a width (the page's); ``rest`` begins the lines after the first."""
    width = width or page_width()
    rest = " " * display_width(first) if rest is None else rest
    lines, line = [], first
    empty = True
    for word in _words(text, width - max(display_width(first), display_width(rest))):
        if not empty and display_width(line) + 1 + display_width(word) > width:
            lines.append(line)
            line, empty = rest, True
        line += word if empty else f" {word}"
        empty = False
    return [*lines, line.rstrip()]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells as columns: the first to the left and shortened where needed, the others to the right.

    The last column may hold a bar: it stands to the left and ends the line.
    """
    columns = range(len(rows[0]))
    widths = [max(display_width(row[column]) for row in rows) for column in columns]
    spare = page_width() - len(INDENT) - sum(widths[1:]) - 2 * (len(widths) - 1)
    widths[0] = min(widths[0], spare)
    return [_line(row, widths) for row in rows]


def bar(share: float, width: int) -> str:
    """A bar of ``share`` (0 to 1) of ``width`` columns, in eighths; nothing only for nothing."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = shorten(row[0], widths[0])
    cells = [first + " " * (widths[0] - display_width(first))]
    for cell, width in zip(row[1:], widths[1:], strict=True):
        space = " " * (width - display_width(cell))
        cells.append(cell + space if _is_bar(cell) else space + cell)
    return (INDENT + "  ".join(cells)).rstrip()


def _is_bar(cell: str) -> bool:
    return cell[:1] in "█▏▎▍▌▋▊▉"


def _words(text: str, width: int) -> list[str]:
    """Words, and those that no line can hold in pieces."""
    words: list[str] = []
    for word in text.split(" "):
        left = word
        while display_width(left) > width:
            piece = shorten(left, width + 1)[:-1] or left[:1]
            words.append(piece)
            left = left[len(piece) :]
        words.append(left)
    return words
