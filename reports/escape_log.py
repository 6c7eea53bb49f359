"""Text in the log of a CI job: what GitHub reads as a command, and text that no runner takes for one.

``::error title=T::MESSAGE`` with %, carriage return and line feed as %25, %0D and %0A, in properties also
``:`` and ``,``: https://docs.github.com/actions/reference/workflow-commands-for-github-actions and
``escapeData``, ``escapeProperty`` of its toolkit.
"""

import re

from zprof.model.printable import printable, shorten

#: A command of GitHub's at the begin of a line; of GitHub's first version, Azure's and TeamCity's anywhere.
_AT_BEGIN = re.compile(r"^(\s*)::")
_ANYWHERE = re.compile(r"##(\w*)\[")
_LONGEST, _LONGEST_TITLE = 4_000, 200


def command(kind: str, title: str, *lines: str) -> str:
    """A workflow command: ``error``, ``warning`` or ``notice``; ``lines`` are those of the message."""
    said = "\n".join(shorten(printable(line), _LONGEST) for line in lines if line)
    return f"::{kind} title={_property(shorten(printable(title), _LONGEST_TITLE))}::{_data(said)}"


def log_line(line: str) -> str:
    """A line of a log that no runner takes for a command: as long as it was, one sign is a space."""
    return _ANYWHERE.sub(r"# \1[", _AT_BEGIN.sub(r"\1: ", line))


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
