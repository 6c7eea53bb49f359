"""The rows of many ranks above the lanes of one: who computes and who waits, on one clock."""

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from zprof.analysis.step_timeline.rank_rows import RankOrder, RankRow
from zprof.base.formatting import format_ns
from zprof.tui.keys import Where, bindings
from zprof.tui.theme import Pen
from zprof.tui.timeline_cursor import View, make_first_view
from zprof.tui.widgets.lanes import count_columns, draw_lane

_ACTIONS = frozenset({"lane(-1)", "lane(1)", "open"})
_NO_ORDER = RankOrder(ranks=(), culprit=None, waits_ns={})


class RankRows(Widget, can_focus=True):
    """One row per rank, drawn in the view of the selected rank's lanes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        binding for binding in bindings(Where.TIMELINE) if binding.action in _ACTIONS
    ]

    class Chosen(Message):
        """A rank was chosen with ``enter`` or a double click."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    class Moved(Message):
        """The cursor moved to another rank, or below the last."""

        def __init__(self, *, is_below: bool = False) -> None:
            super().__init__()
            self.is_below = is_below

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: tuple[RankRow, ...] = ()
        self.order = _NO_ORDER
        self.view: View = make_first_view(1)
        self.index = self._origin_ns = 0

    def show(self, rows: Sequence[RankRow], order: RankOrder, origin_ns: int) -> None:
        """Show these rows; the selected rank's step starts at ``origin_ns``. The cursor stays on its rank."""
        ranks, focused = [row.rank for row in rows], self.focused_rank
        self.rows, self.order, self._origin_ns = tuple(rows), order, origin_ns
        self.index = ranks.index(focused) if focused in ranks else 0
        self.refresh()

    @property
    def focused_rank(self) -> int | None:
        """The rank under the cursor."""
        return self.rows[self.index].rank if self.index < len(self.rows) else None

    def set_view(self, view: View) -> None:
        """Draw this part of the selected rank's step."""
        self.view = view
        self.refresh()

    def describe(self) -> list[str]:
        """Describe the rank under the cursor."""
        rank, culprit, waits = self.focused_rank, self.order.culprit, self.order.waits_ns
        if rank is None:
            return []
        text = f"rank {rank}"
        if rank == culprit:
            text = f"rank {rank} is late: {len(waits)} ranks wait for it in this step"
        elif rank in waits:
            text = f"rank {rank} waits {format_ns(waits[rank])} for rank {culprit}"
        hidden = len(self.order.ranks) - len(self.rows)
        return [f"{text}; enter: its lanes", *([f"{hidden} more ranks: press r"] if hidden > 0 else [])]

    def render_line(self, y: int) -> Strip:
        """Draw a rank."""
        if y >= len(self.rows):
            return Strip.blank(self.size.width, self.rich_style)
        row, pen = self.rows[y], Pen.for_widget(self)
        note = (
            "late" if row.rank == self.order.culprit else "waits" if row.rank in self.order.waits_ns else ""
        )
        shift_ns = self._origin_ns - row.begin_ns
        view = replace(
            self.view,
            begin_ns=self.view.begin_ns + shift_ns,
            end_ns=self.view.end_ns + shift_ns,
            cursor_ns=self.view.cursor_ns + shift_ns,
        )
        lane, is_focused = replace(row.lane, label=f"r{row.rank} {note}"), pen.focused and y == self.index
        segments = draw_lane(lane, view, count_columns(self.size.width), pen, is_selected=is_focused)
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def action_lane(self, by: int) -> None:
        """Move to the rank above or below."""
        is_below = self.index + by >= len(self.rows)
        self.index = max(0, min(len(self.rows) - 1, self.index + by))
        self.refresh()
        self.post_message(self.Moved(is_below=is_below))

    def action_open(self) -> None:
        """Select the rank under the cursor."""
        if self.focused_rank is not None:
            self.post_message(self.Chosen(self.focused_rank))

    def on_focus(self) -> None:
        """Describe the rank under the cursor."""
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """Move to the clicked rank; a double click selects it."""
        if event.y < len(self.rows):
            self.action_lane(event.y - self.index)
            if event.chain > 1:
                self.action_open()
