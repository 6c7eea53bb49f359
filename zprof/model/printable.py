"""Text from a run made safe to print: names in a recording are untrusted.

A module name may hold ESC sequences that repaint a terminal, line breaks that forge a line of the
report, or bidirectional overrides that turn text around.  Each such character is shown as its escape.
"""

import unicodedata

#: Unicode categories that are shown as escapes: control, format (bidirectional and zero width),
#: surrogate, private use, unassigned, line and paragraph separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: object) -> str:
    """``text`` on one line, without any character that steers a terminal."""
    said = str(text)
    return said if said.isprintable() else "".join(_shown(character) for character in said)


def printable_lines(text: object) -> list[str]:
    """The lines of zprof's own multi-line text, each one printable."""
    return [printable(line) for line in str(text).split("\n")]


def display_width(text: str) -> int:
    """Columns that ``text`` takes in a terminal: wide characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def shorten(text: str, width: int) -> str:
    """``text`` cut to at most ``width`` columns, with ``…`` where something is missing."""
    if display_width(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept) + "…" if width > 0 else ""


def _shown(character: str) -> str:
    code = ord(character)
    if unicodedata.category(character) not in _UNSAFE:
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
