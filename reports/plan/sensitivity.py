"""Sensitivity of a plan as tables and lines: bandwidth, latency, tokens, world size, break-even, speed-up."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log2

from zprof.model.planning.sensitivity import BreakEven, Point, Sensitivity, SpeedUp
from zprof.model.units import format_percent
from zprof.reports.plan.grid import (
    Chart,
    ChartAxis,
    ChartLine,
    ChartPoint,
    Grid,
    GridColumn,
    GridRow,
)
from zprof.reports.plan.words import UNKNOWN, scaled, size_scale, time_scale, time_words, whole

_MOST_LINES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """What one series varies: the leaf, its name, and how a value of it reads."""

    leaf: str
    title: str
    head: str
    axis: str
    words: Callable[[Point], str]
    logarithmic: bool = True


def _bandwidth(point: Point) -> str:
    return f"{point.bandwidth_ratio * 100:g} %"


_CONDITIONS = (
    _Condition(
        leaf="bandwidth",
        title="Bandwidth between nodes",
        head="bandwidth",
        axis="bandwidth, % of the hardware's",
        words=_bandwidth,
        logarithmic=False,
    ),
    _Condition(
        leaf="latency",
        title="Latency of a hop",
        head="a hop",
        axis="latency of a hop between nodes",
        words=lambda point: time_words(point.latency_ns),
    ),
    _Condition(
        leaf="tokens",
        title="Tokens of a device",
        head="tokens",
        axis="tokens of a device in a micro-batch",
        words=lambda point: whole(point.tokens),
    ),
    _Condition(
        leaf="world",
        title="World size",
        head="devices",
        axis="devices",
        words=lambda point: whole(point.devices),
    ),
)
_FIELDS = {"bandwidth": "bandwidth_ratio", "latency": "latency_ns", "tokens": "tokens", "world": "devices"}


def sensitivity_grids(found: Sensitivity) -> tuple[Grid, ...]:
    """A table a condition, then break-even and speed-up; what was not asked has none."""
    series = [
        _series(condition, points) for condition in _CONDITIONS if (points := _points(found, condition))
    ]
    return (*_break_even(found.break_even), *series, *_speed_up(found.speed_up))


def sensitivity_charts(found: Sensitivity) -> tuple[Chart, ...]:
    """Efficiency over each condition that has two values or more."""
    return tuple(
        chart
        for condition in _CONDITIONS
        if (chart := _chart(condition, _points(found, condition))) is not None
    )


def _points(found: Sensitivity, condition: _Condition) -> Sequence[Point]:
    points: Sequence[Point] = getattr(found, condition.leaf)
    return points


def _series(condition: _Condition, points: Sequence[Point]) -> Grid:
    times = time_scale([point.wall_ns for point in points])
    sizes = size_scale([point.state_bytes for point in points])
    others = [other for other in _CONDITIONS if other is not condition and _varies(other, points)]
    return Grid(
        title=condition.title,
        unit=times.unit,
        note="a step of ZeRO-3",
        head=condition.head,
        columns=(
            *(GridColumn(title=other.head, unit="count") for other in others),
            *(GridColumn(title=title, unit=times.unit) for title in ("step", "compute", "exposed")),
            GridColumn(title="efficiency", unit="%"),
            GridColumn(title="states", unit=sizes.unit),
        ),
        rows=tuple(
            GridRow(
                name=condition.words(point),
                cells=(
                    *(other.words(point) for other in others),
                    *(scaled(time, times) for time in (point.wall_ns, point.compute_ns, point.exposed_ns)),
                    format_percent(point.efficiency_ratio),
                    scaled(point.state_bytes, sizes),
                ),
            )
            for point in points
        ),
        notes=tuple(f"at {said}" for said in [_fixed(condition, points)] if said),
    )


def _varies(condition: _Condition, points: Sequence[Point]) -> bool:
    return len({getattr(point, _FIELDS[condition.leaf]) for point in points}) > 1


def _fixed(condition: _Condition, points: Sequence[Point]) -> str:
    """What all of the series have in common, so that a table can be read alone."""
    first = points[0]
    said = {
        "bandwidth": f"{_bandwidth(first)} bandwidth",
        "latency": f"{time_words(first.latency_ns)} a hop",
        "tokens": f"{whole(first.tokens)} tokens",
        "world": f"{whole(first.devices)} devices",
    }
    kept = [
        said[other.leaf] for other in _CONDITIONS if other is not condition and not _varies(other, points)
    ]
    return ", ".join(kept)


def _break_even(rows: Sequence[BreakEven]) -> Iterator[Grid]:
    if not rows:
        return
    kept = format_percent(rows[0].kept_ratio)
    yield Grid(
        title="Break-even",
        note="tokens of a device in a micro-batch",
        head="hardware",
        columns=(
            GridColumn(title="bandwidth", unit="%"),
            *(GridColumn(title=title, unit="tokens") for title in ("forward", "backward", "holds from")),
        ),
        rows=tuple(
            GridRow(
                name=row.hardware,
                cells=(
                    f"{row.bandwidth_ratio * 100:g} %",
                    whole(row.forward_tokens),
                    whole(row.backward_tokens),
                    whole(row.holds_from_tokens),
                ),
            )
            for row in rows
        ),
        notes=(
            "forward, backward: from so many tokens on compute hides what that pass moves, without latency",
            f"holds from: the whole step keeps {kept} of its speed, latency included"
            + (f"; {UNKNOWN}: not known" if any(row.holds_from_tokens is None for row in rows) else ""),
        ),
    )


def _speed_up(rows: Sequence[SpeedUp]) -> Iterator[Grid]:
    if not rows:
        return
    sizes = size_scale([max(row.state_bytes, row.activation_bytes) for row in rows])
    yield Grid(
        title="Speed-up taken apart",
        unit=sizes.unit,
        note="throughput of a device",
        head="devices",
        columns=(
            GridColumn(title="samples", unit="count"),
            GridColumn(title="states", unit=sizes.unit),
            GridColumn(title="activations", unit=sizes.unit),
            GridColumn(title="whole", unit="ratio"),
            GridColumn(title="equal batch", unit="ratio"),
            GridColumn(title="larger batch", unit="ratio"),
        ),
        rows=tuple(
            GridRow(
                name=whole(row.devices),
                cells=(
                    whole(row.samples),
                    scaled(row.state_bytes, sizes),
                    scaled(row.activation_bytes, sizes),
                    *(
                        f"x{ratio:.2f}"
                        for ratio in (row.whole_ratio, row.equal_batch_ratio, row.larger_batch_ratio)
                    ),
                ),
            )
            for row in rows
        ),
        notes=(
            f"against {whole(rows[0].devices)} devices; whole = equal batch x larger batch; "
            "above x1.00 a device does more than it did: super-linear",
            "samples: the largest micro-batch of a device that fits",
        ),
    )


def _chart(condition: _Condition, points: Sequence[Point]) -> Chart | None:
    field = _FIELDS[condition.leaf]
    places = sorted({_place(point, field) for point in points})
    if len(places) < 2 or places[0] <= 0:
        return None
    marks = {_place(point, field): condition.words(point) for point in points}
    return Chart(
        title=": ".join(
            said
            for said in (f"Efficiency over {condition.axis.partition(',')[0]}", _fixed(condition, points))
            if said
        ),
        x=ChartAxis(
            title=condition.axis,
            low=places[0],
            high=places[-1],
            marks=tuple((place, marks[place]) for place in _apart(places, condition.logarithmic)),
            logarithmic=condition.logarithmic,
        ),
        y=ChartAxis(
            title="efficiency: compute / step, %",
            low=0,
            high=100,
            marks=tuple((at, f"{at} %") for at in (0, 25, 50, 75, 100)),
        ),
        lines=tuple(_lines(condition, points)),
    )


def _place(point: Point, field: str) -> float:
    return float(getattr(point, field))


def _apart(places: Sequence[float], logarithmic: bool) -> Iterator[float]:
    """Places whose words have room: at least a tenth of the axis between two."""
    along = [log2(place) if logarithmic else place for place in places]
    free = along[0]
    for place, at in zip(places, along, strict=True):
        if at >= free:
            yield place
            free = at + 0.1 * (along[-1] - along[0])


def _lines(condition: _Condition, points: Sequence[Point]) -> Iterator[ChartLine]:
    """One line for each combination of the other conditions."""
    others = [other for other in _CONDITIONS if other is not condition and _varies(other, points)]
    lines: dict[str, list[Point]] = {}
    for point in points:
        name = ", ".join(f"{other.words(point)} {_SAID[other.leaf]}".strip() for other in others)
        lines.setdefault(name, []).append(point)
    field = _FIELDS[condition.leaf]
    for name, held in list(lines.items())[:_MOST_LINES]:
        ordered = sorted(held, key=lambda point: _place(point, field))
        yield ChartLine(
            name=name or "ZeRO-3",
            points=tuple(
                ChartPoint(
                    x=_place(point, field),
                    y=point.efficiency_ratio * 100,
                    text=f"{condition.words(point)}: {format_percent(point.efficiency_ratio)}, "
                    f"step {time_words(point.wall_ns)}",
                )
                for point in ordered
            ),
        )


_SAID = {"bandwidth": "bandwidth", "latency": "a hop", "tokens": "tokens", "world": "devices"}
