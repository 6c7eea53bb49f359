"""A line for each rank, of which only those are drawn that are seen: there may be a thousand."""

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from zprof.tui.live.rows import RankRow, RankRows
from zprof.tui.tables import Mark
from zprof.tui.theme.looks import look_of
from zprof.tui.theme.palette import MARKS

_PLAIN = Style()


class RankLines(ScrollView, can_focus=True):
    """Shows :class:`~zprof.tui.live.rows.RankRows` under a line of titles that stays."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows = RankRows()

    def show(self, rows: RankRows) -> None:
        """Show these from now on."""
        self.rows = rows
        self.virtual_size = Size(self.size.width, len(rows.rows) + 1)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The titles, and the rows below that are scrolled to."""
        width = self.size.width
        if y == 0:
            return self._strip(self._in_columns(self.rows.titles), width, Mark.TITLE)
        place = y - 1 + self.scroll_offset.y
        if place >= len(self.rows.rows):
            return Strip.blank(width)
        row = self.rows.rows[place]
        mark = Mark.BAD if row.is_longest else Mark.MUTED if row.is_over else Mark.PLAIN
        return self._strip(f"{self._in_columns(row.cells)} {self._flag(row)} {row.bars}", width, mark)

    def _in_columns(self, texts: tuple[str, ...]) -> str:
        return "".join(text.rjust(width) for text, width in zip(texts, self.rows.widths, strict=False))

    def _flag(self, row: RankRow) -> str:
        """What stands between texts and bars: the longest is told without colour, too."""
        return "<" if row.is_longest else " "

    def _strip(self, text: str, width: int, mark: Mark) -> Strip:
        style = (
            Style.parse(MARKS[mark].colour(look_of(self.app)) or "none") if mark is not Mark.PLAIN else _PLAIN
        )
        strip = Strip([Segment(text, style)]).adjust_cell_length(width)
        return strip.apply_style(self.rich_style)
