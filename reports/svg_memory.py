"""Live memory over time as a picture (SVG): one stacked area a tenant, phases and steps below.

Of the rank with the largest peak among those whose timeline is in the report.  A point holds until the
next one.  Colours are told apart with every kind of colour vision; names in the legend stand in the order of
the areas, top to bottom.
"""

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from zprof.model.errors import MissingData
from zprof.model.formatting import format_bytes, format_ns, printable, shorten
from zprof.model.memory import MemoryTimeline
from zprof.model.report import Report
from zprof.reports.presenters.memory_figures import Areas, stack_areas, tenant_name

WIDTH, HEIGHT = 960, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 210, 46, 66
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_TICKS = 4
_LEAST_LABEL = 52
_COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "optimizer_state": "#009E73",
    "activations": "#CC79A7",
    "temporary_buffers": "#D55E00",
    "communication_buffers": "#56B4E9",
    "untagged": "#8C8C8C",
}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.m{fill:#666}.t{font-size:14px;font-weight:600}"
    ".g{stroke:#ccc}.s{stroke:#888;stroke-dasharray:3 3}.p{stroke:#222}"
    "@media(prefers-color-scheme:dark){rect.b{fill:#15181c}text{fill:#e6e6e6}.m{fill:#aaa}.g{stroke:#3a3f45}"
    ".p{stroke:#e6e6e6}}"
)


def render(report: Report) -> str:
    """Return the picture.

    Raises:
        MissingData: no memory timeline was recorded.
    """
    areas = stack_areas(report.memory)
    if areas is None:
        raise MissingData(f"{report.run.name}: no memory timeline to draw", hint="record the memory window")
    timeline = areas.timeline
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{_text(_title(report, timeline))}</title><style>{_STYLE}</style>",
            f'<rect class="b" width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            f'<text class="t" x="{_LEFT}" y="24">{_text(_title(report, timeline))}</text>',
            *_grid(areas),
            *_areas(areas),
            *_times(areas),
            *_peak(areas),
            *_legend(areas),
            "</svg>\n",
        ]
    )


def _title(report: Report, timeline: MemoryTimeline) -> str:
    return (
        f"{shorten(printable(report.run.name), 48)}: live memory of rank {timeline.rank}, {timeline.device}"
    )


def _grid(areas: Areas) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        y, value = _y(areas, areas.top_bytes * tick / _TICKS), areas.top_bytes * tick / _TICKS
        yield _line("g", (_LEFT, y), (_LEFT + _PLOT_WIDTH, y))
        yield _label("m", _LEFT - 8, y + 4, format_bytes(value), anchor="end")


def _areas(areas: Areas) -> Iterator[str]:
    for name, lower, upper in areas.bands:
        points = [*_edge(areas, upper), *reversed(_edge(areas, lower))]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polygon points="{path}" fill="{_COLOURS[name]}"/>'


def _edge(areas: Areas, heights: Sequence[int]) -> list[tuple[float, float]]:
    """Return the upper or lower edge of an area, level until the next point."""
    rim: list[tuple[float, float]] = []
    ends = [*areas.timeline.time_ns[1:], areas.end_ns]
    for begin, end, height in zip(areas.timeline.time_ns, ends, heights, strict=True):
        y = _y(areas, height)
        rim += [(_x(areas, begin), y), (_x(areas, end), y)]
    return rim


def _times(areas: Areas) -> Iterator[str]:
    bottom = _TOP + _PLOT_HEIGHT
    for begin_ns, step in areas.timeline.steps:
        x = _x(areas, begin_ns)
        yield _line("s", (x, _TOP), (x, bottom))
        yield _label("m", x + 3, _TOP - 6, f"step {step}")
    for x, width, phase in _phase_boxes(areas):
        yield _line("p", (x + 1, bottom + 8), (x + width - 1, bottom + 8))
        if width >= _LEAST_LABEL:
            yield _label("", x + 2, bottom + 24, phase)
    yield _label("m", _LEFT, bottom + 46, "0")
    yield _label("m", _LEFT + _PLOT_WIDTH, bottom + 46, format_ns(areas.end_ns), anchor="end")


def _phase_boxes(areas: Areas) -> Iterator[tuple[float, float, str]]:
    """Yield left edge, width and name of each phase; those too narrow to see are left out.

    A snapshot's timeline has none.
    """
    phases = areas.timeline.phases
    ends = [begin for begin, _ in phases[1:]] + [areas.end_ns] * bool(phases)
    for (begin_ns, phase), end_ns in zip(phases, ends, strict=True):
        x, end = _x(areas, begin_ns), _x(areas, end_ns)
        if end - x >= 3 and phase != "other":
            yield x, end - x, phase


def _peak(areas: Areas) -> Iterator[str]:
    x, y = _x(areas, areas.timeline.time_ns[areas.peak]), _y(areas, areas.peak_bytes)
    yield f'<circle class="p" cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none"/>'
    side = -1 if x > _LEFT + _PLOT_WIDTH / 2 else 1
    label = f"peak {format_bytes(areas.peak_bytes)}"
    yield _label("", x + 8 * side, y - 6, label, anchor="end" if side < 0 else "start")


def _legend(areas: Areas) -> Iterator[str]:
    x = _LEFT + _PLOT_WIDTH + 16
    yield _label("m", x, _TOP + 4, "at the peak")
    for row, (name, lower, upper) in enumerate(reversed(areas.bands)):
        y = _TOP + 22 + 34 * row
        size = format_bytes(upper[areas.peak] - lower[areas.peak])
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{_COLOURS[name]}"/>'
        yield _label("", x + 18, y, tenant_name(name))
        yield _label("m", x + 18, y + 15, size)


def _line(kind: str, begin: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = begin, end
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(kind: str, x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(text)}</text>'


def _x(areas: Areas, time_ns: int) -> float:
    return _LEFT + _PLOT_WIDTH * min(1.0, max(0.0, time_ns / max(1, areas.end_ns)))


def _y(areas: Areas, size: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - size / max(1, areas.top_bytes))


def _text(value: str) -> str:
    return escape(printable(value))
