"""Build live memory over time: the curve of a rank, and its chart.

With too many points, the maximum of each interval is kept, so no peak is lost.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from msgspec import Struct

from zprof.base.formatting import format_bytes, format_ns, shorten
from zprof.model.memory import Memory, MemoryTimeline
from zprof.model.metrics import METRICS
from zprof.model.quantities import Aggregation, Path, Unit, Value
from zprof.model.report import Report
from zprof.reports.page import AreaChart, AxisMark, Section, Series, make_section
from zprof.reports.pages.tenants import (
    ORDER,
    build_tenant_legend,
    get_tenant_class,
    largest_rank,
    tenant_name,
)
from zprof.reports.table import Column, Kind, Row, Table

#: Maximum number of values over all series of a chart.
MAX_POINTS = 5_000
_VIEWBOX_SIZE = 1_000
_TICKS = 4
#: Minimum width of a label, in percent of the chart.
_MIN_PHASE, _MIN_STEP = 9.0, 6.0
_MAX_PHASE = 24
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
#: Chart height relative to the highest point.
_HEIGHT_RATIO = 1.08


class Curve(Struct, frozen=True, kw_only=True, dict=True):
    """A timeline and its index in the report; ``instead_of``: the selected rank, if it has no timeline."""

    timeline: MemoryTimeline
    index: int
    instead_of: int | None = None

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """Return the live bytes at each point: all tenants plus untagged."""
        return tuple(sum(values) for values in zip(*self.timeline.tenants.values(), strict=True))

    @cached_property
    def peak(self) -> int:
        """Return the index of the first highest point."""
        return self.heights.index(max(self.heights))

    @property
    def end_ns(self) -> int:
        """Return the end of the last point, assuming the mean duration of the others."""
        times = self.timeline.time_ns
        return times[-1] + max(1, (times[-1] - times[0]) // max(1, len(times) - 1))

    @property
    def top_bytes(self) -> float:
        """Return the upper end of the chart axis."""
        return self.heights[self.peak] * _HEIGHT_RATIO

    @cached_property
    def bands(self) -> tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]:
        """Return each tenant's name and the lower and upper edge of its area in bytes, bottom first."""
        lower = (0,) * len(self.heights)
        bands = []
        for name in ORDER:
            values = self.timeline.tenants.get(name, (0,) * len(lower))
            upper = tuple(below + value for below, value in zip(lower, values, strict=True))
            bands.append((name, lower, upper))
            lower = upper
        return tuple(bands)

    def total(self, point: int) -> Value:
        """Return the live bytes at a point, as the sum of its leaves."""
        leaves = tuple(self._make_path("tenants", name, point) for name in self.timeline.tenants)
        return Value(number=self.heights[point], unit=Unit.BYTES, leaves=leaves, how=Aggregation.SUM)

    def tenant(self, name: str, point: int) -> Value:
        """Return the bytes of a tenant at a point."""
        leaf = self._make_path("tenants", name, point)
        return Value(number=self.timeline.tenants[name][point], unit=Unit.BYTES, leaves=(leaf,))

    def time(self, point: int) -> Value:
        """Return the time of a point since the start of the window."""
        leaf = self._make_path("time_ns", point)
        return Value(number=self.timeline.time_ns[point], unit=Unit.NS, leaves=(leaf,))

    def _make_path(self, *parts: str | int) -> Path:
        return Path(("memory", "timelines", self.index, *parts))


def find_curve(report: Report, rank: int) -> Curve | None:
    """Return the timeline of the rank, else of the rank with the largest peak, else None."""
    memory = report.memory
    index = _find_timeline(memory, rank)
    if index is not None:
        return Curve(timeline=memory.timelines[index], index=index)
    largest = largest_rank(memory.per_rank)
    other = _find_timeline(memory, largest.rank) if largest else None
    return None if other is None else Curve(timeline=memory.timelines[other], index=other, instead_of=rank)


def _find_timeline(memory: Memory, rank: int) -> int | None:
    timelines = enumerate(memory.timelines)
    return next((index for index, entry in timelines if entry.rank == rank and entry.time_ns), None)


def find_highest_curve(report: Report) -> Curve | None:
    """Return the timeline with the highest peak; None if no timeline was recorded."""
    curves = (
        Curve(timeline=timeline, index=index)
        for index, timeline in enumerate(report.memory.timelines)
        if timeline.time_ns and timeline.tenants
    )
    return max(curves, key=lambda curve: curve.heights[curve.peak], default=None)


def format_moment_at(curve: Curve, point: int) -> str:
    """Format the moment of a point as ``step 4 backward``, omitting unknown parts."""
    timeline, time_ns = curve.timeline, curve.timeline.time_ns[point]
    step = _find_name_at(timeline.steps, time_ns)
    parts = (f"step {step}" if step else "", _find_name_at(timeline.phases, time_ns))
    return " ".join(part for part in parts if part)


def _find_name_at(named: Sequence[tuple[int, object]], time_ns: int) -> str:
    """Return the phase or step at a time; empty before the first."""
    names = [str(name) for start, name in named if start <= time_ns]
    return names[-1] if names else ""


def build_point_table(curve: Curve, point: int) -> Table:
    """Build a table with a single row for one point of the timeline."""
    rank, names = curve.timeline.rank, [name for name in ORDER if name in curve.timeline.tenants]
    title = f"live bytes over time, rank {rank}"
    return Table(
        name="point",
        title=title,
        columns=(
            Column(title="point", kind=Kind.TEXT),
            Column(title="live", unit="bytes"),
            Column(title=METRICS["memory.timelines[].time_ns[]"].title),
            *(Column(title=tenant_name(name), unit="bytes") for name in names),
        ),
        rows=(
            Row(
                key=str(point),
                cells=(
                    f"live bytes, rank {rank} {format_moment_at(curve, point)}",
                    curve.total(point),
                    curve.time(point),
                    *(curve.tenant(name, point) for name in names),
                ),
            ),
        ),
        help=(
            "Live bytes over the recorded window, stacked by tenant. Each column shows its highest point, so "
            "no peak is lost. Press left and right to select a point, and enter to explain its bytes."
        ),
    )


def build_timeline_section(report: Report) -> tuple[Section, ...]:
    """Build the timeline of the rank with the highest peak; empty if no timeline was recorded."""
    lead = "Live bytes by tenant; each point is the maximum of its interval."
    return make_section("timeline", "Memory over time", lead, _build_area_chart(report))


def _build_area_chart(report: Report) -> AreaChart | None:
    curve = find_highest_curve(report)
    if curve is None:
        return None
    timeline, peak_bytes = curve.timeline, curve.heights[curve.peak]
    indices = _downsample(curve, MAX_POINTS // len(curve.bands))
    size, unit = next(entry for entry in _UNITS if peak_bytes >= entry[0] or entry[0] == 1)
    return AreaChart(
        title=f"Live memory of rank {timeline.rank}, {timeline.device}",
        caption=_format_caption(curve, len(indices), len(report.memory.timelines), unit),
        time_ms=tuple(_to_ms(timeline.time_ns[index]) for index in indices),
        unit=unit,
        series=tuple(
            Series(
                colour=get_tenant_class(name),
                name=tenant_name(name),
                values=tuple(round((upper[index] - lower[index]) / size, 4) for index in indices),
                outline=_build_outline(curve, upper, indices),
            )
            for name, lower, upper in curve.bands
        ),
        heights=tuple(
            AxisMark(at=round(100 - 100 * part / curve.top_bytes, 2), text=format_bytes(part))
            for part in (curve.top_bytes * tick / _TICKS for tick in range(_TICKS + 1))
        ),
        steps=tuple(_list_step_marks(curve)),
        phases=tuple(_list_phase_marks(curve)),
        peak=AxisMark(
            at=_scale_to_percent(curve, timeline.time_ns[curve.peak]),
            text=f"peak {format_bytes(peak_bytes)}",
        ),
        end=format_ns(curve.end_ns),
        legend=tuple(reversed(build_tenant_legend())),
        end_ms=_to_ms(curve.end_ns),
        peak_ms=_to_ms(timeline.time_ns[curve.peak]),
        steps_ms=tuple((_to_ms(start_ns), f"step {step}") for start_ns, step in timeline.steps),
        phases_ms=tuple(
            (_to_ms(start_ns), _to_ms(end_ns), shorten(phase, _MAX_PHASE))
            for start_ns, end_ns, phase in _list_phases(curve)
        ),
    )


def _format_caption(curve: Curve, kept: int, timelines: int, unit: str) -> str:
    total = len(curve.timeline.time_ns)
    points = f"{kept:,} of {total:,} recorded times, each with the maximum of its interval"
    text = f"Sizes in {unit}, times in ms; {points if kept < total else f'all {total:,} recorded times'}"
    others = "one other rank" if timelines == 2 else f"{timelines - 1} other ranks"
    return f"{text}; timelines of {others}: zprof report RUN -f json" if timelines > 1 else text


def _downsample(curve: Curve, max_points: int) -> list[int]:
    """Return the indices of the points to keep: the first point, and the maximum of each interval."""
    heights = curve.heights
    count = len(heights)
    if count <= max_points:
        return list(range(count))
    edges = [count * part // (max_points - 1) for part in range(max_points)]
    highest = (max(range(start, end), key=heights.__getitem__) for start, end in pairwise(edges))
    return sorted({0, *highest})


def _build_outline(curve: Curve, upper: Sequence[int], indices: Sequence[int]) -> str:
    """Return the SVG path of an area down to the baseline; upper areas are drawn first."""
    times = curve.timeline.time_ns
    parts = [f"M{_scale_x(curve, times[indices[0]])} {_VIEWBOX_SIZE}V{_scale_y(curve, upper[indices[0]])}"]
    last = upper[indices[0]]
    for index in indices[1:]:
        if upper[index] != last:
            last = upper[index]
            parts.append(f"H{_scale_x(curve, times[index])}V{_scale_y(curve, last)}")
    return "".join([*parts, f"H{_VIEWBOX_SIZE}V{_VIEWBOX_SIZE}Z"])


def _scale_x(curve: Curve, time_ns: int) -> str:
    return f"{10 * _scale_to_percent(curve, time_ns):.1f}"


def _scale_y(curve: Curve, size: float) -> str:
    return f"{_VIEWBOX_SIZE * (1 - size / max(1, curve.top_bytes)):.1f}"


def _scale_to_percent(curve: Curve, time_ns: int) -> float:
    return round(100 * min(1.0, max(0.0, time_ns / max(1, curve.end_ns))), 2)


def _list_step_marks(curve: Curve) -> Iterator[AxisMark]:
    """Yield a mark at each step start, dropping labels that would overlap."""
    next_free = 0.0
    for start_ns, step in curve.timeline.steps:
        at = _scale_to_percent(curve, start_ns)
        is_named = next_free <= at <= 100 - _MIN_STEP
        next_free = at + _MIN_STEP if is_named else next_free
        yield AxisMark(at=at, text=f"step {step}" if is_named else "")


def _list_phase_marks(curve: Curve) -> Iterator[AxisMark]:
    """Yield the visible phases, with a label if it fits."""
    for start_ns, end_ns, phase in _list_phases(curve):
        start, end = _scale_to_percent(curve, start_ns), _scale_to_percent(curve, end_ns)
        if end - start >= 0.3:
            text = shorten(phase, _MAX_PHASE) if end - start >= _MIN_PHASE else ""
            yield AxisMark(at=start, text=text, width=round(end - start, 2))


def _list_phases(curve: Curve) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and name of the named phases; a snapshot timeline has no phases."""
    phases = curve.timeline.phases
    ends = [start for start, _ in phases[1:]] + [curve.end_ns] * bool(phases)
    for (start_ns, phase), end_ns in zip(phases, ends, strict=True):
        if phase != "other":
            yield start_ns, end_ns, phase


def _to_ms(time_ns: float) -> float:
    return round(time_ns / 1e6, 6)
