"""Look of the TUI: colours, glyphs and letters for tenants, kinds of time and marks.

Also the filters for NO_COLOR and --ascii, and the base class of both apps. The Okabe-Ito palette is
distinguishable with every kind of colour blindness. Each colour has a glyph, and each glyph a letter.
"""

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.color import Color
from textual.command import CommandPalette
from textual.css.query import NoMatches
from textual.events import Event, Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.widget import Widget
from textual.worker import WorkerFailed

from zprof.base.errors import BadInput
from zprof.model.tenants import Tenant
from zprof.reports.table import Mark

#: Minimum drawn size; a smaller terminal shows a part.
_MIN_COLUMNS, _MIN_ROWS = 30, 8


class Palette(CommandPalette):
    """Textual's command palette; a second key press does not close the screen below it."""

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close the palette."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()


class ThemedApp(App[int]):
    """Base class of zprof's apps: theme, NO_COLOR and ASCII mode."""

    def __init__(self, *, ascii_only: bool = False, mono: bool = False) -> None:
        super().__init__()
        self.ascii_only, self.mono = ascii_only, mono
        self.no_color = mono  # makes Textual's own widgets use reverse video instead of colour
        self._last_filters: list[LineFilter] = [
            *([NoColours()] if mono else []),
            *([AsciiOnly()] if ascii_only else []),
        ]
        self.set_class(ascii_only, "-ascii")

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters followed by the monochrome and ASCII filters."""
        return [*super().get_line_filters(), *self._last_filters]

    @property
    def size(self) -> Size:
        """Return the drawn size, with a minimum because Textual fails on widths of 0."""
        return _grow(super().size)

    async def on_event(self, event: Event) -> None:
        """Handle an event; a tiny terminal shows a part of the screen."""
        if isinstance(event, Resize):
            event = Resize.from_dimensions(_grow(event.size), event.pixel_size)
        await super().on_event(event)

    def action_command_palette(self) -> None:
        """Show the command palette, once.

        Textual's own action fails on fast key presses: all palettes have the same id, and another may be open
        below a popup or still closing.
        """
        if not any(isinstance(screen, Palette) for screen in self.screen_stack):
            self.push_screen(Palette())

    def _handle_exception(self, error: Exception) -> None:
        """End the app, unless a worker of Textual's closing palette failed to find its list."""
        if not (isinstance(error, WorkerFailed) and isinstance(error.error, NoMatches)):
            super()._handle_exception(error)

    @property
    def is_dark(self) -> bool:
        """Return True if the theme is dark."""
        return bool(self.current_theme.dark)

    @property
    def looks(self) -> tuple[object, ...]:
        """All settings that affect drawing."""
        return (self.theme, self.mono, self.ascii_only)


def _grow(size: Size) -> Size:
    return Size(max(size.width, _MIN_COLUMNS), max(size.height, _MIN_ROWS))


UNTAGGED, RESERVED_UNUSED, NON_PYTORCH = "untagged", "reserved_unused", "non_pytorch"


class Look(StrEnum):
    """Colour scheme supported by the terminal."""

    DARK = "dark"
    LIGHT = "light"
    MONO = "mono"


class Paint(Struct, frozen=True):
    """A glyph, its ASCII letter, and its colours on dark and light backgrounds."""

    glyph: str
    letter: str
    dark: str
    light: str

    def colour(self, look: Look) -> str:
        """Return a Rich colour; empty in monochrome."""
        return {Look.DARK: self.dark, Look.LIGHT: self.light, Look.MONO: ""}[look]

    def shown(self, *, ascii_only: bool) -> str:
        """Return the glyph, or the letter in ASCII mode."""
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
#: Kinds of time: ledger terms and lanes. Exposed time has solid glyphs, hidden time dashed glyphs.
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
#: Heat map colours from low to high: cividis, readable in greyscale and by colour-blind users.
HEAT: tuple[str, ...] = (
    "#00224E", "#123570", "#3B496C", "#575D6D", "#707173", "#8A8678", "#A59C74", "#C3B369", "#E1CC55",
    "#FEE838",
)  # fmt: skip
HEAT_GLYPHS = " ·:-=+*#%@"


#: Short names for the most common themes.
_THEME_ALIASES = {"dark": "textual-dark", "light": "textual-light", "ansi": "ansi-dark"}


def wants_no_colour(environment: dict[str, str] | None = None) -> bool:
    """Return True if NO_COLOR is set to a non-empty value (https://no-color.org)."""
    values = os.environ if environment is None else environment
    return bool(values.get("NO_COLOR"))


def get_look(app: object) -> Look:
    """Return the colour scheme of an app."""
    if getattr(app, "mono", False):
        return Look.MONO
    return Look.DARK if getattr(app, "is_dark", True) else Look.LIGHT


class Pen(Struct, frozen=True, kw_only=True):
    """Drawing settings of a widget: colour scheme, ASCII or glyphs, focus, background style."""

    look: Look
    ascii_only: bool
    focused: bool
    ground: Style = Style()

    @classmethod
    def for_widget(cls, widget: Widget) -> "Pen":
        """Return the settings for a widget in its current state."""
        app = widget.app
        ascii_only = bool(getattr(app, "ascii_only", False))
        return cls(
            look=get_look(app), ascii_only=ascii_only, focused=widget.has_focus, ground=widget.rich_style
        )

    @property
    def head_style(self) -> str:
        """Style of a headline."""
        return "bold reverse" if self.focused else "bold"

    @property
    def muted(self) -> Style:
        """Style of secondary text on the background."""
        return self.style_for(MARKS[Mark.MUTED])

    def pick(self, glyph: str, letter: str) -> str:
        """Return the glyph, or the letter in ASCII mode."""
        return letter if self.ascii_only else glyph

    def start_headline(self) -> Text:
        """Return the start of a headline, with a mark if the widget has the focus."""
        return Text(self.pick("▸", ">") if self.focused else " ", style="bold", no_wrap=True, end="")

    def style_for(self, paint: Paint | None) -> Style:
        """Return the style of a paint on the background."""
        colour = paint.colour(self.look) if paint else ""
        return self.ground + Style.parse(colour) if colour else self.ground


def resolve_theme(name: str) -> str:
    """Return Textual's name of a theme.

    Raises:
        BadInput: no theme has that name; the hint lists them.
    """
    from textual.theme import BUILTIN_THEMES

    full = _THEME_ALIASES.get(name, name)
    if full not in BUILTIN_THEMES:
        names = ", ".join([*_THEME_ALIASES, *sorted(BUILTIN_THEMES)])
        raise BadInput(f"--theme {name}: no such theme", hint=f"themes: {names}")
    return full


#: ASCII replacements of frame, bar and other characters, each one column wide.
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
    ord(character): plain for plain, characters in _ASCII_GROUPS.items() for character in characters
}


class NoColours(LineFilter):
    """Line filter that removes colours and keeps bold, underline, reverse and click handlers."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments without colours."""
        return [Segment(text, _strip_colour(style), control) for text, style, control in segments]


class AsciiOnly(LineFilter):
    """Line filter that replaces each non-ASCII character with ASCII of the same width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in ASCII, of unchanged width."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


def to_ascii(text: str) -> str:
    """Return the text in ASCII; characters without a replacement become ``?``, one per column of width."""
    if text.isascii():
        return text
    return "".join(
        character if character.isascii() else (_ASCII_TABLE.get(ord(character)) or "?" * cell_len(character))
        for character in text
    )


def _strip_colour(style: Style | None) -> Style | None:
    if style is None:
        return None
    plain = style.without_color
    return plain + Style.from_meta(style.meta) if style.meta else plain
