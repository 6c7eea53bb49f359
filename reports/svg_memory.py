"""Draw live memory over time as SVG: one stacked area per tenant, with phases and steps below.

The rank is the one with the largest peak among ranks with a timeline in the report. A value lasts until the
next point.  The palette is safe for colour-blind readers; the legend lists the areas from top to bottom.
"""

from collections.abc import Iterator, Sequence

from zprof.base.errors import MissingData
from zprof.base.formatting import format_bytes, format_ns, printable, shorten
from zprof.model.report import Report
from zprof.reports.pages.memory_timeline import Curve, find_highest_curve
from zprof.reports.pages.tenants import tenant_name
from zprof.reports.svg_charts import draw_label, draw_line, write_svg

WIDTH, HEIGHT = 960, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 210, 46, 66
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_TICKS = 4
#: Minimum widths, in pixels, to draw a phase and to label it.
_MIN_PHASE_WIDTH, _MIN_LABEL_WIDTH = 3, 52
_COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "optimizer_state": "#009E73",
    "activations": "#CC79A7",
    "temporary_buffers": "#D55E00",
    "communication_buffers": "#56B4E9",
    "untagged": "#8C8C8C",
}


def render(report: Report) -> str:
    """Return the SVG document.

    Raises:
        MissingData: no memory timeline was recorded.
    """
    curve = find_highest_curve(report)
    if curve is None:
        raise MissingData(f"{report.run.name}: no memory timeline to draw", hint="record the memory window")
    timeline = curve.timeline
    parts = (
        *_draw_grid(curve),
        *_draw_areas(curve),
        *_draw_times(curve),
        *_draw_peak(curve),
        *_draw_legend(curve),
    )
    return write_svg(
        f"{shorten(printable(report.run.name), 48)}: live memory of rank {timeline.rank}, {timeline.device}",
        WIDTH,
        HEIGHT,
        parts,
        left=_LEFT,
    )


def _draw_grid(curve: Curve) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        y, value = _y(curve, curve.top_bytes * tick / _TICKS), curve.top_bytes * tick / _TICKS
        yield draw_line("g", (_LEFT, y), (_LEFT + _PLOT_WIDTH, y))
        yield draw_label("m", _LEFT - 8, y + 4, format_bytes(value), anchor="end")


def _draw_areas(curve: Curve) -> Iterator[str]:
    for name, lower, upper in curve.bands:
        points = [*_trace_edge(curve, upper), *reversed(_trace_edge(curve, lower))]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polygon points="{path}" fill="{_COLOURS[name]}"/>'


def _trace_edge(curve: Curve, heights: Sequence[int]) -> list[tuple[float, float]]:
    """Return the upper or lower edge of an area as a step function."""
    points: list[tuple[float, float]] = []
    ends = [*curve.timeline.time_ns[1:], curve.end_ns]
    for start, end, height in zip(curve.timeline.time_ns, ends, heights, strict=True):
        y = _y(curve, height)
        points += [(_x(curve, start), y), (_x(curve, end), y)]
    return points


def _draw_times(curve: Curve) -> Iterator[str]:
    bottom = _TOP + _PLOT_HEIGHT
    for start_ns, step in curve.timeline.steps:
        x = _x(curve, start_ns)
        yield draw_line("s", (x, _TOP), (x, bottom))
        yield draw_label("m", x + 3, _TOP - 6, f"step {step}")
    phases = curve.timeline.phases  # none in the timeline of a snapshot
    ends = [start for start, _ in phases[1:]] + [curve.end_ns] * bool(phases)
    for (start_ns, phase), end_ns in zip(phases, ends, strict=True):
        x, end = _x(curve, start_ns), _x(curve, end_ns)
        if end - x < _MIN_PHASE_WIDTH or phase == "other":
            continue
        yield draw_line("p", (x + 1, bottom + 8), (end - 1, bottom + 8))
        if end - x >= _MIN_LABEL_WIDTH:
            yield draw_label("", x + 2, bottom + 24, phase)
    yield draw_label("m", _LEFT, bottom + 46, "0")
    yield draw_label("m", _LEFT + _PLOT_WIDTH, bottom + 46, format_ns(curve.end_ns), anchor="end")


def _draw_peak(curve: Curve) -> Iterator[str]:
    x, y = _x(curve, curve.timeline.time_ns[curve.peak]), _y(curve, curve.heights[curve.peak])
    yield f'<circle class="p" cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none"/>'
    side = -1 if x > _LEFT + _PLOT_WIDTH / 2 else 1
    label = f"peak {format_bytes(curve.heights[curve.peak])}"
    yield draw_label("", x + 8 * side, y - 6, label, anchor="end" if side < 0 else "start")


def _draw_legend(curve: Curve) -> Iterator[str]:
    x = _LEFT + _PLOT_WIDTH + 16
    yield draw_label("m", x, _TOP + 4, "at the peak")
    for row, (name, lower, upper) in enumerate(reversed(curve.bands)):
        y = _TOP + 22 + 34 * row
        size = format_bytes(upper[curve.peak] - lower[curve.peak])
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{_COLOURS[name]}"/>'
        yield draw_label("", x + 18, y, tenant_name(name))
        yield draw_label("m", x + 18, y + 15, size)


def _x(curve: Curve, time_ns: int) -> float:
    return _LEFT + _PLOT_WIDTH * min(1.0, max(0.0, time_ns / max(1, curve.end_ns)))


def _y(curve: Curve, size: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - size / max(1, curve.top_bytes))
