"""The timeline widget: lanes of a step under a ruler, with a cursor that zooms, pans and jumps to gaps."""

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from zprof.tui.keys import Where, bindings
from zprof.tui.theme import get_look
from zprof.tui.timeline.lane import Lane
from zprof.tui.timeline.step_model import StepModel, find_longest_gap, find_next_gap
from zprof.tui.timeline.view import CursorTarget, View, find_cursor_target, make_first_view
from zprof.tui.widgets.lane_paint import LABEL_WIDTH, Brush, draw_lane, draw_ruler

#: Columns to the left and right of the time axis.
_MARGIN = 2
_MIN_WIDTH = 8


class LaneView(Widget):
    """Draws one row per lane; ``view`` is the visible part of the step, ``at`` the cursor's lane."""

    class Moved(Message, namespace="lanes"):
        """The cursor or the view changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.model: StepModel | None = None
        self.view: View = make_first_view(1)
        self.at = 0
        self._key = "collectives"
        self._has_shown = False
        self.said = ""
        self.first = 0

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Lanes of the step; empty while no step is shown."""
        return self.model.lanes if self.model else ()

    @property
    def lane(self) -> Lane | None:
        """The lane under the cursor."""
        return self.lanes[self.at] if self.at < len(self.lanes) else None

    @property
    def width(self) -> int:
        """Columns of the time axis."""
        return max(_MIN_WIDTH, self.size.width - LABEL_WIDTH - _MARGIN)

    def show(self, model: StepModel) -> None:
        """Show a step, keeping the visible part and the lane of the previous one as far as possible.

        The first step is shown whole, with the cursor at its longest gap.
        """
        self.model = model
        self.view = self.view.of(model.length_ns) if self._has_shown else _make_first_view(model)
        self.at = next((at for at, lane in enumerate(self.lanes) if lane.key == self._key), 0)
        self._has_shown = True
        self.said, self.first = "", 0
        self.refresh(layout=True)
        self.look_at(self.view)

    def say(self, text: str) -> None:
        """Show a message instead of lanes."""
        self.said, self.model = text, None
        self.refresh(layout=True)
        self.look_at(self.view)

    def spot(self) -> CursorTarget | None:
        """Return what is under the cursor; None if there is no lane."""
        if self.model is None or self.lane is None:
            return None
        return find_cursor_target(self.lane, self.model.gaps, self.view, self.width)

    def choose(self, place: int) -> None:
        """Move the cursor to a lane."""
        self.at = place
        self._key = self.lane.key if self.lane else self._key
        self.look_at(self.view)

    def look_at(self, view: View) -> None:
        """Show this part of the step, scrolled so that the cursor's lane is visible."""
        self.view = view
        first = max(min(self.first, self.at), self.at - self._rows + 1)
        self.first = max(0, min(first, len(self.lanes) - self._rows))
        self.refresh()
        self.post_message(self.Moved())

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height of the ruler, all lanes, and the line on hidden ones."""
        return 1 + max(1, len(self.lanes)) + bool(self.model and self.model.left_out)

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new width."""
        self.look_at(self.view)

    def render_line(self, y: int) -> Strip:
        """Draw the ruler, a lane, or the line on hidden lanes."""
        brush = self._brush()
        if self.model is None:
            return self._strip([])
        if y == 0:
            return self._strip(draw_ruler(self.view, self.width, brush))
        place = self.first + y - 1
        if y > self._rows:
            return self._strip([Segment(self._more if y == self._rows + 1 else "", brush.muted)])
        if place >= len(self.lanes):
            return self._strip([])
        chosen = (place == self.at, self.has_focus)
        return self._strip(draw_lane(self.lanes[place], self.view, self.width, brush, chosen=chosen))

    @property
    def _rows(self) -> int:
        """Rows left for lanes after the ruler and, if lanes are hidden, the line on them."""
        row_count = max(1, self.size.height - 1)
        is_said = len(self.lanes) > row_count or (self.model is not None and self.model.left_out)
        return max(1, row_count - 1) if is_said else row_count

    @property
    def _more(self) -> str:
        """Text on the lanes that are not visible."""
        hidden, left_out = len(self.lanes) - self._rows, self.model.left_out if self.model else 0
        parts = [f"{hidden} more lanes: up, down"] if hidden > 0 else []
        if left_out:
            parts.append(f"{left_out} more streams or threads, which did less, are left out")
        return "; ".join(parts)

    def _brush(self) -> Brush:
        return Brush(
            look=get_look(self.app),
            ascii_only=bool(getattr(self.app, "ascii_only", False)),
            ground=self.rich_style,
        )

    def _strip(self, segments: list[Segment]) -> Strip:
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)


def _make_first_view(model: StepModel) -> View:
    """Return the whole step with the cursor at its longest exposed gap."""
    view, longest = make_first_view(model.length_ns), find_longest_gap(model.gaps)
    return view if longest is None else view.at(int(model.gaps[longest, 0]))


_FACTOR = 2.0


class Lanes(LaneView, can_focus=True):
    """Lanes with key and mouse control."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.TIMELINE)]
    DEFAULT_CSS = "Lanes { height: auto; max-height: 60%; }"

    class Opened(Message):
        """An event was opened: its lane and its index there."""

        def __init__(self, lane: Lane, place: int) -> None:
            super().__init__()
            self.lane, self.place = lane, place

    def action_gap(self, by: int) -> None:
        """Jump to the next or previous exposed gap."""
        if self.model is not None:
            self._to_gap(
                find_next_gap(self.model.gaps, self.view.cursor_ns, by), "after" if by > 0 else "before"
            )

    def action_longest(self) -> None:
        """Jump to the longest exposed gap."""
        if self.model is not None:
            self._to_gap(find_longest_gap(self.model.gaps))

    def action_zoom(self, by: int) -> None:
        """Zoom in or out by a factor of two."""
        self.look_at(self.view.zoomed(_FACTOR**by))

    def action_cursor(self, by: int) -> None:
        """Move the cursor by columns."""
        self.look_at(self.view.moved(by, self.width))

    def action_page(self, by: int) -> None:
        """Move by half a view."""
        self.look_at(self.view.moved(by * (self.width // 2), self.width))

    def action_whole(self, at_end: int) -> None:
        """Show the whole step, with the cursor at its start or end."""
        self.look_at(self.view.whole().at(self.view.length_ns if at_end else 0))

    def action_lane(self, by: int) -> None:
        """Move to the lane above or below."""
        self.choose(max(0, min(len(self.lanes) - 1, self.at + by)))

    def action_open(self) -> None:
        """Open the event under the cursor."""
        spot = self.spot()
        if self.lane is None or spot is None or spot.place is None:
            self.app.notify("nothing ran there", severity="warning", markup=False)
        else:
            self.post_message(self.Opened(self.lane, spot.place))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked cell; a double click opens the event."""
        lane, column = self.first + event.y - 1, event.x - LABEL_WIDTH - 1
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
