"""Live memory over time as lines of text: a headline, the stacked plot, phases and steps."""

from collections.abc import Sequence

from rich.text import Text

from zprof.model.printable import printable, shorten
from zprof.reports.presenters.memory_figures import tenant_name
from zprof.tui.pages.memory_timeline import ORDER, Curve, column_of, decimated, marks, moment_at, tower
from zprof.tui.theme.palette import TENANTS
from zprof.tui.widgets.stacked_paint import Pen

NO_TIMELINE = "live bytes over time: the report has no timeline of this rank; zprof record measures it"
_LEAST_COLUMNS = 10
#: Rows of the plot from which steps have a row of their own.
_TALL = 5


def trend_lines(curve: Curve, point: int, rows: int, width: int, pen: Pen) -> list[Text]:
    """All lines; ``point`` is what the headline tells of, and ``rows`` how high the plot is."""
    chosen = chosen_points(curve, width)
    steps = [(time, f"step {step}") for time, step in curve.timeline.steps]
    phases = [(time, printable(name)) for time, name in curve.timeline.phases]
    named = [phases or steps] if rows < _TALL or not steps else [phases, steps]
    axes = [_axis(curve, names, len(chosen), pen) for names in named if names] or [Text(" " * width, end="")]
    if pen.focused:
        axes[0] = _with_cursor(curve, axes[0], chosen, point, pen)
    return [_headline(curve, point, width, pen), *_plot(curve, chosen, rows, pen), *axes]


def gutter(curve: Curve) -> int:
    """Columns left of the plot."""
    return len(curve.total(curve.peak).text) + 2


def chosen_points(curve: Curve, width: int) -> list[int]:
    """The point that each column of the plot shows."""
    columns = max(_LEAST_COLUMNS, width - gutter(curve))
    return decimated(curve.timeline.time_ns, curve.end_ns, curve.heights, columns)


def most_of(curve: Curve, point: int) -> str:
    """Who has most of a point that is not the peak: of that one the bars tell."""
    tenants = curve.timeline.tenants
    return "" if point == curve.peak else max(tenants, key=lambda name: tenants[name][point])


def _headline(curve: Curve, point: int, width: int, pen: Pen) -> Text:
    whose = f"rank {curve.timeline.rank}"
    if curve.instead_of is not None:
        whose += f" (none is kept of rank {curve.instead_of})"
    what = f"{'peak ' if point == curve.peak else ''}{curve.total(point).text}"
    parts = [f" live bytes, {whose}: {what} at {curve.time(point).text}", printable(moment_at(curve, point))]
    if most := most_of(curve, point):
        parts.append(f"{tenant_name(most)} {curve.tenant(most, point).text}")
    text = shorten(" · ".join(part for part in parts if part), width - 1)
    return pen.head().append(text, style=pen.head_style)


def _plot(curve: Curve, chosen: Sequence[int], rows: int, pen: Pen) -> list[Text]:
    tenants, top = curve.timeline.tenants, curve.heights[curve.peak]
    names = [name for name in ORDER if name in tenants]
    towers = {
        point: tower([(name, tenants[name][point]) for name in names], top, rows) for point in set(chosen)
    }
    peak = chosen.index(curve.peak) if curve.peak in chosen else -1
    lines = []
    for row in range(rows - 1, -1, -1):
        text = Text(_label(curve, row, rows, pen), no_wrap=True, end="")
        for column, point in enumerate(chosen):
            if row == rows - 1 and column == peak:
                text.append(pen.pick("▼", "v"), style="bold")
            else:
                _append(text, towers[point][row], pen)
        lines.append(text)
    return lines


def _append(text: Text, name: str, pen: Pen) -> None:
    paint = TENANTS.get(name)
    text.append(
        paint.shown(ascii_only=pen.ascii_only) if paint else " ", paint.colour(pen.look) if paint else ""
    )


def _label(curve: Curve, row: int, rows: int, pen: Pen) -> str:
    said = curve.total(curve.peak).text if row == rows - 1 else "0" if row == 0 else ""
    return f"{said:>{gutter(curve) - 1}}{pen.pick('│', '|')}"


def _axis(curve: Curve, named: Sequence[tuple[int, str]], columns: int, pen: Pen) -> Text:
    line = [" "] * columns
    for begin, end, name in marks(named, curve, columns):
        said = (pen.pick("╵", "'") + name)[: end - begin]
        line[begin : begin + len(said)] = said
    return Text(" " * gutter(curve) + "".join(line), no_wrap=True, end="")


def _with_cursor(curve: Curve, axis: Text, chosen: Sequence[int], point: int, pen: Pen) -> Text:
    """The axis with a mark below the point's column."""
    times = curve.timeline.time_ns
    there = [column for column, shown in enumerate(chosen) if shown == point]
    column = there[0] if there else column_of(times[point], times[0], curve.end_ns, len(chosen))
    at = gutter(curve) + column
    return Text(axis.plain[:at] + pen.pick("▲", "^") + axis.plain[at + 1 :], no_wrap=True, end="")
