"""The look of the TUI.

Colours, glyphs and letters for tenants, kinds of time and marks; the filters for NO_COLOR and --ascii; the
base class of both apps.

The palette is that of Okabe and Ito, distinct for every kind of colour blindness. Each colour has a glyph,
and each glyph a letter.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter

from zprof.model.errors import BadInput
from zprof.model.tenants import Tenant
from zprof.tui.tables import Mark


class ThemedApp(App[int]):
    """What all apps of zprof have of looks."""

    def __init__(self, *, ascii_only: bool = False, mono: bool = False) -> None:
        super().__init__()
        self.ascii_only, self.mono = ascii_only, mono
        self.no_color = mono  # Textual's own widgets then reverse what they would mark by a colour
        self._last_filters: list[LineFilter] = [
            *([NoColours()] if mono else []),
            *([AsciiOnly()] if ascii_only else []),
        ]
        self.set_class(ascii_only, "-ascii")

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's, and after them those of the look."""
        return [*super().get_line_filters(), *self._last_filters]

    @property
    def is_dark(self) -> bool:
        """Whether the theme is dark."""
        return bool(self.current_theme.dark)

    @property
    def looks(self) -> tuple[object, ...]:
        """All that changes how a page is drawn."""
        return (self.theme, self.mono, self.ascii_only)


UNTAGGED, RESERVED_UNUSED, NON_PYTORCH = "untagged", "reserved_unused", "non_pytorch"


class Look(StrEnum):
    """What a terminal can show."""

    DARK = "dark"
    LIGHT = "light"
    MONO = "mono"


@dataclass(frozen=True, slots=True)
class Paint:
    """A glyph, its letter, and a colour on dark and on light ground."""

    glyph: str
    letter: str
    dark: str
    light: str

    def colour(self, look: Look) -> str:
        """A colour that rich understands; empty without colours."""
        return {Look.DARK: self.dark, Look.LIGHT: self.light, Look.MONO: ""}[look]

    def shown(self, *, ascii_only: bool) -> str:
        """The glyph, or the letter."""
        return self.letter if ascii_only else self.glyph


_GREY = ("#C0C0C0", "#5F5F5F")
TENANTS: Mapping[str, Paint] = {
    Tenant.PARAMETERS: Paint("█", "P", "#0072B2", "#0072B2"),
    Tenant.GRADIENTS: Paint("▓", "G", "#E69F00", "#E69F00"),
    Tenant.OPTIMIZER_STATE: Paint("▒", "O", "#009E73", "#009E73"),
    Tenant.ACTIVATIONS: Paint("░", "A", "#CC79A7", "#CC79A7"),
    Tenant.TEMPORARY_BUFFERS: Paint("▄", "T", "#D55E00", "#D55E00"),
    Tenant.COMMUNICATION_BUFFERS: Paint("▚", "C", "#56B4E9", "#56B4E9"),
    UNTAGGED: Paint("?", "?", *_GREY),
    RESERVED_UNUSED: Paint("·", ".", *_GREY),
    NON_PYTORCH: Paint(":", ":", *_GREY),
}
#: Kinds of time: terms of the ledger, and lanes.  Exposed is solid, hidden is dashed.
TIMES: Mapping[str, Paint] = {
    "compute_ns": Paint("█", "#", "#56B4E9", "#0072B2"),
    "exposed_transfer_ns": Paint("━", "=", "#E8743B", "#B84A00"),
    "exposed_wait_ns": Paint("▒", "w", "#E69F00", "#B37400"),
    "exposed_memcpy_ns": Paint("▄", "m", "#CC79A7", "#A94F83"),
    "idle_ns": Paint("·", ".", *_GREY),
    "unexplained_ns": Paint("?", "?", *_GREY),
    "overlapped_ns": Paint("╌", "-", "#2DB88A", "#00795A"),
}
MARKS: Mapping[Mark, Paint] = {
    Mark.PLAIN: Paint("", "", "", ""),
    Mark.MUTED: Paint("", "", "#9A9A9A", "#6A6A6A"),
    Mark.GOOD: Paint("✓", "+", "#2DB88A", "#00795A"),
    Mark.BAD: Paint("✗", "x", "#E8743B", "#B84A00"),
    Mark.DOUBTFUL: Paint("!", "!", "#E69F00", "#8A5A00"),
    Mark.TITLE: Paint("", "", "bold", "bold"),
    Mark.PREDICTED: Paint("~", "~", "#B7A5FF", "#5A3FA8"),
}
#: Steps of the heat map, from least to most: cividis, which reads in grey and for every kind of sight.
HEAT: tuple[str, ...] = (
    "#00224E", "#123570", "#3B496C", "#575D6D", "#707173", "#8A8678", "#A59C74", "#C3B369", "#E1CC55",
    "#FEE838",
)  # fmt: skip
HEAT_GLYPHS = " ·:-=+*#%@"


#: Names of our own for the themes that are asked for most.
_THEME_ALIASES = {"dark": "textual-dark", "light": "textual-light", "ansi": "ansi-dark"}


def wants_no_colour(environment: dict[str, str] | None = None) -> bool:
    """Whether NO_COLOR is set to anything (https://no-color.org)."""
    values = os.environ if environment is None else environment
    return bool(values.get("NO_COLOR"))


def get_look(app: object) -> Look:
    """The look of an app."""
    if getattr(app, "mono", False):
        return Look.MONO
    return Look.DARK if getattr(app, "is_dark", True) else Look.LIGHT


def resolve_theme(name: str) -> str:
    """Textual's name of a theme.

    Raises:
        BadInput: there is none of that name; its hint lists them.
    """
    from textual.theme import BUILTIN_THEMES

    full = _THEME_ALIASES.get(name, name)
    if full not in BUILTIN_THEMES:
        names = ", ".join([*_THEME_ALIASES, *sorted(BUILTIN_THEMES)])
        raise BadInput(f"--theme {name}: no such theme", hint=f"themes: {names}")
    return full


#: Characters of frames, bars and signs, and what says the same, each in one column.
_ASCII_GROUPS = {
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
_ASCII_TABLE: Mapping[int, str] = {
    ord(sign): plain for plain, signs in _ASCII_GROUPS.items() for sign in signs
}


class NoColours(LineFilter):
    """Colours out; bold, underlined and reversed text stay, and what a click does."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same text."""
        return [Segment(text, _strip_colour(style), control) for text, style, control in segments]


class AsciiOnly(LineFilter):
    """Each character above ``0x7f`` as one below it, in as many columns."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same columns."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


def to_ascii(text: str) -> str:
    """Characters that have no likeness become ``?``, one for each column that they take."""
    if text.isascii():
        return text
    return "".join(sign if sign.isascii() else _ascii_for(sign) for sign in text)


def _ascii_for(sign: str) -> str:
    return _ASCII_TABLE.get(ord(sign)) or "?" * cell_len(sign)


def _strip_colour(style: Style | None) -> Style | None:
    if style is None:
        return None
    plain = style.without_color
    return plain + Style.from_meta(style.meta) if style.meta else plain
