"""Charts of plans as blocks of a page: places of lines, points and marks in percent of the drawing."""

from math import log2

from zprof.reports.html import words
from zprof.reports.html.blocks import AxisMark, LegendEntry, LineChart, LineShape, LineSpot
from zprof.reports.plan.grid import Chart, ChartAxis, ChartLine

#: Room left and right of what is drawn, so that marks at the rim are whole.
_MARGIN = 6.0
#: Style classes of the lines of a chart, by their order.
KINDS = ("series-a", "series-b", "series-c", "series-d")


def line_chart(chart: Chart) -> LineChart:
    """Of at most four lines: more cannot be told apart."""
    lines = chart.lines[: len(KINDS)]
    return LineChart(
        title=words.sentence(chart.title),
        lines=tuple(_line(chart, line, kind) for line, kind in zip(lines, KINDS, strict=False)),
        heights=tuple(AxisMark(at=_up(chart.y, at), text=text) for at, text in chart.y.marks),
        marks=tuple(
            AxisMark(at=_along(chart.x, at), text=words.name(text, 24)) for at, text in chart.x.marks
        ),
        x_title=words.sentence(chart.x.title),
        y_title=words.sentence(chart.y.title),
        legend=tuple(
            LegendEntry(kind=kind, letter=str(number), name=words.name(line.name))
            for number, (line, kind) in enumerate(zip(lines, KINDS, strict=False), start=1)
        ),
    )


def _line(chart: Chart, line: ChartLine, kind: str) -> LineShape:
    return LineShape(
        kind=kind,
        spots=tuple(
            LineSpot(x=_along(chart.x, point.x), y=_up(chart.y, point.y), text=words.sentence(point.text))
            for point in line.points
        ),
    )


def _along(axis: ChartAxis, value: float) -> float:
    low, high, place = axis.low, axis.high, value
    if axis.logarithmic:
        low, high, place = log2(low), log2(high), log2(value)
    share = (place - low) / (high - low) if high > low else 0.5
    return round(_MARGIN + (100 - 2 * _MARGIN) * min(1.0, max(0.0, share)), 2)


def _up(axis: ChartAxis, value: float) -> float:
    """From the top."""
    return round(100 - _along(axis, value), 2)
