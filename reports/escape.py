"""Names from a run as text that nothing acts on: in the log of a CI job, and in Markdown.

In a log, GitHub reads ``::error title=T::MESSAGE`` as a command, with %, carriage return and line feed as
%25, %0D and %0A, and in properties also ``:`` and ``,``; see ``escapeData`` and ``escapeProperty`` of its
toolkit and https://docs.github.com/actions/reference/workflow-commands-for-github-actions.

In Markdown, names may hold markup, HTML, links, mentions (@team), references (#12, !3, GH-4), emoji codes
and formulas.  Signs that CommonMark reads are escaped; a forge reads more after that, from the text that
is left, but never inside code.  So a word that a forge could turn into a link, a picture or a message to
somebody is shown as code.  Formats: https://spec.commonmark.org/0.31.2, https://github.github.com/gfm.
"""

import re
from collections.abc import Sequence

from zprof.model.formatting import printable, shorten

#: A command of GitHub's at the begin of a line; of GitHub's first version, Azure's and TeamCity's anywhere.
_AT_BEGIN = re.compile(r"^(\s*)::")
_ANYWHERE = re.compile(r"##(\w*)\[")
_MAX_MESSAGE, _MAX_COMMAND_TITLE = 4_000, 200


def format_command(kind: str, title: str, *lines: str) -> str:
    """Return a workflow command: ``error``, ``warning`` or ``notice``, with the lines of its message."""
    said = "\n".join(shorten(printable(line), _MAX_MESSAGE) for line in lines if line)
    return f"::{kind} title={_property(shorten(printable(title), _MAX_COMMAND_TITLE))}::{_data(said)}"


def escape_log_line(line: str) -> str:
    """Return a line of a log that no runner takes for a command; its length stays."""
    return _ANYWHERE.sub(r"# \1[", _AT_BEGIN.sub(r"\1: ", line))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


#: An underscore within a word means nothing.
_ESCAPED = re.compile(r"[\\`*\[\]<>&~$#{}]|(?<![^\W_])_|_(?![^\W_])")
#: What a forge makes of text: addresses, mentions, references, emoji codes, formulas, dotted names (domains);
#: GitLab also of ``%"a milestone"``, ``~"a label"`` and ``[vulnerability:12]``.
_READ_BY_FORGES = re.compile(
    r"://|www\.|\$|[@#&~!%^]\w|[%~]\"|\[\w+:[^\]]+\]|:[\w+-]+:|\bGH-\d|[a-z_]\.\w|"
    r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b",
    re.IGNORECASE,
)
#: What would begin a list, or be a rule or the line under a heading, or a quick action of GitLab's.
_BEGIN = re.compile(r"^(?:/|[-+=](?=\s|$|[-=\s]+$)|\d{1,9}(?=[.)](?:\s|$)))")
_AROUND = re.compile(r"""([("']*)(.*?)([)"',.;:]*)""")
_TICKS = re.compile(r"`+")
_MAX_NAME, _MAX_PROSE, _MAX_LINE = 120, 1_200, 400
_MAX_LINES = 60


def escape_prose(text: object, most: int = _MAX_PROSE) -> str:
    """Return one line that may hold names, for a paragraph, a list item or a cell."""
    words = shorten(" ".join(printable(text).split()), most).split(" ")
    return _escape_start(" ".join(_word(word, most) for word in words))


def format_code(name: object, most: int = _MAX_NAME) -> str:
    """Return a name as code; a bar in it is escaped, since it would end the cell of a table."""
    shown = shorten(" ".join(printable(name).split()), most).replace("|", "\\x7c")
    if not shown:
        return ""
    ticks = "`" * (1 + max((len(run) for run in _TICKS.findall(shown)), default=0))
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{space}{shown}{space}{ticks}"


def format_code_block(lines: Sequence[object]) -> str:
    """Return lines as a block of code, whatever they hold; printed in a log they are no commands."""
    shown = [escape_log_line(shorten(printable(line), _MAX_LINE)) for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        shown.append(f"… and {len(lines) - _MAX_LINES} more lines")
    longest = max((len(run) for line in shown for run in _TICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *shown, fence])


def _word(word: str, most: int) -> str:
    """Return a word as code if a forge would read it, without the punctuation around it."""
    if not _READ_BY_FORGES.search(word):
        return _plain(word)
    around = _AROUND.fullmatch(word)
    if around is None or not _READ_BY_FORGES.search(around[2]):
        return format_code(word, most)
    return f"{_plain(around[1])}{format_code(around[2], most)}{_plain(around[3])}"


def _plain(word: str) -> str:
    return _ESCAPED.sub(r"\\\g<0>", word).replace("|", "&#124;")


def _escape_start(line: str) -> str:
    """Return a line that starts no list, rule or quick action."""
    begin = _BEGIN.match(line)
    if begin is None:
        return line
    at = begin.end()
    return f"\\{line}" if line[0] in "-+=/" else f"{line[:at]}\\{line[at:]}"
