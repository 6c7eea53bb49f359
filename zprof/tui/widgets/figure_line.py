"""One line of words and numbers: parts that do not fit are left out whole."""

from collections.abc import Sequence

from rich.text import Text
from textual import events
from textual.widgets import Static

from zprof.tui.figures import Figure
from zprof.tui.tables import Cell
from zprof.tui.theme.looks import look_of
from zprof.tui.widgets.paint import cell_text

_BETWEEN = "  "


class FigureLine(Static):
    """Shows parts of some cells each; it takes no line without any."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id)
        self._parts: Sequence[Sequence[Cell]] = ()
        self._shown: list[Sequence[Cell]] = []

    def show(self, parts: Sequence[Sequence[Cell]]) -> None:
        """Show these from now on."""
        self._parts = parts
        self.display = bool(parts)
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """More or fewer parts fit."""
        self._draw()

    def _draw(self) -> None:
        look, line = look_of(self.app), Text(no_wrap=True)
        self._shown = []
        for cells in self._parts:
            part = Text(" ").join(cell_text(cell, look) for cell in cells)
            if line.cell_len + len(_BETWEEN) + part.cell_len > self.size.width and line:
                break
            line.append(_BETWEEN if line else "").append_text(part)
            self._shown.append(cells)
        self.update(line)

    def shown_figures(self) -> list[Figure]:
        """The numbers in it."""
        return [cell for cells in self._shown for cell in cells if isinstance(cell, Figure)]
