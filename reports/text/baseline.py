"""A baseline as plain text in 80 columns, and what a new one changes in an old one."""

from collections.abc import Callable, Mapping, Sequence

from zprof.model.printable import display_width, printable, shorten
from zprof.model.side_by_side import Figure, Row
from zprof.model.units import format_bytes, format_ns, format_percent
from zprof.reports.text.layout import INDENT, heading, wrap

_NAME, _CELL = 44, 11
_NONE = "-"
_SHOW: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "ns": format_ns,
    "ratio": format_percent,
    "count": lambda count: f"{count:g}",
}


def render_baseline(name: str, rows: Sequence[Row]) -> str:
    """Each figure that the baseline has, of the rows' second side."""
    lines = [heading(f"BASELINE {shorten(printable(name), 60)}")]
    for row in rows:
        if row.b is not None:
            lines += wrap(_figure(row.b, row.unit), first=f"{_name(row.name)}  ")
    return "\n".join(lines) + "\n"


def render_changes(rows: Sequence[Row]) -> str:
    """The figures that change: before, after, and by how much."""
    if not rows:
        return "nothing changes\n"
    lines = [heading("WHAT CHANGES"), _columns("", ("before", "after", "change"))]
    for row in rows:
        before, after = _figure(row.a, row.unit), _figure(row.b, row.unit)
        if row.unit == "text":
            lines += wrap(f"{before} -> {after}", first=f"{_name(row.name)}  ")
        else:
            lines.append(_columns(row.name, (before, after, _change(row))))
    return "\n".join(lines) + "\n"


def _figure(value: Figure, unit: str) -> str:
    if value is None:
        return _NONE
    return printable(value) if isinstance(value, str) else _SHOW[unit](value)


def _change(row: Row) -> str:
    if not isinstance(row.a, int | float) or not isinstance(row.b, int | float):
        return _NONE
    if row.unit == "ratio":
        return f"{(row.b - row.a) * 100:+.1f} pt"
    return f"{(row.b / row.a - 1) * 100:+.1f} %" if row.a else _NONE


def _columns(name: str, cells: Sequence[str]) -> str:
    return _name(name) + "".join(" " * max(1, _CELL - display_width(cell)) + cell for cell in cells)


def _name(name: str) -> str:
    shown = shorten(printable(name), _NAME)
    return INDENT + shown + " " * (_NAME - display_width(shown))
