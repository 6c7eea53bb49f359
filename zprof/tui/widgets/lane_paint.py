"""Draw the rows of the timeline: ruler ticks, lane labels, a glyph or name per column, the cursor."""

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from rich.segment import Segment
from rich.style import Style

from zprof.analysis.step_timeline.lane import IDLE, LaneKind, LaneRole, TimelineLane, compute_columns
from zprof.model.formatting import display_width, printable, shorten
from zprof.reports.table import Mark
from zprof.tui.theme import MARKS, TIMES, Look, Paint
from zprof.tui.timeline.view import View

#: Columns of a lane's label.
LABEL_WIDTH = 12
_HOST = Paint("•", "H", "#B0A08A", "#6E5F48")


class Brush(Struct, frozen=True, kw_only=True):
    """Colour scheme, character set and background for drawing; ``ground`` is the widget's style."""

    look: Look
    ascii_only: bool
    ground: Style

    @property
    def muted(self) -> Style:
        """Style of secondary text."""
        return self.style_for(MARKS[Mark.MUTED])

    def style_for(self, paint: Paint | None) -> Style:
        """Return the style of a paint on the background."""
        colour = paint.colour(self.look) if paint else ""
        return self.ground + Style.parse(colour) if colour else self.ground


def draw_ruler(view: View, width: int, brush: Brush) -> list[Segment]:
    """Draw the ruler in ms with a mark at the cursor; a digit at that column is shown in reverse."""
    line, column = format_ruler(view, width), view.column(width)
    mark = "v" if brush.ascii_only else "▼"
    digit = line[column : column + 1].strip()
    return [
        Segment("ms of step".ljust(LABEL_WIDTH + 1), brush.ground),
        Segment(line[:column], brush.muted),
        Segment(digit or mark, brush.ground + Style(bold=True, reverse=bool(digit))),
        Segment(line[column + 1 :], brush.muted),
    ]


def draw_lane(
    lane: TimelineLane, view: View, width: int, brush: Brush, *, selection: tuple[bool, bool] = (False, False)
) -> list[Segment]:
    """Draw a lane. ``selection``: the cursor is in this lane, and the widget has the focus."""
    is_selected, has_focus = selection
    label = shorten(printable(lane.label), LABEL_WIDTH)
    label += " " * (LABEL_WIDTH - display_width(label))
    segments = [
        Segment(label, brush.ground + Style(reverse=is_selected and has_focus, bold=is_selected)),
        Segment(" ", brush.ground),
    ]
    cursor = view.column(width)
    for column, (text, role) in enumerate(_draw_columns(lane, view, width, brush)):
        style = brush.style_for(_find_paint(lane, role))
        segments.append(Segment(text, style + Style(reverse=True) if column == cursor else style))
    return list(Segment.simplify(segments))


def _draw_columns(
    lane: TimelineLane, view: View, width: int, brush: Brush
) -> list[tuple[str, LaneRole | None]]:
    if lane.is_named:
        return [(text, None) for text in write_names(lane, view, width, ascii_only=brush.ascii_only)]
    idle = TIMES["idle_ns"].shown(ascii_only=brush.ascii_only)
    # Glyph and role per column; ``idle`` is the glyph of an empty column in lanes that show idle.
    columns = compute_columns(lane, view.edges(width))
    glyphs: list[tuple[str, LaneRole | None]] = []
    for column, role_index in enumerate(columns.first.tolist()):
        if role_index == IDLE:
            glyphs.append((idle if lane.shows_idle else _BLANK, None))
        else:
            role, share = columns.roles[role_index], float(columns.shares[role_index, column])
            glyphs.append((pick_glyph(role, share, ascii_only=brush.ascii_only), role))
    return glyphs


def _find_paint(lane: TimelineLane, role: LaneRole | None) -> Paint | None:
    if role is None:
        return None if lane.is_named else TIMES["idle_ns"]
    return _HOST if role is LaneRole.HOST else TIMES[role.value]


_EIGHTHS = "▁▂▃▄▅▆▇█"
#: Glyphs per role: for less than half a column, for more, then the same two in ASCII.
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
    """Return the glyph of a role: eighths of a block for compute, thin or full for the others."""
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

    If several events start in a column, the last one is used. An event that ends in the column where the next
    one starts has no end entry.
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
        # As many trailing dotted parts as fit, else the full name.
        parts = name.split(".")
        ends = (".".join(parts[first:]) for first in range(1, len(parts)))
        name = next((end for end in ends if end and display_width(end) <= cells), name)
        return shorten(name[::-1], cells)[::-1] if cells >= _MIN_NAME or display_width(name) <= cells else ""
    return shorten(name, cells) if cells >= _MIN_NAME or display_width(name) <= cells else ""


#: Columns that a tick needs: its number, and space before the next one.
_TICK_WIDTH = 11
_ROUND_STEPS = (1, 2, 5, 10)


def find_ticks(view: View, width: int) -> list[tuple[int, str]]:
    """Return column and label of each tick."""
    if width < 1:
        return []
    # The smallest round step of at least `min_ns`, and the decimals of a ms that it needs.
    min_ns = view.span_ns * _TICK_WIDTH / width
    power = max(0, math.floor(math.log10(max(1.0, min_ns))))
    step = next(s * 10**power for s in _ROUND_STEPS if s * 10**power >= min_ns or s == _ROUND_STEPS[-1])
    step, decimals = step, max(0, 6 - math.floor(math.log10(step)))
    ticks, time = [], -(-view.begin_ns // step) * step
    while time < view.end_ns:
        column = (time - view.begin_ns) * width // view.span_ns
        label = f"{time / 1e6:.{decimals}f}"
        if column + len(label) <= width:
            ticks.append((column, label))
        time += step
    return ticks


def format_ruler(view: View, width: int) -> str:
    """Return the ruler as one line; each label starts in the column of its time."""
    line = [" "] * width
    for column, label in find_ticks(view, width):
        line[column : column + len(label)] = label
    return "".join(line)
