"""Lanes of a step under a ruler, with a cursor: zooms, pans, and goes from gap to gap."""

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from zprof.tui.keys import Where, bindings
from zprof.tui.theme.looks import look_of
from zprof.tui.timeline.gaps import longest_gap, next_gap
from zprof.tui.timeline.lane import Columns, Lane, columns_of
from zprof.tui.timeline.model import StepModel
from zprof.tui.timeline.view import View, first_view
from zprof.tui.widgets.lane_paint import LABEL, Brush, row, ruler

#: Columns before and behind the time.
_BESIDE = 2
_LEAST_WIDTH = 8
_FACTOR = 2.0


class Lanes(Widget, can_focus=True):
    """A row for each lane; ``view`` is what part of the step they show, ``at`` the lane of the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.TIMELINE)]
    DEFAULT_CSS = "Lanes { height: auto; max-height: 60%; }"

    class Moved(Message):
        """The cursor is elsewhere, or the view is another."""

    class Opened(Message):
        """``enter`` on an event: its lane and its place there."""

        def __init__(self, lane: Lane, place: int) -> None:
            super().__init__()
            self.lane, self.place = lane, place

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.model: StepModel | None = None
        self.view: View = first_view(1)
        self.at = 0
        self._key = "collectives"
        self._has_shown = False
        self.said = ""
        self._first = 0

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Those of the step; none while there is no step."""
        return self.model.lanes if self.model else ()

    @property
    def lane(self) -> Lane | None:
        """The one with the cursor."""
        return self.lanes[self.at] if self.at < len(self.lanes) else None

    @property
    def width(self) -> int:
        """Columns of time."""
        return max(_LEAST_WIDTH, self.size.width - LABEL - _BESIDE)

    def show(self, model: StepModel) -> None:
        """Show this step: as far as it has them, the same part of it and the same lane as before."""
        self.model = model
        self.view = self.view.of(model.length_ns) if self._has_shown else first_view(model.length_ns)
        self.at = next((at for at, lane in enumerate(self.lanes) if lane.key == self._key), 0)
        self._has_shown = True
        self.said, self._first = "", 0
        self.refresh(layout=True)
        self._changed()

    def say(self, text: str) -> None:
        """Show no lanes; ``said`` is why."""
        self.said, self.model = text, None
        self.refresh(layout=True)
        self._changed()

    def columns(self) -> Columns | None:
        """The lane of the cursor in the view."""
        return columns_of(self.lane, self.view.edges(self.width)) if self.lane else None

    def under(self) -> tuple[float, float]:
        """Begin and end of the column of the cursor."""
        edges = self.view.edges(self.width)
        column = self.view.column(self.width)
        return float(edges[column]), float(edges[column + 1])

    def chosen(self) -> tuple[int | None, int]:
        """The place of the event under the cursor, and how many there are; None where nothing is."""
        columns = self.columns()
        if self.lane is None or columns is None:
            return None, 0
        begin, end = self.under()
        role = columns.role(self.view.column(self.width))
        count = len(self.lane.items.touching(begin, end))
        return (self.lane.items.chosen(begin, end, role) if count else None), count

    def action_gap(self, by: int) -> None:
        """To the next exposed gap, or the one before."""
        if self.model is not None:
            self._to_gap(next_gap(self.model.gaps, self.view.cursor_ns, by))

    def action_longest(self) -> None:
        """To the longest exposed gap."""
        if self.model is not None:
            self._to_gap(longest_gap(self.model.gaps))

    def action_zoom(self, by: int) -> None:
        """See half as much, or twice."""
        self._look(self.view.zoomed(_FACTOR**by))

    def action_cursor(self, by: int) -> None:
        """Move by a column."""
        self._look(self.view.moved(by, self.width))

    def action_page(self, by: int) -> None:
        """Move by half a view."""
        self._look(self.view.moved(by * (self.width // 2), self.width))

    def action_whole(self, at_end: int) -> None:
        """See all, from its begin or its end."""
        self._look(self.view.whole().at(self.view.length_ns if at_end else 0))

    def action_lane(self, by: int) -> None:
        """The lane above, or below."""
        self._choose(max(0, min(len(self.lanes) - 1, self.at + by)))
        self._changed()

    def action_open(self) -> None:
        """Open the event under the cursor."""
        place, _ = self.chosen()
        if self.lane is None or place is None:
            self.app.notify("nothing ran there", severity="warning", markup=False)
        else:
            self.post_message(self.Opened(self.lane, place))

    def on_click(self, event: events.Click) -> None:
        """The cursor there; twice opens."""
        lane, column = self._first + event.y - 1, event.x - LABEL - 1
        if 0 <= lane < len(self.lanes) and column >= 0:
            self._choose(lane)
            self._look(self.view.moved(column - self.view.column(self.width), self.width))
            if event.chain > 1:
                self.action_open()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in."""
        self.action_zoom(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out."""
        self.action_zoom(1)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The ruler, and a row a lane."""
        return 1 + max(1, len(self.lanes)) + bool(self.model and self.model.left_out)

    def on_resize(self, event: events.Resize) -> None:
        """Other columns."""
        self._changed()

    def render_line(self, y: int) -> Strip:
        """The ruler, a lane, or how many more there are."""
        brush = self._brush()
        if self.model is None:
            return self._strip([])
        if y == 0:
            return self._strip(ruler(self.view, self.width, brush))
        place = self._first + y - 1
        if y > self._rows:
            return self._strip([Segment(self._more if y == self._rows + 1 else "", brush.muted)])
        if place >= len(self.lanes):
            return self._strip([])
        chosen = (place == self.at, self.has_focus)
        return self._strip(row(self.lanes[place], self.view, self.width, brush, chosen=chosen))

    @property
    def _rows(self) -> int:
        """Rows for lanes: the ruler has one, and what is said of those that are not seen another."""
        room = max(1, self.size.height - 1)
        is_said = len(self.lanes) > room or (self.model is not None and self.model.left_out)
        return max(1, room - 1) if is_said else room

    @property
    def _more(self) -> str:
        """Of lanes that are not seen."""
        hidden, left_out = len(self.lanes) - self._rows, self.model.left_out if self.model else 0
        parts = [f"{hidden} more lanes: up, down"] if hidden > 0 else []
        if left_out:
            parts.append(f"{left_out} more streams or threads, which did less, are left out")
        return "; ".join(parts)

    def _choose(self, place: int) -> None:
        self.at = place
        self._key = self.lane.key if self.lane else self._key

    def _to_gap(self, place: int | None) -> None:
        if self.model is None or place is None:
            self.app.notify("no exposed communication there", markup=False)
            return
        begin, end = (int(edge) for edge in self.model.gaps[place])
        self._look(self.view.onto(begin, end))

    def _look(self, view: View) -> None:
        self.view = view
        self._changed()

    def _changed(self) -> None:
        first = max(min(self._first, self.at), self.at - self._rows + 1)
        self._first = max(0, min(first, len(self.lanes) - self._rows))
        self.refresh()
        self.post_message(self.Moved())

    def _brush(self) -> Brush:
        return Brush(
            look=look_of(self.app),
            ascii_only=bool(getattr(self.app, "ascii_only", False)),
            ground=self.rich_style,
        )

    def _strip(self, segments: list[Segment]) -> Strip:
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)
