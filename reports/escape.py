"""Escape names from a run so that CI logs and Markdown renderers do not interpret them.

In a log, GitHub reads ``::error title=T::MESSAGE`` as a command, with %, carriage return and line feed as
%25, %0D and %0A, and in properties also ``:`` and ``,``; see ``escapeData`` and ``escapeProperty`` of its
toolkit and https://docs.github.com/actions/reference/workflow-commands-for-github-actions.

In Markdown, names may hold markup, HTML, links, mentions (@team), references (#12, !3, GH-4), emoji codes
and formulas.  CommonMark characters are escaped.  Forges (GitHub, GitLab) interpret more in the remaining
text, but never inside code spans, so a word that a forge could turn into a link, an image or a mention is
formatted as code.  Formats: https://spec.commonmark.org/0.31.2, https://github.github.com/gfm.
"""

import re
from collections.abc import Sequence

from zprof.model.formatting import printable, shorten

#: GitHub commands count at the start of a line; those of old GitHub, Azure and TeamCity count anywhere.
_AT_LINE_START = re.compile(r"^(\s*)::")
_ANYWHERE = re.compile(r"##(\w*)\[")
_MAX_MESSAGE, _MAX_COMMAND_TITLE = 4_000, 200


def format_command(kind: str, title: str, *lines: str) -> str:
    """Return a GitHub workflow command; ``kind`` is ``error``, ``warning`` or ``notice``."""
    message = "\n".join(shorten(printable(line), _MAX_MESSAGE) for line in lines if line)
    short_title = shorten(printable(title), _MAX_COMMAND_TITLE)
    return f"::{kind} title={_escape_property(short_title)}::{_escape_data(message)}"


def escape_log_line(line: str) -> str:
    """Neutralize runner commands in a log line without changing its length."""
    return _ANYWHERE.sub(r"# \1[", _AT_LINE_START.sub(r"\1: ", line))


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


#: Underscores inside a word need no escape.
_ESCAPED = re.compile(r"[\\`*\[\]<>&~$#{}]|(?<![^\W_])_|_(?![^\W_])")
#: Text that forges interpret: addresses, mentions, references, emoji codes, formulas, dotted names (domains);
#: GitLab also ``%"a milestone"``, ``~"a label"`` and ``[vulnerability:12]``.
_FORGE_MARKUP = re.compile(
    r"://|www\.|\$|[@#&~!%^]\w|[%~]\"|\[\w+:[^\]]+\]|:[\w+-]+:|\bGH-\d|[a-z_]\.\w|"
    r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b",
    re.IGNORECASE,
)
#: Line starts that would make a list, a rule, a setext heading or a GitLab quick action.
_LINE_START = re.compile(r"^(?:/|[-+=](?=\s|$|[-=\s]+$)|\d{1,9}(?=[.)](?:\s|$)))")
_PUNCTUATED_WORD = re.compile(r"""([("']*)(.*?)([)"',.;:]*)""")
_TICKS = re.compile(r"`+")
_MAX_NAME, _MAX_PROSE, _MAX_LINE = 120, 1_200, 400
_MAX_LINES = 60


def escape_prose(text: object, max_length: int = _MAX_PROSE) -> str:
    """Escape one line of text for a paragraph, a list item or a table cell."""
    words = shorten(" ".join(printable(text).split()), max_length).split(" ")
    # Escape a line start that would make a list, a rule or a quick action.
    line = " ".join(_escape_word(word, max_length) for word in words)
    match = _LINE_START.match(line)
    if match is None:
        return line
    at = match.end()
    return f"\\{line}" if line[0] in "-+=/" else f"{line[:at]}\\{line[at:]}"


def format_code(name: object, max_length: int = _MAX_NAME) -> str:
    """Return a name as a code span; ``|`` is escaped, because it would end a table cell."""
    text = shorten(" ".join(printable(name).split()), max_length).replace("|", "\\x7c")
    if not text:
        return ""
    ticks = "`" * (1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def format_code_block(lines: Sequence[object]) -> str:
    """Return lines as a code block, safe for any content and safe to print in a CI log."""
    escaped = [escape_log_line(shorten(printable(line), _MAX_LINE)) for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        escaped.append(f"… and {len(lines) - _MAX_LINES} more lines")
    max_ticks = max((len(run) for line in escaped for run in _TICKS.findall(line)), default=0)
    fence = "`" * max(3, max_ticks + 1)
    return "\n".join([f"{fence}text", *escaped, fence])


def _escape_word(word: str, max_length: int) -> str:
    """Format a word as code if a forge would interpret it; punctuation around it stays outside."""
    if not _FORGE_MARKUP.search(word):
        return _escape_plain(word)
    match = _PUNCTUATED_WORD.fullmatch(word)
    if match is None or not _FORGE_MARKUP.search(match[2]):
        return format_code(word, max_length)
    return f"{_escape_plain(match[1])}{format_code(match[2], max_length)}{_escape_plain(match[3])}"


def _escape_plain(word: str) -> str:
    return _ESCAPED.sub(r"\\\g<0>", word).replace("|", "&#124;")
