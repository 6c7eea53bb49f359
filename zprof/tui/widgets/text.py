"""Render cells and bars as Rich text; a widget that truncates text to a number of lines.

Text from a run is never parsed as markup.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from textual import events
from textual.widgets import Static

from zprof.model.quantities import Value
from zprof.reports.table import Bar, Cell, Mark
from zprof.tui.table_view import get_mark, get_text, is_of_model
from zprof.tui.theme import MARKS, TIMES, Look, Paint, Pen

#: Paint for a total: a segment that is not a single kind of time.
_FULL_BLOCK = "█"
_TOTAL_PAINT = Paint("─", "~", "#C0C0C0", "#5F5F5F")


def render_cell(cell: Cell, look: Look, *, numeric: bool = False, row: Mark = Mark.PLAIN) -> Text:
    """Return the cell as text in the colour of its own or its row's mark, with numbers right-aligned."""
    # Mark of the cell; figures inherit their row's mark unless predicted.
    cell_mark = (
        (Mark.PREDICTED if cell.is_estimate and is_of_model(cell) else Mark.PLAIN)
        if isinstance(cell, Value)
        else get_mark(cell)
    )
    mark = row if cell_mark is Mark.PLAIN else cell_mark
    text = Text(get_text(cell), style=MARKS[mark].colour(look), no_wrap=True, end="")
    if mark is Mark.PREDICTED:
        text.stylize("bold italic" if row is Mark.TITLE else "italic")
    text.justify = "right" if numeric else "left"
    return text


def render_bar(cell: Bar, columns: int, pen: Pen, *, is_boldest: bool = False) -> Text:
    """Return the bar segments at their positions; a single segment has at least one column.

    ``is_boldest``: draw full blocks in bold, whatever the kind of time.
    """
    text, position = Text(no_wrap=True, end=""), 0
    for kind, start, end in cell.segments:
        paint = TIMES.get(f"{kind.removeprefix('time-').replace('-', '_')}_ns", _TOTAL_PAINT)
        first = max(position, min(round(start * columns), columns - 1))
        last = max(round(end * columns), first + 1 if len(cell.segments) == 1 else first)
        text.append(" " * (first - position))
        glyph, colour = paint.shown(ascii_only=pen.ascii_only), paint.colour(pen.look)
        if is_boldest:
            glyph, colour = glyph if pen.ascii_only else _FULL_BLOCK, f"bold {colour}"
        text.append(glyph * (last - first), colour)
        position = last
    return text


def render_parts(parts: Sequence[tuple[Paint, float]], columns: int, total: float, pen: Pen) -> Text:
    """Draw parts side by side, each as long as its share of ``total``.

    The ends of parts are rounded, not their lengths, so the bar never exceeds its total.
    """
    text, start, cumulative = Text(no_wrap=True, end=""), 0, 0.0
    for paint, size in parts:
        cumulative += max(0.0, size)
        end = min(columns, round(columns * cumulative / total)) if total > 0 else 0
        text.append(paint.shown(ascii_only=pen.ascii_only) * (end - start), style=paint.colour(pen.look))
        start = max(start, end)
    return text


_ELLIPSIS = "…"


class TruncatedText(Static):
    """Shows text in at most ``lines`` lines."""

    def __init__(self, *, lines: int, id: str | None = None) -> None:
        super().__init__("", id=id)
        self.lines = lines
        self.full_text = Text("")

    def show(self, text: Text) -> None:
        """Set the text."""
        self.full_text = text
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        """Wrap the text for the new width."""
        self._draw()

    def _draw(self) -> None:
        self.update(truncate_lines(self.full_text, self.content_size.width, self.lines))


def truncate_lines(text: Text, width: int, max_lines: int) -> Text:
    """Return the first `max_lines` lines of the wrapped text, or all text while the width is unknown."""
    if width < 1:
        return text
    lines = text.wrap(Console(width=width, file=None, color_system=None), width)
    if len(lines) <= max_lines:
        return text
    shown = lines[:max_lines]
    shown[-1].rstrip()
    shown[-1].truncate(width - 1)
    shown[-1].append(_ELLIPSIS)
    for line in shown[:-1]:
        line.rstrip()
    return Text("\n").join(shown)
