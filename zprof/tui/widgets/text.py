"""Cells and bars as rich text in the app's theme, and a widget that limits a text to some lines.

Nothing from a run is parsed as markup.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from textual import events
from textual.widgets import Static

from zprof.tui.figures import Figure, ModelFigure
from zprof.tui.tables import BarCell, Cell, Mark
from zprof.tui.theme import MARKS, TIMES, Look, Paint

#: Paint of a segment that is not one kind of time but the total.
_WHOLE_PAINT = Paint("─", "~", "#C0C0C0", "#5F5F5F")


def render_cell(cell: Cell, look: Look, *, numeric: bool = False, row: Mark = Mark.PLAIN) -> Text:
    """Return the cell as text: numbers right-aligned, in the colour of its mark or else of its row's."""
    own = _find_mark(cell)
    mark = row if own is Mark.PLAIN else own
    text = Text(cell.text, style=MARKS[mark].colour(look), no_wrap=True, end="")
    if mark is Mark.PREDICTED:
        text.stylize("bold italic" if row is Mark.TITLE else "italic")
    text.justify = "right" if numeric else "left"
    return text


def _find_mark(cell: Cell) -> Mark:
    """Return the cell's mark; figures use their row's, unless they are predicted."""
    if isinstance(cell, Figure):
        return Mark.PREDICTED if isinstance(cell, ModelFigure) and cell.is_predicted else Mark.PLAIN
    return cell.mark


def render_bar(cell: BarCell, columns: int, look: Look, *, ascii_only: bool) -> Text:
    """Return the bar's segments at their positions; a single segment has at least one column."""
    text, at = Text(no_wrap=True, end=""), 0
    for kind, begin, end in cell.segments:
        paint = TIMES.get(kind, _WHOLE_PAINT)
        first = max(at, min(round(begin * columns), columns - 1))
        last = max(round(end * columns), first + 1 if len(cell.segments) == 1 else first)
        text.append(" " * (first - at))
        text.append(paint.shown(ascii_only=ascii_only) * (last - first), paint.colour(look))
        at = last
    return text


def render_parts(
    parts: Sequence[tuple[Paint, float]], columns: int, whole: float, look: Look, *, ascii_only: bool
) -> Text:
    """Draw parts side by side, each as long as its share of ``whole``.

    The ends of the parts are rounded, not their lengths, so that a bar is never longer than its whole.
    """
    text, begun, until = Text(no_wrap=True, end=""), 0, 0.0
    for paint, size in parts:
        until += max(0.0, size)
        end = min(columns, round(columns * until / whole)) if whole > 0 else 0
        text.append(paint.shown(ascii_only=ascii_only) * (end - begun), style=paint.colour(look))
        begun = max(begun, end)
    return text


_CUT_SIGN = "…"


class CutText(Static):
    """Shows a text in at most ``lines`` lines."""

    def __init__(self, *, lines: int, id: str | None = None) -> None:
        super().__init__("", id=id)
        self.lines = lines
        self.whole = Text("")

    def show(self, text: Text) -> None:
        """Show a text."""
        self.whole = text
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Wrap the text for the new width."""
        self._draw()

    def _draw(self) -> None:
        self.update(cut_lines(self.whole, self.content_size.width, self.lines))


def cut_lines(text: Text, width: int, most: int) -> Text:
    """Return the first `most` lines of the wrapped text; the whole text while the width is unknown."""
    if width < 1:
        return text
    lines = text.wrap(Console(width=width, file=None, color_system=None), width)
    if len(lines) <= most:
        return text
    kept = lines[:most]
    kept[-1].rstrip()
    kept[-1].truncate(width - 1)
    kept[-1].append(_CUT_SIGN)
    for line in kept[:-1]:
        line.rstrip()
    return Text("\n").join(kept)
