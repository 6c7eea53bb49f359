"""The timeline widget: lanes of a step under a ruler, with a cursor that zooms, pans and jumps to gaps."""

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from zprof.analysis.step_timeline.lane import TimelineLane
from zprof.analysis.step_timeline.step_model import StepTimeline, find_longest_gap, find_next_gap
from zprof.tui.keys import Where, bindings
from zprof.tui.theme import get_look
from zprof.tui.timeline.view import CursorTarget, View, find_cursor_target, make_first_view
from zprof.tui.widgets.lane_paint import LABEL_WIDTH, Brush, draw_lane, draw_ruler

#: Columns to the left and right of the time axis.
_MARGIN = 2
_MIN_WIDTH = 8


class LaneView(Widget):
    """Draws one row per lane; ``view`` is the visible part of the step, ``lane_index`` the cursor's lane."""

    class Moved(Message, namespace="lanes"):
        """The cursor or the view changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.model: StepTimeline | None = None
        self.view: View = make_first_view(1)
        self.lane_index = 0
        self._lane_key = "collectives"
        self._has_shown = False
        self.message = ""
        self.first = 0

    @property
    def lanes(self) -> tuple[TimelineLane, ...]:
        """Lanes of the step; empty while no step is shown."""
        return self.model.lanes if self.model else ()

    @property
    def lane(self) -> TimelineLane | None:
        """The lane under the cursor."""
        return self.lanes[self.lane_index] if self.lane_index < len(self.lanes) else None

    @property
    def width(self) -> int:
        """Columns of the time axis."""
        return max(_MIN_WIDTH, self.size.width - LABEL_WIDTH - _MARGIN)

    def show(self, model: StepTimeline) -> None:
        """Show a step, keeping the visible part and the lane of the previous one as far as possible.

        The first step is shown in full, with the cursor at its longest gap.
        """
        self.model = model
        self.view = self.view.for_step_length(model.length_ns) if self._has_shown else _make_first_view(model)
        self.lane_index = next((i for i, lane in enumerate(self.lanes) if lane.key == self._lane_key), 0)
        self._has_shown = True
        self.message, self.first = "", 0
        self.refresh(layout=True)
        self.set_view(self.view)

    def show_message(self, text: str) -> None:
        """Show a message instead of lanes."""
        self.message, self.model = text, None
        self.refresh(layout=True)
        self.set_view(self.view)

    def find_target(self) -> CursorTarget | None:
        """Return the target under the cursor; None if there is no lane."""
        if self.model is None or self.lane is None:
            return None
        return find_cursor_target(self.lane, self.model.gaps, self.view, self.width)

    def select_lane(self, index: int) -> None:
        """Move the cursor to a lane."""
        self.lane_index = index
        self._lane_key = self.lane.key if self.lane else self._lane_key
        self.set_view(self.view)

    def set_view(self, view: View) -> None:
        """Show this part of the step, scrolled so that the cursor's lane is visible."""
        self.view = view
        first = max(min(self.first, self.lane_index), self.lane_index - self._rows + 1)
        self.first = max(0, min(first, len(self.lanes) - self._rows))
        self.refresh()
        self.post_message(self.Moved())

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height of the ruler, all lanes, and the note about hidden ones."""
        return 1 + max(1, len(self.lanes)) + bool(self.model and self.model.omitted_lanes)

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new width."""
        self.set_view(self.view)

    def render_line(self, y: int) -> Strip:
        """Draw the ruler, a lane, or the note about hidden lanes."""
        brush = Brush(
            look=get_look(self.app),
            ascii_only=bool(getattr(self.app, "ascii_only", False)),
            ground=self.rich_style,
        )
        if self.model is None:
            return self._strip([])
        if y == 0:
            return self._strip(draw_ruler(self.view, self.width, brush))
        index = self.first + y - 1
        if y > self._rows:
            return self._strip([Segment(self._hidden_note if y == self._rows + 1 else "", brush.muted)])
        if index >= len(self.lanes):
            return self._strip([])
        selection = (index == self.lane_index, self.has_focus)
        return self._strip(draw_lane(self.lanes[index], self.view, self.width, brush, selection=selection))

    @property
    def _rows(self) -> int:
        """Rows left for lanes after the ruler and, if lanes are hidden, the note about them."""
        row_count = max(1, self.size.height - 1)
        has_note = len(self.lanes) > row_count or (self.model is not None and self.model.omitted_lanes)
        return max(1, row_count - 1) if has_note else row_count

    @property
    def _hidden_note(self) -> str:
        """Note about the lanes that are not visible."""
        hidden, omitted = len(self.lanes) - self._rows, self.model.omitted_lanes if self.model else 0
        parts = [f"{hidden} more lanes: press up or down"] if hidden > 0 else []
        if omitted:
            parts.append(f"{omitted} less busy streams or threads are hidden")
        return "; ".join(parts)

    def _strip(self, segments: list[Segment]) -> Strip:
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)


def _make_first_view(model: StepTimeline) -> View:
    """Return a view of the full step with the cursor at its longest exposed gap."""
    view, longest = make_first_view(model.length_ns), find_longest_gap(model.gaps)
    return view if longest is None else view.at(int(model.gaps[longest, 0]))


_ZOOM_FACTOR = 2.0


class Lanes(LaneView, can_focus=True):
    """Lanes with key and mouse control."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.TIMELINE)]
    DEFAULT_CSS = "Lanes { height: auto; max-height: 60%; }"

    class Opened(Message):
        """An event was opened: its lane and its index in the lane."""

        def __init__(self, lane: TimelineLane, index: int) -> None:
            super().__init__()
            self.lane, self.index = lane, index

    def action_gap(self, by: int) -> None:
        """Jump to the next or previous exposed gap."""
        if self.model is not None:
            self._move_to_gap(
                find_next_gap(self.model.gaps, self.view.cursor_ns, by), "after" if by > 0 else "before"
            )

    def action_longest(self) -> None:
        """Jump to the longest exposed gap."""
        if self.model is not None:
            self._move_to_gap(find_longest_gap(self.model.gaps))

    def action_zoom(self, by: int) -> None:
        """Zoom in or out by a factor of two."""
        self.set_view(self.view.zoomed(_ZOOM_FACTOR**by))

    def action_cursor(self, by: int) -> None:
        """Move the cursor by columns."""
        self.set_view(self.view.moved(by, self.width))

    def action_page(self, by: int) -> None:
        """Move by half a view."""
        self.set_view(self.view.moved(by * (self.width // 2), self.width))

    def action_whole(self, at_end: int) -> None:
        """Show the full step, with the cursor at its start or end."""
        self.set_view(self.view.full_step().at(self.view.length_ns if at_end else 0))

    def action_lane(self, by: int) -> None:
        """Move to the lane above or below."""
        self.select_lane(max(0, min(len(self.lanes) - 1, self.lane_index + by)))

    def action_open(self) -> None:
        """Open the event under the cursor."""
        target = self.find_target()
        if self.lane is None or target is None or target.index is None:
            self.app.notify("nothing ran here", severity="warning", markup=False)
        else:
            self.post_message(self.Opened(self.lane, target.index))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked cell; a double click opens the event."""
        lane, column = self.first + event.y - 1, event.x - LABEL_WIDTH - 1
        if 0 <= lane < len(self.lanes) and column >= 0:
            self.select_lane(lane)
            self.set_view(self.view.moved(column - self.view.column(self.width), self.width))
            if event.chain > 1:
                self.action_open()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in."""
        self.action_zoom(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out."""
        self.action_zoom(1)

    def _move_to_gap(self, index: int | None, position: str = "") -> None:
        if self.model is None or index is None:
            has_gaps = self.model is not None and len(self.model.gaps)
            message = f"no exposed gap {position} the cursor" if has_gaps else "no exposed gap in this step"
            self.app.notify(message, markup=False)
            return
        begin, end = (int(edge) for edge in self.model.gaps[index])
        self.set_view(self.view.zoomed_to(begin, end))
