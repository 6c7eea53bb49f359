"""Paints the rows of the timeline: the ruler, and lanes with their labels, glyphs and the cursor."""

from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style

from zprof.model.printable import display_width, printable, shorten
from zprof.tui.tables import Mark
from zprof.tui.theme.palette import MARKS, TIMES, Look, Paint
from zprof.tui.timeline.cells import cells, written
from zprof.tui.timeline.cover import Role
from zprof.tui.timeline.lane import Lane, columns_of
from zprof.tui.timeline.ruler import ruled
from zprof.tui.timeline.view import View

#: Columns of a lane's label.
LABEL = 12
_HOST = Paint("•", "H", "#B0A08A", "#6E5F48")


@dataclass(frozen=True, slots=True, kw_only=True)
class Brush:
    """How to paint; ``ground`` is the style of the widget."""

    look: Look
    ascii_only: bool
    ground: Style

    @property
    def muted(self) -> Style:
        """For what is beside the point."""
        return self.of(MARKS[Mark.MUTED])

    def of(self, paint: Paint | None) -> Style:
        """The colour of a paint on the ground."""
        colour = paint.colour(self.look) if paint else ""
        return self.ground + Style.parse(colour) if colour else self.ground


def ruler(view: View, width: int, brush: Brush) -> list[Segment]:
    """Milliseconds of the step, and a mark over the cursor; a digit that stands there is shown in reverse."""
    line, column = ruled(view, width), view.column(width)
    mark = "v" if brush.ascii_only else "▼"
    digit = line[column : column + 1].strip()
    return [
        Segment("ms of step".ljust(LABEL + 1), brush.ground),
        Segment(line[:column], brush.muted),
        Segment(digit or mark, brush.ground + Style(bold=True, reverse=bool(digit))),
        Segment(line[column + 1 :], brush.muted),
    ]


def row(
    lane: Lane, view: View, width: int, brush: Brush, *, chosen: tuple[bool, bool] = (False, False)
) -> list[Segment]:
    """A lane.  ``chosen``: whether the cursor is in it, and whether the widget has the focus."""
    is_mine, has_focus = chosen
    label = shorten(printable(lane.label), LABEL)
    label += " " * (LABEL - display_width(label))
    segments = [
        Segment(label, brush.ground + Style(reverse=is_mine and has_focus, bold=is_mine)),
        Segment(" ", brush.ground),
    ]
    cursor = view.column(width)
    for column, (text, role) in enumerate(_line(lane, view, width, brush)):
        style = brush.of(_paint(lane, role))
        segments.append(Segment(text, style + Style(reverse=True) if column == cursor else style))
    return list(Segment.simplify(segments))


def _line(lane: Lane, view: View, width: int, brush: Brush) -> list[tuple[str, Role | None]]:
    if lane.is_named:
        return [(text, None) for text in written(lane, view, width, ascii_only=brush.ascii_only)]
    idle = TIMES["idle_ns"].shown(ascii_only=brush.ascii_only)
    return cells(lane, columns_of(lane, view.edges(width)), idle, ascii_only=brush.ascii_only)


def _paint(lane: Lane, role: Role | None) -> Paint | None:
    if role is None:
        return None if lane.is_named else TIMES["idle_ns"]
    return _HOST if role is Role.HOST else TIMES[role.value]
