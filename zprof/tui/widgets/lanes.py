"""The timeline widget: lanes of a step under a ruler, with a cursor that zooms, pans and jumps to gaps.

A lane column shows the glyph of the role that took most of its time; phase and unit lanes show names.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from zprof.analysis.step_timeline.lane import IDLE, LaneKind, LaneRole, TimelineLane, compute_columns
from zprof.analysis.step_timeline.step_model import StepTimeline, find_longest_gap, find_next_gap
from zprof.base.formatting import display_width, printable, shorten
from zprof.tui.keys import Where, bindings
from zprof.tui.theme import TIMES, Paint, Pen
from zprof.tui.timeline_cursor import CursorTarget, View, find_cursor_target, make_first_view

#: Columns to the left and right of the time axis.
_MARGIN = 2
_MIN_WIDTH = 8
#: Columns of a lane's label.
LABEL_WIDTH = 12
_HOST = Paint("•", "H", "#B0A08A", "#6E5F48")


def count_columns(width: int) -> int:
    """Return the columns of the time axis of a widget of this width."""
    return max(_MIN_WIDTH, width - LABEL_WIDTH - _MARGIN)


class LaneView(Widget):
    """Draws one row per lane; ``view``: visible part of the step; ``lane_index``: lane of the cursor."""

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
        return count_columns(self.size.width)

    def show(self, model: StepTimeline) -> None:
        """Show a step, keeping the visible part and the lane if possible.

        The first step is shown in full, with the cursor at its longest gap.
        """
        self.model = model
        longest = find_longest_gap(model.gaps)
        if self._has_shown:
            self.view = self.view.for_step_length(model.length_ns)
        else:
            self.view = make_first_view(model.length_ns)
            self.view = self.view if longest is None else self.view.at(int(model.gaps[longest, 0]))
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
        """Return the target under the cursor; None without lanes."""
        if self.model is None or self.lane is None:
            return None
        return find_cursor_target(self.lane, self.model.gaps, self.view, self.width)

    def select_lane(self, index: int) -> None:
        """Move the cursor to a lane."""
        self.lane_index = index
        self._lane_key = self.lane.key if self.lane else self._lane_key
        self.set_view(self.view)

    def set_view(self, view: View) -> None:
        """Show this part of the step, scrolled to the cursor's lane."""
        self.view = view
        first = max(min(self.first, self.lane_index), self.lane_index - self._rows + 1)
        self.first = max(0, min(first, len(self.lanes) - self._rows))
        self.refresh()
        self.post_message(self.Moved())

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height of the ruler, all lanes, and the note about hidden lanes."""
        return 1 + max(1, len(self.lanes)) + bool(self.model and self.model.omitted_lanes)

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new width."""
        self.set_view(self.view)

    def render_line(self, y: int) -> Strip:
        """Draw the ruler, a lane, or the note about hidden lanes."""
        pen = Pen.for_widget(self)
        if self.model is None:
            return self._strip([])
        if y == 0:
            return self._strip(draw_ruler(self.view, self.width, pen))
        index = self.first + y - 1
        if y > self._rows:
            return self._strip([Segment(self._hidden_note if y == self._rows + 1 else "", pen.muted)])
        if index >= len(self.lanes):
            return self._strip([])
        is_selected = index == self.lane_index
        return self._strip(draw_lane(self.lanes[index], self.view, self.width, pen, is_selected=is_selected))

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


_ZOOM_FACTOR = 2.0


class Lanes(LaneView, can_focus=True):
    """Lanes with key and mouse control."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Where.TIMELINE)]
    DEFAULT_CSS = "Lanes { height: auto; max-height: 60%; }"

    class Opened(Message):
        """An event was opened: its lane and index in the lane."""

        def __init__(self, lane: TimelineLane, index: int) -> None:
            super().__init__()
            self.lane, self.index = lane, index

    class LeftAbove(Message):
        """The cursor is to move above the first lane."""

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
        """Move to the lane above or below; above the first, to the ranks."""
        if by < 0 and not self.lane_index:
            self.post_message(self.LeftAbove())
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


def draw_ruler(view: View, width: int, pen: Pen) -> list[Segment]:
    """Draw the ruler in ms with a mark at the cursor; a digit in that column is shown in reverse."""
    line, column = format_ruler(view, width), view.column(width)
    mark = pen.pick("▼", "v")
    digit = line[column : column + 1].strip()
    return [
        Segment("ms of step".ljust(LABEL_WIDTH + 1), pen.ground),
        Segment(line[:column], pen.muted),
        Segment(digit or mark, pen.ground + Style(bold=True, reverse=bool(digit))),
        Segment(line[column + 1 :], pen.muted),
    ]


def draw_lane(lane: TimelineLane, view: View, width: int, pen: Pen, *, is_selected: bool) -> list[Segment]:
    """Draw a lane. ``is_selected``: the cursor is in this lane."""
    label = shorten(printable(lane.label), LABEL_WIDTH)
    label += " " * (LABEL_WIDTH - display_width(label))
    segments = [
        Segment(label, pen.ground + Style(reverse=is_selected and pen.focused, bold=is_selected)),
        Segment(" ", pen.ground),
    ]
    cursor = view.column(width)
    for column, (text, role) in enumerate(_draw_columns(lane, view, width, pen)):
        style = pen.style_for(_find_paint(lane, role))
        segments.append(Segment(text, style + Style(reverse=True) if column == cursor else style))
    return list(Segment.simplify(segments))


def _draw_columns(lane: TimelineLane, view: View, width: int, pen: Pen) -> list[tuple[str, LaneRole | None]]:
    if lane.is_named:
        return [(text, None) for text in write_names(lane, view, width, ascii_only=pen.ascii_only)]
    idle = TIMES["idle_ns"].shown(ascii_only=pen.ascii_only)
    # A column without work shows ``idle`` in lanes that show idle time.
    columns = compute_columns(lane, view.edges(width))
    glyphs: list[tuple[str, LaneRole | None]] = []
    for column, role_index in enumerate(columns.first.tolist()):
        if role_index == IDLE:
            glyphs.append((idle if lane.shows_idle else _BLANK, None))
        else:
            role, share = columns.roles[role_index], float(columns.shares[role_index, column])
            glyphs.append((pick_glyph(role, share, ascii_only=pen.ascii_only), role))
    return glyphs


def _find_paint(lane: TimelineLane, role: LaneRole | None) -> Paint | None:
    if role is None:
        return None if lane.is_named else TIMES["idle_ns"]
    return _HOST if role is LaneRole.HOST else TIMES[role.value]


_EIGHTHS = "▁▂▃▄▅▆▇█"
#: Glyphs per role: for less than half a column, for more, and both in ASCII.
GLYPHS: Mapping[LaneRole, tuple[str, str, str, str]] = {
    LaneRole.COMPUTE: ("▄", "█", "+", "#"),
    LaneRole.TRANSFER: ("╸", "━", "=", "="),
    LaneRole.WAIT: ("▒", "▒", "w", "w"),
    LaneRole.HIDDEN: ("╌", "╌", "-", "-"),
    LaneRole.MEMCPY: ("▗", "▄", "m", "m"),
    LaneRole.UNEXPLAINED: ("?", "?", "?", "?"),
    LaneRole.HOST: ("◦", "•", "h", "H"),
}
_BLANK = " "
#: A name needs at least this many cells after its bar to be readable.
_MIN_NAME = 3


def pick_glyph(role: LaneRole, share: float, *, ascii_only: bool) -> str:
    """Return the glyph of a role: eighths of a block for compute, thin or full for other roles."""
    thin, full, thin_letter, letter = GLYPHS[role]
    if ascii_only:
        return letter if share >= 0.5 else thin_letter
    if role is LaneRole.COMPUTE:
        return _EIGHTHS[min(7, max(0, int(np.ceil(share * 8)) - 1))]
    return full if share >= 0.5 else thin


def write_names(lane: TimelineLane, view: View, width: int, *, ascii_only: bool) -> list[str]:
    """Return one string per cell: each name starts at its event's column and is cut at the next name."""
    bar = "|" if ascii_only else "▏"
    line = [_BLANK] * width
    starts = _find_name_starts(lane, view, width)
    for index, (column, name) in enumerate(starts):
        following = starts[index + 1][0] if index + 1 < len(starts) else width
        if name:
            line[column:following] = _fit_name(bar, printable(name), following - column, lane.kind)
    return line


def _find_name_starts(lane: TimelineLane, view: View, width: int) -> list[tuple[int, str]]:
    """Return (column, name) of each visible event start, and (column, "") where a name ends.

    If several events start in a column, the last is used. An event that ends in the start column of the next
    has no end entry.
    """
    items = lane.items
    names: dict[int, str] = {}
    indices = items.touching(view.begin_ns, view.end_ns)
    columns = np.clip((items.start_ns[indices] - view.begin_ns) * width // view.span_ns, 0, width - 1)
    ends = -(-(items.end_ns[indices] - view.begin_ns) * width // view.span_ns)
    start_columns, last = np.unique(
        columns[::-1], return_index=True
    )  # at most one lookup of a name per column
    for index in (len(indices) - 1 - last).tolist():
        names[int(columns[index])] = lane.names[int(items.row[indices[index]])]
    for index in (len(indices) - 1 - last).tolist():
        column, end = int(columns[index]), int(ends[index])
        if end < width and not ((start_columns > column) & (start_columns < end)).any():
            names.setdefault(end, "")
    return sorted(names.items())


def _fit_name(bar: str, name: str, cells: int, kind: LaneKind) -> list[str]:
    """Return exactly ``cells`` strings, one per cell; a wide character is followed by an empty string."""
    parts = [bar]
    for character in _cut_name(name, cells - 1, kind):
        char_width = display_width(character)
        if char_width == 0:
            parts[-1] += character
        else:
            parts += [character, *[""] * (char_width - 1)]
    return [*parts, *[_BLANK] * (cells - len(parts))]


def _cut_name(name: str, cells: int, kind: LaneKind) -> str:
    """Shorten a name; units keep their end (``17`` of ``layers.17``), phases their start."""
    if kind is LaneKind.UNITS and display_width(name) > cells:
        # Keep as many trailing dotted parts as fit, else the full name.
        parts = name.split(".")
        ends = (".".join(parts[first:]) for first in range(1, len(parts)))
        name = next((end for end in ends if end and display_width(end) <= cells), name)
        return shorten(name[::-1], cells)[::-1] if cells >= _MIN_NAME or display_width(name) <= cells else ""
    return shorten(name, cells) if cells >= _MIN_NAME or display_width(name) <= cells else ""


#: Columns per tick: its number, and space before the next tick.
_TICK_WIDTH = 11
_ROUND_STEPS = (1, 2, 5, 10)


def find_ticks(view: View, width: int) -> list[tuple[int, str]]:
    """Return column and label of each tick."""
    if width < 1:
        return []
    # The smallest round step of at least `min_ns`, and its decimals in ms.
    min_ns = view.span_ns * _TICK_WIDTH / width
    power = max(0, math.floor(math.log10(max(1.0, min_ns))))
    step = next(s * 10**power for s in _ROUND_STEPS if s * 10**power >= min_ns or s == _ROUND_STEPS[-1])
    decimals = max(0, 6 - math.floor(math.log10(step)))
    ticks, time = [], -(-view.begin_ns // step) * step
    while time < view.end_ns:
        column = (time - view.begin_ns) * width // view.span_ns
        label = f"{time / 1e6:.{decimals}f}"
        if column + len(label) <= width:
            ticks.append((column, label))
        time += step
    return ticks


def format_ruler(view: View, width: int) -> str:
    """Return the ruler as one line; each label starts in the column for its time."""
    line = [" "] * width
    for column, label in find_ticks(view, width):
        line[column : column + len(label)] = label
    return "".join(line)
