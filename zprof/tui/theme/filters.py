"""The last step of drawing: no colour at all (https://no-color.org), or nothing that is not ASCII.

They see every line of every widget, Textual's own borders, scroll bars and messages too.
"""

from collections.abc import Mapping

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

#: Characters of frames, bars and signs, and what says the same, each in one column.
_SAME = {
    "-": "─━╌╍┄┅┈┉═╴╶╸╺▔–—‒",  # noqa: RUF001
    "|": "│┃┆┇┊┋║▌▐▏▎▍▕▊▉",
    "+": "┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝╠╣╦╩╬┏┓┗┛┣┫┳┻╋✓⊕▛▜▙▟",
    "#": "█▓▄▅▆▇▀■",
    "=": "▒≡",
    ".": "░·…⋯•",
    "_": "▁▂▃",
    "^": "▲△↑",
    "v": "▼▽↓",
    ">": "▶▸→›≥»",  # noqa: RUF001
    "<": "◀◂←‹≤«",  # noqa: RUF001
    "x": "✗✕✖×",  # noqa: RUF001
    "%": "▚▞",
    "u": "µμ",
    "~": "≈∼",  # noqa: RUF001
    " ": "\u00a0",
}
_TABLE: Mapping[int, str] = {ord(sign): plain for plain, signs in _SAME.items() for sign in signs}


class NoColours(LineFilter):
    """Colours out; bold, underlined and reversed text stay, and what a click does."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same text."""
        return [Segment(text, _plain(style), control) for text, style, control in segments]


class AsciiOnly(LineFilter):
    """Each character above ``0x7f`` as one below it, in as many columns."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same columns."""
        return [Segment(in_ascii(text), style, control) for text, style, control in segments]


def in_ascii(text: str) -> str:
    """Characters that have no likeness become ``?``, one for each column that they take."""
    if text.isascii():
        return text
    return "".join(sign if sign.isascii() else _likeness(sign) for sign in text)


def _likeness(sign: str) -> str:
    return _TABLE.get(ord(sign)) or "?" * cell_len(sign)


def _plain(style: Style | None) -> Style | None:
    if style is None:
        return None
    plain = style.without_color
    return plain + Style.from_meta(style.meta) if style.meta else plain
