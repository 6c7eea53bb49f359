"""Sensitivity of a plan: a table and a chart per condition, the break-even, the speed-up taken apart."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log2

from zprof.model.formatting import format_percent, shorten
from zprof.model.plan import BreakEven, Sensitivity, SensitivityPoint, SpeedUp
from zprof.reports.page import UNKNOWN, AxisMark, Column, Line, LineChart, LinePoint, Table
from zprof.reports.presenters.plan_words import (
    choose_size_scale,
    choose_time_scale,
    format_integer,
    format_plan_time,
    format_scaled,
    make_plan_row,
    make_plan_table,
)

_MAX_LINES = 4
#: Percent of a chart's width and height that is left free at its edges, so that points there are whole.
_MARGIN = 6.0
#: What follows the value of a condition in the name of a line.
_UNITS = {"bandwidth": "bandwidth", "latency": "per hop", "tokens": "tokens", "world": "devices"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What one series varies, and how its values are written.

    ``leaf``: the series in a sensitivity; ``field``: what varies of its points.
    """

    leaf: str
    field: str
    title: str
    head: str
    axis: str
    words: Callable[[SensitivityPoint], str]
    logarithmic: bool = True


def format_bandwidth(point: SensitivityPoint) -> str:
    """Return it as a share of what the group gets: the lesser of the bus in a node and the node's cards."""
    return f"{point.bandwidth_ratio * 100:g} %"


BANDWIDTH = Condition(
    leaf="bandwidth",
    field="bandwidth_ratio",
    title="Bandwidth between nodes",
    head="bandwidth",
    axis="bandwidth, % of what the group gets",
    words=format_bandwidth,
    logarithmic=False,
)
CONDITIONS = (
    BANDWIDTH,
    Condition(
        leaf="latency",
        field="latency_ns",
        title="Latency of a hop",
        head="a hop",
        axis="latency of a hop between nodes",
        words=lambda point: format_plan_time(point.latency_ns),
    ),
    Condition(
        leaf="tokens",
        field="tokens",
        title="Tokens of a device",
        head="tokens",
        axis="tokens of a device in a micro-batch",
        words=lambda point: format_integer(point.tokens),
    ),
    Condition(
        leaf="world",
        field="devices",
        title="World size",
        head="devices",
        axis="devices",
        words=lambda point: format_integer(point.devices),
    ),
)


def get_points(found: Sensitivity, condition: Condition) -> Sequence[SensitivityPoint]:
    """Return the series over a condition."""
    points: Sequence[SensitivityPoint] = getattr(found, condition.leaf)
    return points


def is_varied(condition: Condition, points: Sequence[SensitivityPoint]) -> bool:
    """Return if a condition has more than one value in a series."""
    return len({getattr(point, condition.field) for point in points}) > 1


def describe_fixed_conditions(condition: Condition, points: Sequence[SensitivityPoint]) -> str:
    """Return what all points have in common, so that a table can be read alone."""
    first = points[0]
    said = {
        "bandwidth": f"{format_bandwidth(first)} bandwidth",
        "latency": f"{format_plan_time(first.latency_ns)} per hop",
        "tokens": f"{format_integer(first.tokens)} tokens",
        "world": f"{format_integer(first.devices)} devices",
    }
    kept = [
        said[other.leaf] for other in CONDITIONS if other is not condition and not is_varied(other, points)
    ]
    return ", ".join(kept)


#: A node's cards at half their speed change nothing where the bus in a node is the limit.
_GROUP = (
    "Bandwidth: of what the data-parallel group gets, the lesser of the bus in a node and the node's cards; "
    "--bandwidth changes the cards alone."
)


def build_sensitivity_tables(found: Sensitivity) -> tuple[Table, ...]:
    """Return the break-even, a table per condition and the speed-up, as far as they were asked for."""
    series = [
        _series(condition, points) for condition in CONDITIONS if (points := get_points(found, condition))
    ]
    return (*_break_even(found.break_even), *series, *_speed_up(found.speed_up))


def _series(condition: Condition, points: Sequence[SensitivityPoint]) -> Table:
    times = choose_time_scale([point.wall_ns for point in points])
    sizes = choose_size_scale([point.state_bytes for point in points])
    others = [other for other in CONDITIONS if other is not condition and is_varied(other, points)]
    return make_plan_table(
        title=condition.title,
        unit=times.unit,
        note="a step of ZeRO-3",
        head=condition.head,
        columns=(
            *(Column(title=other.head, unit="count") for other in others),
            *(Column(title=title, unit=times.unit) for title in ("step", "compute", "exposed")),
            Column(title="efficiency", unit="%"),
            Column(title="states", unit=sizes.unit),
        ),
        rows=tuple(
            make_plan_row(
                name=condition.words(point),
                cells=(
                    *(other.words(point) for other in others),
                    *(
                        format_scaled(time, times)
                        for time in (point.wall_ns, point.compute_ns, point.exposed_ns)
                    ),
                    format_percent(point.efficiency_ratio),
                    format_scaled(point.state_bytes, sizes),
                ),
            )
            for point in points
        ),
        notes=(
            *(f"At {said}." for said in [describe_fixed_conditions(condition, points)] if said),
            *([_GROUP] if is_varied(BANDWIDTH, points) else []),
        ),
    )


def _break_even(rows: Sequence[BreakEven]) -> Iterator[Table]:
    if not rows:
        return
    kept = f"{rows[0].kept_ratio * 100:g} %"
    yield make_plan_table(
        title="Break-even",
        note="tokens of a device in a micro-batch",
        head="hardware",
        columns=(
            Column(title="bandwidth", unit="%"),
            *(Column(title=title, unit="tokens") for title in ("forward", "backward", "holds from")),
        ),
        rows=tuple(
            make_plan_row(
                name=row.hardware,
                cells=(
                    f"{row.bandwidth_ratio * 100:g} %",
                    format_integer(row.forward_tokens),
                    format_integer(row.backward_tokens),
                    format_integer(row.holds_from_tokens),
                ),
            )
            for row in rows
        ),
        notes=(
            "Forward, backward: from so many tokens on, compute hides what that pass moves, without latency.",
            f"Holds from: the whole step keeps {kept} of its speed, latency included"
            + (f"; {UNKNOWN}: unknown." if any(row.holds_from_tokens is None for row in rows) else "."),
            _GROUP,
        ),
    )


def _speed_up(rows: Sequence[SpeedUp]) -> Iterator[Table]:
    if not rows:
        return
    sizes = choose_size_scale([max(row.state_bytes, row.activation_bytes) for row in rows])
    yield make_plan_table(
        title="Speed-up taken apart",
        unit=sizes.unit,
        note="throughput of a device",
        head="devices",
        columns=(
            Column(title="samples", unit="count"),
            Column(title="states", unit=sizes.unit),
            Column(title="activations", unit=sizes.unit),
            Column(title="whole", unit="ratio"),
            Column(title="equal batch", unit="ratio"),
            Column(title="larger batch", unit="ratio"),
        ),
        rows=tuple(
            make_plan_row(
                name=format_integer(row.devices),
                cells=(
                    f"<= {format_integer(row.samples)}" if row.at_most else format_integer(row.samples),
                    format_scaled(row.state_bytes, sizes),
                    format_scaled(row.activation_bytes, sizes),
                    *(
                        f"x{ratio:.2f}"
                        for ratio in (row.whole_ratio, row.equal_batch_ratio, row.larger_batch_ratio)
                    ),
                ),
            )
            for row in rows
        ),
        notes=(
            f"Against {format_integer(rows[0].devices)} devices; whole = equal batch x larger batch; "
            "above x1.00 a device does more than it did: super-linear.",
            "Samples: the largest micro-batch of a device that fits.",
        ),
    )


def build_sensitivity_charts(found: Sensitivity) -> tuple[LineChart, ...]:
    """Return the efficiency over each condition that has two values or more."""
    charts = (_chart(condition, get_points(found, condition)) for condition in CONDITIONS)
    return tuple(chart for chart in charts if chart is not None)


def _chart(condition: Condition, points: Sequence[SensitivityPoint]) -> LineChart | None:
    places = sorted({_place(point, condition) for point in points})
    if len(places) < 2 or places[0] <= 0:
        return None
    values = {_place(point, condition): condition.words(point) for point in points}
    scale = (places[0], places[-1], condition.logarithmic)
    title = f"Efficiency over {condition.axis.partition(',')[0]}"
    fixed = describe_fixed_conditions(condition, points)
    return LineChart(
        title=f"{title}: {fixed}" if fixed else title,
        x_title=condition.axis,
        y_title="efficiency: compute / step, %",
        marks=tuple(
            AxisMark(at=_along(place, *scale), text=shorten(values[place], 24))
            for place in _apart(places, condition.logarithmic)
        ),
        heights=tuple(AxisMark(at=_up(at), text=f"{at} %") for at in (0, 25, 50, 75, 100)),
        lines=tuple(_lines(condition, points, scale)),
    )


def _place(point: SensitivityPoint, condition: Condition) -> float:
    return float(getattr(point, condition.field))


def _along(value: float, low: float, high: float, logarithmic: bool) -> float:
    if logarithmic:
        low, high, value = log2(low), log2(high), log2(value)
    share = (value - low) / (high - low) if high > low else 0.5
    return round(_MARGIN + (100 - 2 * _MARGIN) * min(1.0, max(0.0, share)), 2)


def _up(percent: float) -> float:
    """Return the distance from the top."""
    return round(100 - _along(percent, 0, 100, False), 2)


def _apart(places: Sequence[float], logarithmic: bool) -> Iterator[float]:
    """Yield the places whose words have room: a tenth of the axis or more between two."""
    along = [log2(place) if logarithmic else place for place in places]
    free = along[0]
    for place, at in zip(places, along, strict=True):
        if at >= free:
            yield place
            free = at + 0.1 * (along[-1] - along[0])


def _lines(
    condition: Condition, points: Sequence[SensitivityPoint], scale: tuple[float, float, bool]
) -> Iterator[Line]:
    """Yield one line for each combination of the other conditions."""
    others = [other for other in CONDITIONS if other is not condition and is_varied(other, points)]
    lines: dict[str, list[SensitivityPoint]] = {}
    for point in points:
        name = ", ".join(f"{other.words(point)} {_UNITS[other.leaf]}" for other in others)
        lines.setdefault(name, []).append(point)
    for name, held in list(lines.items())[:_MAX_LINES]:
        yield Line(
            name=name or "ZeRO-3",
            points=tuple(
                LinePoint(
                    x=_along(_place(point, condition), *scale),
                    y=_up(point.efficiency_ratio * 100),
                    text=f"{condition.words(point)}: {format_percent(point.efficiency_ratio)}, "
                    f"step {format_plan_time(point.wall_ns)}",
                )
                for point in sorted(held, key=lambda point: _place(point, condition))
            ),
        )
