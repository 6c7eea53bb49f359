"""Lanes of a step, with a cursor: zooms, pans, and goes from gap to gap."""

from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from zprof.tui.keys import Where, bindings
from zprof.tui.timeline.gaps import longest_gap, next_gap
from zprof.tui.timeline.lane import Lane
from zprof.tui.widgets.lane_paint import LABEL
from zprof.tui.widgets.lane_view import LaneView

_FACTOR = 2.0


class Lanes(LaneView, can_focus=True):
    """What keys and the mouse do in lanes."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.TIMELINE)]
    DEFAULT_CSS = "Lanes { height: auto; max-height: 60%; }"

    class Opened(Message):
        """``enter`` on an event: its lane and its place there."""

        def __init__(self, lane: Lane, place: int) -> None:
            super().__init__()
            self.lane, self.place = lane, place

    def action_gap(self, by: int) -> None:
        """To the next exposed gap, or the one before."""
        if self.model is not None:
            self._to_gap(next_gap(self.model.gaps, self.view.cursor_ns, by), "after" if by > 0 else "before")

    def action_longest(self) -> None:
        """To the longest exposed gap."""
        if self.model is not None:
            self._to_gap(longest_gap(self.model.gaps))

    def action_zoom(self, by: int) -> None:
        """See half as much, or twice."""
        self.look_at(self.view.zoomed(_FACTOR**by))

    def action_cursor(self, by: int) -> None:
        """Move by a column."""
        self.look_at(self.view.moved(by, self.width))

    def action_page(self, by: int) -> None:
        """Move by half a view."""
        self.look_at(self.view.moved(by * (self.width // 2), self.width))

    def action_whole(self, at_end: int) -> None:
        """See all, from its begin or its end."""
        self.look_at(self.view.whole().at(self.view.length_ns if at_end else 0))

    def action_lane(self, by: int) -> None:
        """The lane above, or below."""
        self.choose(max(0, min(len(self.lanes) - 1, self.at + by)))

    def action_open(self) -> None:
        """Open the event under the cursor."""
        spot = self.spot()
        if self.lane is None or spot is None or spot.place is None:
            self.app.notify("nothing ran there", severity="warning", markup=False)
        else:
            self.post_message(self.Opened(self.lane, spot.place))

    def on_click(self, event: events.Click) -> None:
        """The cursor there; twice opens."""
        lane, column = self.first + event.y - 1, event.x - LABEL - 1
        if 0 <= lane < len(self.lanes) and column >= 0:
            self.choose(lane)
            self.look_at(self.view.moved(column - self.view.column(self.width), self.width))
            if event.chain > 1:
                self.action_open()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in."""
        self.action_zoom(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out."""
        self.action_zoom(1)

    def _to_gap(self, place: int | None, where: str = "") -> None:
        if self.model is None or place is None:
            any_there = self.model is not None and len(self.model.gaps)
            said = f"no exposed gap {where} the cursor" if any_there else "no exposed gap in this step"
            self.app.notify(said, markup=False)
            return
        begin, end = (int(edge) for edge in self.model.gaps[place])
        self.look_at(self.view.onto(begin, end))
