"""Colour for a terminal: headings, marks, bars, confidence.  The text is the same and says all without it."""

import re
from collections.abc import Mapping

_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31", "32", "33", "36"
_MARKS: Mapping[str, str] = {"✓": _GREEN, "✗": _RED, "!": _YELLOW, "?": _YELLOW}
_CONFIDENCE: Mapping[str, str] = {"high": _GREEN, "medium": _YELLOW, "low": _DIM}
_HEADING = re.compile(r"^[A-Z][A-Z0-9 ,/?-]{3,}(?=$|  |\(| \()")
_MARK = re.compile(r"^( {0,2})([✓✗!?]) ")
_FINDING = re.compile(r"^(  )((?:\d+|also|perhaps) ZP\w+ \w+)")
_SURE = re.compile(r"\b(high|medium|low) confidence$")
_BAR = re.compile(r"[█▏▎▍▌▋▊▉]+")
_LABEL = re.compile(r"^(    )(evidence|fix|disprove|read|more)(?= )")


def coloured(text: str) -> str:
    """The page with the escapes that a terminal takes for colours."""
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    line = _HEADING.sub(lambda found: _in(_BOLD, found.group()), line)
    line = _MARK.sub(lambda found: f"{found[1]}{_in(_MARKS[found[2]], found[2])} ", line)
    line = _FINDING.sub(lambda found: found[1] + _in(_BOLD, found[2]), line)
    line = _LABEL.sub(lambda found: found[1] + _in(_DIM, found[2]), line)
    line = _SURE.sub(lambda found: _in(_CONFIDENCE[found[1]], found.group()), line)
    return _BAR.sub(lambda found: _in(_CYAN, found.group()), line)


def _in(code: str, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"
