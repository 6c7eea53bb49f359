"""Cells and bars as rich text in the look of the app; nothing from a run is ever parsed as markup."""

from collections.abc import Sequence

from rich.text import Text

from zprof.tui.figures import Figure
from zprof.tui.plan.foreseen import Foreseen
from zprof.tui.tables import Bar, Cell, Mark
from zprof.tui.theme.palette import MARKS, TIMES, Look, Paint

#: What is no kind of time: the whole of them.
_WHOLE = Paint("─", "~", "#C0C0C0", "#5F5F5F")


def cell_text(cell: Cell, look: Look, *, numeric: bool = False, row: Mark = Mark.PLAIN) -> Text:
    """A cell: numbers to the right, in the colour of its mark, or else of its row's."""
    own = _mark(cell)
    mark = row if own is Mark.PLAIN else own
    text = Text(cell.text, style=MARKS[mark].colour(look), no_wrap=True, end="")
    if mark is Mark.PREDICTED:
        text.stylize("bold italic" if row is Mark.TITLE else "italic")
    text.justify = "right" if numeric else "left"
    return text


def _mark(cell: Cell) -> Mark:
    """Numbers have that of their row, but for those that are predicted."""
    if isinstance(cell, Figure):
        return Mark.PREDICTED if isinstance(cell, Foreseen) and cell.is_predicted else Mark.PLAIN
    return cell.mark


def bar_text(cell: Bar, columns: int, look: Look, *, ascii_only: bool) -> Text:
    """Its segments at their places; a segment that is anything at all has a column."""
    text, at = Text(no_wrap=True, end=""), 0
    for kind, begin, end in cell.segments:
        paint = TIMES.get(kind, _WHOLE)
        first = max(at, min(round(begin * columns), columns - 1))
        last = max(round(end * columns), first + 1 if len(cell.segments) == 1 else first)
        text.append(" " * (first - at))
        text.append(paint.shown(ascii_only=ascii_only) * (last - first), paint.colour(look))
        at = last
    return text


def bar(
    parts: Sequence[tuple[Paint, float]], columns: int, whole: float, look: Look, *, ascii_only: bool
) -> Text:
    """Parts side by side, each as long as its share of ``whole`` of these columns; sums are kept.

    The ends of the parts are rounded, not their lengths, so that a bar is never longer than its whole.
    """
    text, begun, until = Text(no_wrap=True, end=""), 0, 0.0
    for paint, size in parts:
        until += max(0.0, size)
        end = min(columns, round(columns * until / whole)) if whole > 0 else 0
        text.append(paint.shown(ascii_only=ascii_only) * (end - begun), style=paint.colour(look))
        begun = max(begun, end)
    return text
