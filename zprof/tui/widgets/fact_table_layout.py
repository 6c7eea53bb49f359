"""How wide the columns of a table are: what does not fit is taken from its texts, never from its numbers."""

from collections.abc import Sequence

from rich.text import Text

from zprof.model.printable import shorten
from zprof.tui.tables import Column

#: Columns that a cell takes beside its text.
PADDING = 2
#: A text is not cut below this; that of the column that takes the rest neither below its own.
_LEAST_TEXT, _LEAST_REST = 14, 8


def laid_out(
    columns: Sequence[Column], titles: Sequence[Text], rows: Sequence[Sequence[Text]], room: int
) -> list[int]:
    """The widths of columns for a room, to which the texts in the rows are cut."""
    widths = [max(text.cell_len for text in cells) for cells in zip(titles, *rows, strict=True)]
    texts = [not column.numeric and bool(column.title) for column in columns]
    widths = fitted(widths, texts, [column.rest for column in columns], room)
    for row in rows:
        for text, width in zip(row, widths, strict=True):
            if text.cell_len > width:
                text.plain = shorten(text.plain, width)
    return widths


def fitted(widths: Sequence[int], texts: Sequence[bool], rest: Sequence[bool], room: int) -> list[int]:
    """The widths of columns that have to fit into a room with their padding.

    Those that take the rest give way first, then the widest of the texts; numbers keep theirs.
    """
    fits = [
        min(width, room) if text or last else width
        for width, text, last in zip(widths, texts, rest, strict=True)
    ]
    over = sum(fits) + PADDING * len(fits) - room
    for places, least in ((_places(rest), _LEAST_REST), (_places(texts), _LEAST_TEXT)):
        over = _shrink(fits, places, least, over)
    return fits


def _places(chosen: Sequence[bool]) -> list[int]:
    return [place for place, is_one in enumerate(chosen) if is_one]


def _shrink(widths: list[int], places: Sequence[int], least: int, over: int) -> int:
    """Take from the widest of these, column by column, until all fits or they are down to ``least``.

    Says how much is still too much.
    """
    while over > 0 and places:
        widest = max(places, key=lambda place: widths[place])
        if widths[widest] <= least:
            break
        widths[widest] -= 1
        over -= 1
    return over
