"""A table whose columns make pages where they do not all fit: none is ever seen in part.

A number that is cut loses its unit, and says something else.
"""

from collections.abc import Sequence
from itertools import accumulate

from rich.text import Text

from zprof.tui.tables import Column
from zprof.tui.widgets.fact_table import FactTable
from zprof.tui.widgets.fact_table_layout import PADDING

#: The last page can be gone to where the table has no bar at its side, and is wider by that.
_BAR = 1


class PagedTable(FactTable):
    """Shows the page of the column under the cursor."""

    def _widths(
        self, columns: Sequence[Column], titles: Sequence[Text], rows: Sequence[Sequence[Text]]
    ) -> list[int]:
        return paged(super()._widths(columns, titles, rows), self._room())

    def _scroll_cursor_into_view(self, animate: bool = False) -> None:
        """To the page of its column; it is as high as its rows."""
        widths = [column.get_render_width(self) for column in self.ordered_columns]
        begin = [0, *accumulate(widths)][self.cursor_column]
        room = max(1, self._room())
        self.scroll_to(x=begin // room * room, animate=False)


def paged(widths: Sequence[int], room: int) -> list[int]:
    """Widths with which no column lies across the end of a page: the last one of each page fills it."""
    found, used, last = list(widths), 0, 0
    for place, width in enumerate(widths):
        if used and used + width + PADDING > room:
            found[place - 1] += max(0, room - used)
            used, last = 0, _BAR
        used += width + PADDING
    if last:
        found[-1] += max(0, room - used) + last
    return found
