"""Lay out text for the terminal width (80 by default), render Markdown, and escape names from a run.

In a log, GitHub reads ``::error title=T::MESSAGE`` as a command. It encodes %, carriage return and line feed
as %25, %0D and %0A, and in properties also ``:`` and ``,``; see ``escapeData`` and ``escapeProperty`` in the
GitHub toolkit and https://docs.github.com/actions/reference/workflow-commands-for-github-actions.

In Markdown, names may contain markup, HTML, links, mentions (@team), references (#12, !3, GH-4), emoji codes
and formulas.  CommonMark characters are escaped.  Forges (GitHub, GitLab) interpret more in the remaining
text, but never inside code spans, so a word that a forge could turn into a link, an image or a mention is
formatted as code.  Formats: https://spec.commonmark.org/0.31.2, https://github.github.com/gfm.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import StringIO
from typing import TYPE_CHECKING, ClassVar

from zprof.base.formatting import display_width, printable, shorten

if TYPE_CHECKING:
    from zprof.reports.page import HeatMap

#: Width for files and pipes; minimum width for tables; maximum readable width.
WIDTH = 80
_MIN_WIDTH, _MAX_WIDTH = 60, 120
INDENT = "  "
_WIDTH: ContextVar[int] = ContextVar("page_width", default=WIDTH)
_COMMENT = re.compile(r"^(.*\S)\s+# (.*)$")
#: A shell command: assignments, a program that zprof tells users to run, and arguments without prose.
_SHELL = re.compile(
    r"(?:export )?(?=\S)(?:[A-Z][A-Z0-9_]*=[^\s,;]+(?: |$))*"
    r"(?:(?:zprof|torchrun|python3?|pip|numactl|nvidia-smi|deepspeed|accelerate)(?: [^\s,;()]+)*)?"
)
_STRING = re.compile("""\"[^\"]*\"|'[^']*'""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
#: Expression starts that complete a closing bracket.
_OPENING = {")": "f(", "]": "[", "}": "{"}
#: Longer lines count as text, because they are slow to parse.
_MAX_CODE_LENGTH = 500
_NO_BREAK = "\0"
#: A space between a number and its unit; lines must not break there.
_UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|B|[KMGT]i?B|[MG]B/s)(?![A-Za-z/]))")
#: Shades of a heat map's levels without colour, from low to high.
_SHADES = " ░▒▓█"
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
#: GitHub commands take effect at the start of a line; commands of old GitHub, Azure and TeamCity take effect
#: anywhere.
_AT_LINE_START = re.compile(r"^(\s*)::")
_ANYWHERE = re.compile(r"##(\w*)\[")
_MAX_MESSAGE, _MAX_COMMAND_TITLE = 4_000, 200


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
    """Return a title on the left and a note on the right, or on its own lines if it does not fit."""
    title = shorten(title, get_page_width())
    space = get_page_width() - display_width(title) - display_width(note)
    if space >= 2 or not note:
        return [f"{title}{' ' * space}{note}".rstrip()]
    lines = wrap(note, first="", width=get_page_width())
    return [title, *(" " * (get_page_width() - display_width(line)) + line for line in lines)]


def format_fix_line(text: str, *, first: str, rest: str | None = None) -> list[str]:
    """Return the lines of a fix: wrap text, never code; move a long comment above its code."""
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
    """Wrap text; a command at the end gets its own line if it does not fit."""
    prose, colon, command = text.rpartition(": ")
    is_short = display_width(first) + display_width(text) <= get_page_width()
    if is_short or not colon or not _SHELL.fullmatch(command):
        return wrap(text, first=first, rest=rest)
    rest = " " * display_width(first) if rest is None else rest
    return [*wrap(f"{prose}:", first=first, rest=rest), f"{rest}{command}"]


def is_code(text: str) -> bool:
    """Return True for a line of Python, a part of a JSON object, or a shell command; False for prose."""
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
    """Complete the brackets of one line of a longer statement, to parse the line alone."""
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
    """Return the words, splitting those longer than a line."""
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


def render_markdown_text(markdown: str, width: int | None = None, *, colour: bool = False) -> str:
    """Render Markdown with Rich, with or without colour, at the page width or in a box of ``width`` columns.

    On a page, code is not wrapped: long lines overflow, so they can be copied.
    """
    from rich.console import Console, ConsoleOptions
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.text import Text

    class LeftHeading(Heading):
        """A left-aligned heading, in capitals below the title level, because plain text has no bold type."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
            title = self.text.plain if self.tag == "h1" else self.text.plain.upper()
            yield Text(title, style="bold")

    class Code(CodeBlock):
        """Lines to copy, indented."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
            lines = [f"{INDENT}{line}" for line in self.text.plain.rstrip().splitlines()]
            yield Text("\n".join(lines), no_wrap=True, overflow="ignore")

    class Page(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            "heading_open": LeftHeading,
            **({"fence": Code, "code_block": Code} if width is None else {}),
        }

    console = Console(
        file=StringIO(),
        width=width or get_page_width(),
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    printable_text = "\n".join(printable(line) for line in markdown.splitlines())
    with console.capture() as capture:
        console.print(Page(printable_text, hyperlinks=False), crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n") + "\n"


def format_command(kind: str, title: str, *lines: str) -> str:
    """Return a GitHub workflow command; ``kind`` is ``error``, ``warning`` or ``notice``."""
    message = "\n".join(shorten(printable(line), _MAX_MESSAGE) for line in lines if line)
    short_title = _escape_data(shorten(printable(title), _MAX_COMMAND_TITLE))
    property_text = short_title.replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={property_text}::{_escape_data(message)}"


def escape_log_line(line: str) -> str:
    """Neutralize runner commands in a log line without changing its length."""
    return _ANYWHERE.sub(r"# \1[", _AT_LINE_START.sub(r"\1: ", line))


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


#: Underscores inside a word need no escaping.
_ESCAPED = re.compile(r"[\\`*\[\]<>&~$#{}]|(?<![^\W_])_|_(?![^\W_])")
#: Text that forges interpret: addresses, mentions, references, emoji codes, formulas, dotted names (domains);
#: GitLab also ``%"a milestone"``, ``~"a label"`` and ``[vulnerability:12]``.
_FORGE_MARKUP = re.compile(
    r"://|www\.|\$|[@#&~!%^]\w|[%~]\"|\[\w+:[^\]]+\]|:[\w+-]+:|\bGH-\d|[a-z_]\.\w|"
    r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b",
    re.IGNORECASE,
)
#: Line starts that would create a list, a rule, a setext heading or a GitLab quick action.
_LINE_START = re.compile(r"^(?:/|[-+=](?=\s|$|[-=\s]+$)|\d{1,9}(?=[.)](?:\s|$)))")
_PUNCTUATED_WORD = re.compile(r"""([("']*)(.*?)([)"',.;:]*)""")
_TICKS = re.compile(r"`+")
_MAX_NAME, _MAX_PROSE, _MAX_LINE = 120, 1_200, 400
_MAX_LINES = 60


def escape_prose(text: object, max_length: int = _MAX_PROSE) -> str:
    """Escape one line of text for a paragraph, a list item or a table cell."""
    words = shorten(" ".join(printable(text).split()), max_length).split(" ")
    # Escape a line start that would create a list, a rule or a quick action.
    line = " ".join(_escape_word(word, max_length) for word in words)
    match = _LINE_START.match(line)
    if match is None:
        return line
    at = match.end()
    return f"\\{line}" if line[0] in "-+=/" else f"{line[:at]}\\{line[at:]}"


def format_code(name: object, max_length: int = _MAX_NAME) -> str:
    """Return a name as a code span, escaping ``|``, which would end a table cell."""
    text = shorten(" ".join(printable(name).split()), max_length).replace("|", "\\x7c")
    if not text:
        return ""
    ticks = "`" * (1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def format_code_block(lines: Sequence[object]) -> str:
    """Return lines as a code block that is safe for any content and in a CI log."""
    escaped = [escape_log_line(shorten(printable(line), _MAX_LINE)) for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        escaped.append(f"… and {len(lines) - _MAX_LINES} more lines")
    max_ticks = max((len(run) for line in escaped for run in _TICKS.findall(line)), default=0)
    fence = "`" * max(3, max_ticks + 1)
    return "\n".join([f"{fence}text", *escaped, fence])


def _escape_word(word: str, max_length: int) -> str:
    """Format a word as code if a forge would interpret it, leaving the punctuation around it outside."""
    if not _FORGE_MARKUP.search(word):
        return _escape_plain(word)
    match = _PUNCTUATED_WORD.fullmatch(word)
    if match is None or not _FORGE_MARKUP.search(match[2]):
        return format_code(word, max_length)
    return f"{_escape_plain(match[1])}{format_code(match[2], max_length)}{_escape_plain(match[3])}"


def _escape_plain(word: str) -> str:
    return _ESCAPED.sub(r"\\\g<0>", word).replace("|", "&#124;")


def lay_out_heat_map(block: "HeatMap", width: int) -> list[list[tuple[str, int | None]]]:
    """Return the lines of a heat map as pieces of text, each with its level; None outside the cells.

    If not all columns fit, the rest follow below. A cell ends with the shade of its level.
    """
    names = [printable(name) for name, _ in block.rows]
    corner = printable(block.corner)
    first = max(map(display_width, (corner, *names))) + len(INDENT)
    labels = max((len(cell.label) for _, cells in block.rows for cell in cells), default=0)
    texts = max((len(cell.text) for _, cells in block.rows for cell in cells), default=0)
    own = labels + bool(labels) + texts + 1
    cell_width = max(own, *map(display_width, block.columns))
    parts = -(-len(block.columns) // max(1, (width - first) // (cell_width + 1)))
    each = -(-len(block.columns) // max(1, parts))
    lines: list[list[tuple[str, int | None]]] = []
    for start in range(0, len(block.columns), max(1, each)):
        heads = block.columns[start : start + each]
        lines.append([(f"{INDENT}{corner}".ljust(first), None)])
        lines[-1] += [(f" {printable(head):>{cell_width}}", None) for head in heads]
        for name, (_, cells) in zip(names, block.rows, strict=True):
            lines.append([(f"{INDENT}{name}".ljust(first), None)])
            for cell in cells[start : start + each]:
                label = f"{cell.label:>{labels}} " if labels else ""
                text = f"{label}{cell.text:>{texts}}{get_shade(cell.level)}"
                lines[-1] += [(" ", None), (f"{text:>{cell_width}}", cell.level)]
    return lines


def get_shade(level: int) -> str:
    """Return the shade of a level of a heat map; a blank if unknown."""
    return _SHADES[level // 2] if level >= 0 else " "
