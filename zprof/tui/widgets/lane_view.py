"""Lanes of a step under a ruler: which of them are seen, how they are drawn, what is under the cursor."""

from rich.segment import Segment
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from zprof.tui.theme.looks import look_of
from zprof.tui.timeline.gaps import longest_gap
from zprof.tui.timeline.lane import Lane
from zprof.tui.timeline.model import StepModel
from zprof.tui.timeline.spot import Spot, spot_of
from zprof.tui.timeline.view import View, first_view
from zprof.tui.widgets.lane_paint import LABEL, Brush, row, ruler

#: Columns before and behind the time.
_BESIDE = 2
_LEAST_WIDTH = 8


class LaneView(Widget):
    """A row for each lane; ``view`` is what part of the step they show, ``at`` the lane of the cursor."""

    class Moved(Message, namespace="lanes"):
        """The cursor is elsewhere, or the view is another."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.model: StepModel | None = None
        self.view: View = first_view(1)
        self.at = 0
        self._key = "collectives"
        self._has_shown = False
        self.said = ""
        self.first = 0

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
        """Show this step: as far as it has them, the same part of it and the same lane as before.

        The first one is shown whole, with the cursor on its longest gap.
        """
        self.model = model
        self.view = self.view.of(model.length_ns) if self._has_shown else _begun(model)
        self.at = next((at for at, lane in enumerate(self.lanes) if lane.key == self._key), 0)
        self._has_shown = True
        self.said, self.first = "", 0
        self.refresh(layout=True)
        self.look_at(self.view)

    def say(self, text: str) -> None:
        """Show no lanes; ``said`` is why."""
        self.said, self.model = text, None
        self.refresh(layout=True)
        self.look_at(self.view)

    def spot(self) -> Spot | None:
        """What is under the cursor; None where there is no lane."""
        if self.model is None or self.lane is None:
            return None
        return spot_of(self.lane, self.model.gaps, self.view, self.width)

    def choose(self, place: int) -> None:
        """The cursor into this lane."""
        self.at = place
        self._key = self.lane.key if self.lane else self._key
        self.look_at(self.view)

    def look_at(self, view: View) -> None:
        """Show this part of the step, with the lane of the cursor among those that are seen."""
        self.view = view
        first = max(min(self.first, self.at), self.at - self._rows + 1)
        self.first = max(0, min(first, len(self.lanes) - self._rows))
        self.refresh()
        self.post_message(self.Moved())

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The ruler, and a row a lane."""
        return 1 + max(1, len(self.lanes)) + bool(self.model and self.model.left_out)

    def on_resize(self, event: events.Resize) -> None:
        """Other columns."""
        self.look_at(self.view)

    def render_line(self, y: int) -> Strip:
        """The ruler, a lane, or how many more there are."""
        brush = self._brush()
        if self.model is None:
            return self._strip([])
        if y == 0:
            return self._strip(ruler(self.view, self.width, brush))
        place = self.first + y - 1
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

    def _brush(self) -> Brush:
        return Brush(
            look=look_of(self.app),
            ascii_only=bool(getattr(self.app, "ascii_only", False)),
            ground=self.rich_style,
        )

    def _strip(self, segments: list[Segment]) -> Strip:
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)


def _begun(model: StepModel) -> View:
    """All of a step, and the cursor where it lost most at once."""
    view, longest = first_view(model.length_ns), longest_gap(model.gaps)
    return view if longest is None else view.at(int(model.gaps[longest, 0]))
