"""Build the chart of live memory over time; of too many points, the maximum of each interval is kept."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from zprof.model.formatting import format_bytes, format_ns, shorten
from zprof.model.report import Report
from zprof.reports.page import AreaChart, AxisMark, Section, Series, make_section
from zprof.reports.presenters.memory_formatting import (
    Areas,
    build_tenant_legend,
    get_tenant_class,
    stack_areas,
    tenant_name,
)

#: Maximum number of values over all series of a chart.
MAX_POINTS = 5_000
_VIEWBOX_SIZE = 1_000
_TICKS = 4
#: Minimum width of a label, in percent of the chart.
_MIN_PHASE, _MIN_STEP = 9.0, 6.0
_MAX_PHASE = 24
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def build_timeline_section(report: Report) -> tuple[Section, ...]:
    """Build the timeline of the rank with the highest peak; empty if no timeline was recorded."""
    lead = "Live bytes by tenant; each point is the maximum of its interval."
    return make_section("timeline", "Memory over time", lead, _build_area_chart(report))


def _build_area_chart(report: Report) -> AreaChart | None:
    areas = stack_areas(report.memory)
    if areas is None:
        return None
    timeline = areas.timeline
    indices = _downsample(areas, MAX_POINTS // len(areas.bands))
    size, unit = next(entry for entry in _UNITS if areas.peak_bytes >= entry[0] or entry[0] == 1)
    return AreaChart(
        title=f"Live memory of rank {timeline.rank}, {timeline.device}",
        caption=_format_caption(areas, len(indices), len(report.memory.timelines), unit),
        time_ms=tuple(_to_ms(timeline.time_ns[index]) for index in indices),
        unit=unit,
        series=tuple(
            Series(
                colour=get_tenant_class(name),
                name=tenant_name(name),
                values=tuple(round((upper[index] - lower[index]) / size, 4) for index in indices),
                outline=_build_outline(areas, upper, indices),
            )
            for name, lower, upper in areas.bands
        ),
        heights=tuple(
            AxisMark(at=round(100 - 100 * part / areas.top_bytes, 2), text=format_bytes(part))
            for part in (areas.top_bytes * tick / _TICKS for tick in range(_TICKS + 1))
        ),
        steps=tuple(_list_step_marks(areas)),
        phases=tuple(_list_phase_marks(areas)),
        peak=AxisMark(
            at=_scale_to_percent(areas, timeline.time_ns[areas.peak]),
            text=f"peak {format_bytes(areas.peak_bytes)}",
        ),
        end=format_ns(areas.end_ns),
        legend=tuple(reversed(build_tenant_legend())),
        end_ms=_to_ms(areas.end_ns),
        peak_ms=_to_ms(timeline.time_ns[areas.peak]),
        steps_ms=tuple((_to_ms(start_ns), f"step {step}") for start_ns, step in timeline.steps),
        phases_ms=tuple(
            (_to_ms(start_ns), _to_ms(end_ns), shorten(phase, _MAX_PHASE))
            for start_ns, end_ns, phase in _list_phases(areas)
        ),
    )


def _format_caption(areas: Areas, kept: int, timelines: int, unit: str) -> str:
    total = len(areas.timeline.time_ns)
    points = f"{kept:,} of {total:,} recorded times, each with the maximum of its interval"
    text = f"Sizes in {unit}, times in ms; {points if kept < total else f'all {total:,} recorded times'}"
    others = "one other rank" if timelines == 2 else f"{timelines - 1} other ranks"
    return f"{text}; timelines of {others}: zprof report RUN -f json" if timelines > 1 else text


def _downsample(areas: Areas, max_points: int) -> list[int]:
    """Return the indices of the points to keep: the first, and the maximum of each interval."""
    heights = areas.bands[-1][2]
    count = len(heights)
    if count <= max_points:
        return list(range(count))
    edges = [count * part // (max_points - 1) for part in range(max_points)]
    highest = (max(range(start, end), key=heights.__getitem__) for start, end in pairwise(edges))
    return sorted({0, *highest})


def _build_outline(areas: Areas, upper: Sequence[int], indices: Sequence[int]) -> str:
    """Return the SVG path of an area down to the baseline; upper areas are drawn first."""
    times = areas.timeline.time_ns
    parts = [f"M{_scale_x(areas, times[indices[0]])} {_VIEWBOX_SIZE}V{_scale_y(areas, upper[indices[0]])}"]
    last = upper[indices[0]]
    for index in indices[1:]:
        if upper[index] != last:
            last = upper[index]
            parts.append(f"H{_scale_x(areas, times[index])}V{_scale_y(areas, last)}")
    return "".join([*parts, f"H{_VIEWBOX_SIZE}V{_VIEWBOX_SIZE}Z"])


def _scale_x(areas: Areas, time_ns: int) -> str:
    return f"{10 * _scale_to_percent(areas, time_ns):.1f}"


def _scale_y(areas: Areas, size: float) -> str:
    return f"{_VIEWBOX_SIZE * (1 - size / max(1, areas.top_bytes)):.1f}"


def _scale_to_percent(areas: Areas, time_ns: int) -> float:
    return round(100 * min(1.0, max(0.0, time_ns / max(1, areas.end_ns))), 2)


def _list_step_marks(areas: Areas) -> Iterator[AxisMark]:
    """Yield a mark at each step start; labels that would overlap are dropped."""
    next_free = 0.0
    for start_ns, step in areas.timeline.steps:
        at = _scale_to_percent(areas, start_ns)
        is_named = next_free <= at <= 100 - _MIN_STEP
        next_free = at + _MIN_STEP if is_named else next_free
        yield AxisMark(at=at, text=f"step {step}" if is_named else "")


def _list_phase_marks(areas: Areas) -> Iterator[AxisMark]:
    """Yield the phases that are wide enough to see, with a label if it fits."""
    for start_ns, end_ns, phase in _list_phases(areas):
        start, end = _scale_to_percent(areas, start_ns), _scale_to_percent(areas, end_ns)
        if end - start >= 0.3:
            text = shorten(phase, _MAX_PHASE) if end - start >= _MIN_PHASE else ""
            yield AxisMark(at=start, text=text, width=round(end - start, 2))


def _list_phases(areas: Areas) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and name of the named phases; the timeline of a snapshot has none."""
    phases = areas.timeline.phases
    ends = [start for start, _ in phases[1:]] + [areas.end_ns] * bool(phases)
    for (start_ns, phase), end_ns in zip(phases, ends, strict=True):
        if phase != "other":
            yield start_ns, end_ns, phase


def _to_ms(time_ns: float) -> float:
    return round(time_ns / 1e6, 6)
