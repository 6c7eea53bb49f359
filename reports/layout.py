"""Lay out plain text for the terminal width (80 by default): headings, wrapped text, code, bars."""

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from zprof.model.formatting import display_width, shorten

#: Width for files and pipes; the minimum that tables need and the maximum that is still readable.
WIDTH = 80
_MIN_WIDTH, _MAX_WIDTH = 60, 120
INDENT = "  "
_WIDTH: ContextVar[int] = ContextVar("page_width", default=WIDTH)
_COMMENT = re.compile(r"^(.*\S)\s+# (.*)$")
#: A shell command: assignments, a program that zprof tells people to run, and its arguments without prose.
_SHELL = re.compile(
    r"(?:export )?(?=\S)(?:[A-Z][A-Z0-9_]*=[^\s,;]+(?: |$))*"
    r"(?:(?:zprof|torchrun|python3?|pip|numactl|nvidia-smi|deepspeed|accelerate)(?: [^\s,;()]+)*)?"
)
_STRING = re.compile("""\"[^\"]*\"|'[^']*'""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
#: What a closing bracket may belong to, as the start of an expression.
_OPENING = {")": "f(", "]": "[", "}": "{"}
#: Longer lines are slow to parse, so they count as text.
_MAX_CODE_LENGTH = 500
_NO_BREAK = "\0"
#: A space between a number and its unit, where a line must not break.
_UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|B|[KMGT]i?B|[MG]B/s)(?![A-Za-z/]))")
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def get_page_width() -> int:
    """Return the maximum width of a line, in columns."""
    return _WIDTH.get()


@contextmanager
def page_columns(columns: int) -> Iterator[None]:
    """Set the line width inside the context, clamped to 60 to 120 columns."""
    token = _WIDTH.set(max(_MIN_WIDTH, min(columns, _MAX_WIDTH)))
    try:
        yield
    finally:
        _WIDTH.reset(token)


def render_heading(title: str, note: str = "") -> list[str]:
    """Return a title on the left and a note on the right, or on lines of its own if it does not fit."""
    title = shorten(title, get_page_width())
    space = get_page_width() - display_width(title) - display_width(note)
    if space >= 2 or not note:
        return [f"{title}{' ' * space}{note}".rstrip()]
    lines = wrap(note, first="", width=get_page_width())
    return [title, *(" " * (get_page_width() - display_width(line)) + line for line in lines)]


def format_fix_line(text: str, *, first: str, rest: str | None = None) -> list[str]:
    """Return the lines of a fix: wrap text, never code; a comment that does not fit goes above its code."""
    if display_width(first) + display_width(text) <= get_page_width():
        return [f"{first}{text}".rstrip()]
    if not is_code(text):
        return wrap_sentence(text, first=first, rest=rest)
    rest = " " * display_width(first) if rest is None else rest
    if text.startswith("#"):
        return wrap(text, first=first, rest=f"{rest}# ")
    match = _COMMENT.match(text)
    if match is None:
        return [f"{first}{text}"]
    return [*wrap(match[2], first=f"{first}# ", rest=f"{rest}# "), f"{rest}{match[1]}"]


def wrap_sentence(text: str, *, first: str = INDENT, rest: str | None = None) -> list[str]:
    """Wrap a text; the command that it ends with, if it does not fit, stands on a line of its own."""
    prose, colon, command = text.rpartition(": ")
    is_short = display_width(first) + display_width(text) <= get_page_width()
    if is_short or not colon or not _SHELL.fullmatch(command):
        return wrap(text, first=first, rest=rest)
    rest = " " * display_width(first) if rest is None else rest
    return [*wrap(f"{prose}:", first=first, rest=rest), f"{rest}{command}"]


def is_code(text: str) -> bool:
    """Return True for a line of Python, a part of a JSON object, or a shell command, as opposed to prose."""
    if len(text) > _MAX_CODE_LENGTH:
        return False
    match = _COMMENT.match(text)
    line = (match[1] if match else text).strip()
    if _SHELL.fullmatch(line):
        return True
    members = line.rstrip(",")
    for candidate in (line, f"{line} pass", _close_brackets(line), _close_brackets(f"{{{members}")):
        try:
            ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return True
    return False


def _close_brackets(line: str) -> str:
    """Complete the brackets of one line of a longer statement, so that it parses on its own."""
    before, after = "", ""
    for character in _STRING.sub('""', line):
        if character in _CLOSING:
            after = _CLOSING[character] + after
        elif after.startswith(character):
            after = after[1:]
        elif character in _OPENING:
            before = _OPENING[character] + before
    return f"{before}{line}{after}"


def wrap(text: str, *, first: str = INDENT, rest: str | None = None, width: int | None = None) -> list[str]:
    """Wrap ``text`` to ``width`` (default: the page width); ``rest`` is the prefix of continuation lines."""
    width = width or get_page_width()
    rest = " " * display_width(first) if rest is None else rest
    lines, line = [], first
    is_empty = True
    for word in _split_words(text, max(1, width - max(display_width(first), display_width(rest)))):
        if not is_empty and display_width(line) + 1 + display_width(word) > width:
            lines.append(line)
            line, is_empty = rest, True
        line += word if is_empty else f" {word}"
        is_empty = False
    return [*lines, line.rstrip()]


def _split_words(text: str, width: int) -> list[str]:
    """Return the words; split words that are longer than a line."""
    words: list[str] = []
    for word in _UNIT_SPACE.sub(_NO_BREAK, text).split(" "):
        remaining = word.replace(_NO_BREAK, " ")
        while display_width(remaining) > width:
            piece = shorten(remaining, width + 1)[:-1] or remaining[:1]
            words.append(piece)
            remaining = remaining[len(piece) :]
        words.append(remaining)
    return words


def render_bar(share: float, width: int) -> str:
    """Return a bar for ``share`` (0 to 1) in steps of 1/8 column; a share above 0 is never empty."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
