"""The cells of a lane: which glyph stands in each column, and for which role."""

from collections.abc import Mapping

import numpy as np

from zprof.model.printable import display_width, printable, shorten
from zprof.tui.timeline.cover import Role
from zprof.tui.timeline.lane import IDLE, Columns, Lane, LaneKind
from zprof.tui.timeline.view import View

_EIGHTHS = "▁▂▃▄▅▆▇█"
#: By role: where it holds less than half of a column, and more; the same in ASCII.
GLYPHS: Mapping[Role, tuple[str, str, str, str]] = {
    Role.COMPUTE: ("▄", "█", "+", "#"),
    Role.TRANSFER: ("╸", "━", "=", "="),
    Role.WAIT: ("▒", "▒", "w", "w"),
    Role.HIDDEN: ("╌", "╌", "-", "-"),
    Role.MEMCPY: ("▗", "▄", "m", "m"),
    Role.UNEXPLAINED: ("?", "?", "?", "?"),
    Role.HOST: ("◦", "•", "h", "H"),
}
_NOTHING = " "
#: In fewer cells than these behind its bar a name tells nothing.
_LEAST_NAME = 3


def glyph(role: Role, share: float, *, ascii_only: bool) -> str:
    """Compute fills a cell by eighths, the others have a thin and a full glyph."""
    thin, full, thin_letter, letter = GLYPHS[role]
    if ascii_only:
        return letter if share >= 0.5 else thin_letter
    if role is Role.COMPUTE:
        return _EIGHTHS[min(7, max(0, int(np.ceil(share * 8)) - 1))]
    return full if share >= 0.5 else thin


def cells(lane: Lane, columns: Columns, idle: str, *, ascii_only: bool) -> list[tuple[str, Role | None]]:
    """A glyph a column; ``idle`` where nothing ran in a lane that shows so."""
    found: list[tuple[str, Role | None]] = []
    for column, place in enumerate(columns.first.tolist()):
        if place == IDLE:
            found.append((idle if lane.shows_idle else _NOTHING, None))
        else:
            role, share = columns.roles[place], float(columns.shares[place, column])
            found.append((glyph(role, share, ascii_only=ascii_only), role))
    return found


def written(lane: Lane, view: View, width: int, *, ascii_only: bool) -> list[str]:
    """Names from where each begins, as far as there is room until the next; a list of single cells."""
    bar = "|" if ascii_only else "▏"
    line = [_NOTHING] * width
    begins = _begins(lane, view, width)
    for place, (column, name) in enumerate(begins):
        following = begins[place + 1][0] if place + 1 < len(begins) else width
        if name:
            line[column:following] = _fitted(bar, printable(name), following - column, lane.kind)
    return line


def _begins(lane: Lane, view: View, width: int) -> list[tuple[int, str]]:
    """Column and name of each begin that is seen, the last one of a column; "" where a name ends.

    A name that ends within the column in which the next begins has no end of its own.
    """
    items = lane.items
    found: dict[int, str] = {}
    places = items.touching(view.begin_ns, view.end_ns)
    columns = np.clip((items.start_ns[places] - view.begin_ns) * width // view.span_ns, 0, width - 1)
    ends = -(-(items.end_ns[places] - view.begin_ns) * width // view.span_ns)
    begun, last = np.unique(columns[::-1], return_index=True)  # at most one a column: its name is looked up
    for place in (len(places) - 1 - last).tolist():
        found[int(columns[place])] = lane.names[int(items.row[places[place]])]
    for place in (len(places) - 1 - last).tolist():
        column, end = int(columns[place]), int(ends[place])
        if end < width and not ((begun > column) & (begun < end)).any():
            found.setdefault(end, "")
    return sorted(found.items())


def _fitted(bar: str, name: str, room: int, kind: LaneKind) -> list[str]:
    """Exactly ``room`` strings that fill as many cells: a wide character stands in the first of its two."""
    found = [bar]
    for character in _cut(name, room - 1, kind):
        wide = display_width(character)
        if wide == 0:
            found[-1] += character
        else:
            found += [character, *[""] * (wide - 1)]
    return [*found, *[_NOTHING] * (room - len(found))]


def _cut(name: str, room: int, kind: LaneKind) -> str:
    """Units differ in their ends (``17`` of ``layers.17``), phases in their begins."""
    if kind is LaneKind.UNITS and display_width(name) > room:
        name = _end_of(name, room)
        return shorten(name[::-1], room)[::-1] if room >= _LEAST_NAME or display_width(name) <= room else ""
    return shorten(name, room) if room >= _LEAST_NAME or display_width(name) <= room else ""


def _end_of(name: str, room: int) -> str:
    """As many of the last parts between dots as there is room for, else all of it."""
    parts = name.split(".")
    ends = (".".join(parts[first:]) for first in range(1, len(parts)))
    return next((end for end in ends if end and display_width(end) <= room), name)
