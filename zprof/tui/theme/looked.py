"""An app in a look: dark or light, with colours or without, with glyphs or letters."""

from collections.abc import Sequence

from textual.app import App
from textual.filter import LineFilter

from zprof.tui.theme.filters import AsciiOnly, NoColours


class Looked(App[int]):
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
