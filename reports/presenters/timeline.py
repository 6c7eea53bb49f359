"""Live memory over time as stacked areas.  Of too many points, the highest of each stretch is kept."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from zprof.model.formatting import format_bytes, format_ns, shorten
from zprof.model.report import Report
from zprof.reports.page import AreaChart, AxisMark, Section, Series, make_section
from zprof.reports.presenters.memory_figures import (
    Areas,
    build_tenant_legend,
    get_tenant_class,
    stack_areas,
    tenant_name,
)

#: Values in all series of a chart at most.
MAX_POINTS = 5_000
_SIDE = 1_000
_TICKS = 4
#: Percent of the width that a word needs.
_MIN_PHASE, _MIN_STEP = 9.0, 6.0
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def build_timeline_section(report: Report) -> tuple[Section, ...]:
    """Return the timeline of the rank with the highest point; nothing if none was recorded."""
    lead = "Live bytes by tenant; a point is the highest of its stretch."
    return make_section("timeline", "Memory over time", lead, _area_chart(report))


def _area_chart(report: Report) -> AreaChart | None:
    areas = stack_areas(report.memory)
    if areas is None:
        return None
    line = areas.timeline
    kept = _thin(areas, MAX_POINTS // len(areas.bands))
    size, unit = next(entry for entry in _UNITS if areas.peak_bytes >= entry[0] or entry[0] == 1)
    return AreaChart(
        title=f"Live memory of rank {line.rank}, {line.device}",
        caption=_caption(areas, len(kept), len(report.memory.timelines)),
        time_ms=tuple(round(line.time_ns[place] / 1e6, 6) for place in kept),
        unit=unit,
        series=tuple(
            Series(
                colour=get_tenant_class(name),
                name=tenant_name(name),
                values=tuple(round((upper[place] - lower[place]) / size, 4) for place in kept),
                outline=_outline(areas, upper, kept),
            )
            for name, lower, upper in areas.bands
        ),
        heights=tuple(
            AxisMark(at=round(100 - 100 * part / areas.top_bytes, 2), text=format_bytes(part))
            for part in (areas.top_bytes * tick / _TICKS for tick in range(_TICKS + 1))
        ),
        steps=tuple(_step_marks(areas)),
        phases=tuple(_phase_marks(areas)),
        peak=AxisMark(
            at=_percent(areas, line.time_ns[areas.peak]), text=f"peak {format_bytes(areas.peak_bytes)}"
        ),
        end=format_ns(areas.end_ns),
        legend=tuple(reversed(build_tenant_legend())),
        steps_ms=tuple((start_ns / 1e6, f"step {step}") for start_ns, step in line.steps),
    )


def _caption(areas: Areas, kept: int, timelines: int) -> str:
    known, series = len(areas.timeline.time_ns), len(areas.bands)
    points = f"{kept * series:,} of {known * series:,} recorded points, the highest of each stretch"
    said = points if kept < known else f"all {known * series:,} recorded points"
    one = "that of one rank" if timelines == 2 else f"those of {timelines - 1} ranks"
    return f"{said}; {one} more: zprof report RUN -f json" if timelines > 1 else said


def _thin(areas: Areas, most: int) -> list[int]:
    """Return the places of the points that are kept: the first, and the highest of each stretch."""
    heights = areas.bands[-1][2]
    count = len(heights)
    if count <= most:
        return list(range(count))
    edges = [count * part // (most - 1) for part in range(most)]
    highest = (max(range(start, end), key=heights.__getitem__) for start, end in pairwise(edges))
    return sorted({0, *highest})


def _outline(areas: Areas, upper: Sequence[int], kept: Sequence[int]) -> str:
    """Return the upper edge of an area and down to the ground: areas above are painted first."""
    times = areas.timeline.time_ns
    parts = [f"M{_x(areas, times[kept[0]])} {_SIDE}V{_y(areas, upper[kept[0]])}"]
    last = upper[kept[0]]
    for place in kept[1:]:
        if upper[place] != last:
            last = upper[place]
            parts.append(f"H{_x(areas, times[place])}V{_y(areas, last)}")
    return "".join([*parts, f"H{_SIDE}V{_SIDE}Z"])


def _x(areas: Areas, time_ns: int) -> str:
    return f"{10 * _percent(areas, time_ns):.1f}"


def _y(areas: Areas, size: float) -> str:
    return f"{_SIDE * (1 - size / max(1, areas.top_bytes)):.1f}"


def _percent(areas: Areas, time_ns: int) -> float:
    return round(100 * min(1.0, max(0.0, time_ns / max(1, areas.end_ns))), 2)


def _step_marks(areas: Areas) -> Iterator[AxisMark]:
    """Return where steps start; only as many are named as there is room for."""
    free = 0.0
    for start_ns, step in areas.timeline.steps:
        at = _percent(areas, start_ns)
        is_named = free <= at <= 100 - _MIN_STEP
        free = at + _MIN_STEP if is_named else free
        yield AxisMark(at=at, text=f"step {step}" if is_named else "")


def _phase_marks(areas: Areas) -> Iterator[AxisMark]:
    """Return the stretches of phases that can be seen, with their names if there is room."""
    phases = areas.timeline.phases
    ends = [start for start, _ in phases[1:]] + [areas.end_ns] * bool(phases)
    for (start_ns, phase), end_ns in zip(phases, ends, strict=True):
        start, end = _percent(areas, start_ns), _percent(areas, end_ns)
        if end - start >= 0.3 and phase != "other":
            text = shorten(phase, 24) if end - start >= _MIN_PHASE else ""
            yield AxisMark(at=start, text=text, width=round(end - start, 2))
