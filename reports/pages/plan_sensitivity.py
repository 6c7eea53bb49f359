"""Build the sensitivity part of a plan: tables and charts per condition, break-even, speed-up breakdown."""

from collections.abc import Callable, Iterator, Sequence
from math import log2

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.formatting import format_percent, shorten
from zprof.model.cursor import Cursor, get, read
from zprof.model.plan import BreakEven, Plan, Sensitivity, SensitivityPoint, SpeedUp
from zprof.model.quantities import Bound, Unit
from zprof.reports.page import AxisMark, Line, LineChart, LinePoint
from zprof.reports.pages.plan_tables import (
    IN_FULL,
    choose_size_scale,
    choose_time_scale,
    format_integer,
    format_plan_time,
    make_plan_table,
    read_scaled,
)
from zprof.reports.table import UNKNOWN, Column, Row, Table, make_number_columns

_MAX_LINES = 4
#: Fields of a break-even, in column order.
_TOKENS = ("forward_tokens", "backward_tokens", "holds_from_tokens")
#: Factors of a speed-up, in column order.
_FACTORS = ("whole_ratio", "equal_batch_ratio", "larger_batch_ratio")
#: Margin in percent of the chart, to avoid clipping points at the edges.
_MARGIN = 6.0
#: Unit after the value of a condition in a line name.
_UNITS = {"bandwidth": "bandwidth", "latency": "per hop", "tokens": "tokens", "world": "devices"}


class Condition(Struct, frozen=True, kw_only=True):
    """A condition varied by a series, and the format of its values.

    ``leaf``: field of the series in ``Sensitivity``; ``field``: the varied field of a point.
    """

    leaf: str
    field: str
    title: str
    head: str
    axis: str
    words: Callable[[SensitivityPoint], str]
    logarithmic: bool = True


def _format_bandwidth(point: SensitivityPoint) -> str:
    """Format the bandwidth relative to the group's: the smaller of the node's bus and network cards."""
    return f"{point.bandwidth_ratio * 100:g} %"


_BANDWIDTH = Condition(
    leaf="bandwidth",
    field="bandwidth_ratio",
    title="Bandwidth between nodes",
    head="bandwidth",
    axis="bandwidth, % of the bandwidth of the group",
    words=_format_bandwidth,
    logarithmic=False,
)
_WORLD = Condition(
    leaf="world",
    field="devices",
    title="World size",
    head="devices",
    axis="devices",
    words=lambda point: format_integer(point.devices),
)
_CONDITIONS = (
    _BANDWIDTH,
    Condition(
        leaf="latency",
        field="latency_ns",
        title="Latency per hop",
        head="per hop",
        axis="latency per hop between nodes",
        words=lambda point: format_plan_time(point.latency_ns),
    ),
    Condition(
        leaf="tokens",
        field="tokens",
        title="Tokens per device",
        head="tokens",
        axis="tokens per device and micro-batch",
        words=lambda point: format_integer(point.tokens),
    ),
    _WORLD,
)


def _is_varied(condition: Condition, points: Sequence[SensitivityPoint]) -> bool:
    """Return True if a condition has several values in a series."""
    return len({getattr(point, condition.field) for point in points}) > 1


def _describe_fixed_conditions(condition: Condition, points: Sequence[SensitivityPoint]) -> str:
    """Describe the conditions that are equal in all points, to make a table self-explanatory."""
    first = points[0]
    words = {
        "bandwidth": f"{_format_bandwidth(first)} bandwidth",
        "latency": f"{format_plan_time(first.latency_ns)} per hop",
        "tokens": f"{format_integer(first.tokens)} tokens",
        "world": f"{format_integer(first.devices)} devices",
    }
    kept = [
        words[other.leaf] for other in _CONDITIONS if other is not condition and not _is_varied(other, points)
    ]
    return ", ".join(kept)


#: Slower network cards change nothing if the bus within the node is the bottleneck.
_GROUP = (
    "Bandwidth is relative to that of the data-parallel group, the smaller of the bus in a node and its "
    "network cards; --bandwidth changes only the cards."
)


_STATES = Column(title="states", help="model states of a device at rest")


def build_sensitivity_tables(plan: Plan) -> tuple[Table, ...]:
    """Build the requested tables: break-even, one per condition, and the speed-up."""
    found = Cursor(plan).sensitivity
    return (
        *_build_break_even_table(list(found.break_even)),
        *(
            _build_series_table(condition, list(found[condition.leaf]))
            for condition in _CONDITIONS
            if len(found[condition.leaf])
        ),
        *_build_speed_up_table(list(found.speed_up)),
    )


def _build_series_table(condition: Condition, places: Sequence[Cursor]) -> Table:
    points: list[SensitivityPoint] = [get(place) for place in places]
    times = choose_time_scale([point.wall_ns for point in points])
    sizes = choose_size_scale([point.state_bytes for point in points])
    others = [other for other in _CONDITIONS if other is not condition and _is_varied(other, points)]
    fixed = _describe_fixed_conditions(condition, points)
    return make_plan_table(
        title=condition.title,
        unit=times.unit,
        note="one step of ZeRO-3",
        head=condition.head,
        columns=(
            *make_number_columns(*(other.head for other in others), unit="count"),
            *make_number_columns("step", "compute", "exposed", unit=times.unit),
            *make_number_columns("efficiency", unit="%"),
            replace(_STATES, unit=sizes.unit),
        ),
        rows=[
            Row(
                cells=(
                    condition.words(get(place)),
                    *(other.words(get(place)) for other in others),
                    *(read_scaled(place[field], times) for field in ("wall_ns", "compute_ns", "exposed_ns")),
                    read(place.efficiency_ratio),
                    read_scaled(place.state_bytes, sizes),
                )
            )
            for place in places
        ],
        notes=(*([f"At {fixed}."] if fixed else []), *([_GROUP] if _is_varied(_BANDWIDTH, points) else [])),
    )


def _build_break_even_table(places: Sequence[Cursor]) -> Iterator[Table]:
    if not places:
        return
    rows: list[BreakEven] = [get(place) for place in places]
    kept = f"{rows[0].kept_ratio * 100:g} %"
    yield make_plan_table(
        title="Break-even",
        note="tokens per device and micro-batch",
        head="hardware",
        columns=(
            *make_number_columns(_BANDWIDTH.head, unit="%"),
            *make_number_columns("forward", "backward", "full step", unit="tokens"),
        ),
        rows=[
            Row(
                cells=(
                    get(place).hardware,
                    f"{get(place).bandwidth_ratio * 100:g} %",
                    *(read_scaled(place[field], IN_FULL) for field in _TOKENS),
                )
            )
            for place in places
        ],
        notes=(
            "Forward, backward: tokens from which compute hides that pass's transfers, ignoring latency.",
            f"Full step: tokens from which the step keeps {kept} of its speed, including latency"
            + (f"; {UNKNOWN}: unknown." if any(row.holds_from_tokens is None for row in rows) else "."),
            _GROUP,
        ),
    )


def _build_speed_up_table(places: Sequence[Cursor]) -> Iterator[Table]:
    if not places:
        return
    rows: list[SpeedUp] = [get(place) for place in places]
    sizes = choose_size_scale([max(row.state_bytes, row.activation_bytes) for row in rows])

    def make_row(place: Cursor) -> Row:
        row: SpeedUp = get(place)
        bound = Bound.AT_MOST if row.at_most else Bound.EXACT
        return Row(
            cells=(
                format_integer(row.devices),
                replace(read(place.samples), bound=bound),
                read_scaled(place.state_bytes, sizes),
                read_scaled(place.activation_bytes, sizes),
                *(replace(read(place[field]), unit=Unit.FACTOR) for field in _FACTORS),
            )
        )

    yield make_plan_table(
        title="Speed-up breakdown",
        unit=sizes.unit,
        note="throughput per device",
        head=_WORLD.head,
        columns=(
            *make_number_columns("samples", unit="count"),
            replace(_STATES, unit=sizes.unit),
            *make_number_columns("activations", unit=sizes.unit),
            *make_number_columns("total", "equal batch", "larger batch", unit="ratio"),
        ),
        rows=[make_row(place) for place in places],
        notes=(
            f"Against {format_integer(rows[0].devices)} devices; total = equal batch x larger batch; "
            "above 1.00x is super-linear: each device does more work than before.",
            "Samples: the largest micro-batch that fits a device.",
        ),
    )


def build_sensitivity_charts(sensitivity: Sensitivity) -> tuple[LineChart, ...]:
    """Build an efficiency chart for each condition with at least two values."""
    charts = (_build_chart(condition, getattr(sensitivity, condition.leaf)) for condition in _CONDITIONS)
    return tuple(chart for chart in charts if chart is not None)


def _build_chart(condition: Condition, points: Sequence[SensitivityPoint]) -> LineChart | None:
    axis_values = sorted({_get_value(point, condition) for point in points})
    if len(axis_values) < 2 or axis_values[0] <= 0:
        return None
    values = {_get_value(point, condition): condition.words(point) for point in points}
    scale = (axis_values[0], axis_values[-1], condition.logarithmic)
    title = f"Efficiency over {condition.axis.partition(',')[0]}"
    fixed = _describe_fixed_conditions(condition, points)
    return LineChart(
        title=f"{title}: {fixed}" if fixed else title,
        x_title=condition.axis,
        y_title="efficiency: compute / step, %",
        marks=tuple(
            AxisMark(at=_scale_to_axis(value, *scale), text=shorten(values[value], 24))
            for value in _select_labels(axis_values, condition.logarithmic)
        ),
        heights=tuple(AxisMark(at=_scale_to_height(at), text=f"{at} %") for at in (0, 25, 50, 75, 100)),
        lines=tuple(_build_lines(condition, points, scale)),
    )


def _get_value(point: SensitivityPoint, condition: Condition) -> float:
    return float(getattr(point, condition.field))


def _scale_to_axis(value: float, low: float, high: float, logarithmic: bool) -> float:
    if logarithmic:
        low, high, value = log2(low), log2(high), log2(value)
    share = (value - low) / (high - low) if high > low else 0.5
    return round(_MARGIN + (100 - 2 * _MARGIN) * min(1.0, max(0.0, share)), 2)


def _scale_to_height(percent: float) -> float:
    """Return the distance from the top, in percent."""
    return round(100 - _scale_to_axis(percent, 0, 100, False), 2)


def _select_labels(axis_values: Sequence[float], logarithmic: bool) -> Iterator[float]:
    """Yield the values to label: at least a tenth of the axis apart."""
    positions = [log2(value) if logarithmic else value for value in axis_values]
    next_free = positions[0]
    for value, at in zip(axis_values, positions, strict=True):
        if at >= next_free:
            yield value
            next_free = at + 0.1 * (positions[-1] - positions[0])


def _build_lines(
    condition: Condition, points: Sequence[SensitivityPoint], scale: tuple[float, float, bool]
) -> Iterator[Line]:
    """Yield one line per combination of the other conditions."""
    others = [other for other in _CONDITIONS if other is not condition and _is_varied(other, points)]
    lines: dict[str, list[SensitivityPoint]] = {}
    for point in points:
        name = ", ".join(f"{other.words(point)} {_UNITS[other.leaf]}" for other in others)
        lines.setdefault(name, []).append(point)
    for name, line_points in list(lines.items())[:_MAX_LINES]:
        yield Line(
            name=name or "ZeRO-3",
            points=tuple(
                LinePoint(
                    x=_scale_to_axis(_get_value(point, condition), *scale),
                    y=_scale_to_height(point.efficiency_ratio * 100),
                    text=f"{condition.words(point)}: {format_percent(point.efficiency_ratio)}, "
                    f"step {format_plan_time(point.wall_ns)}",
                )
                for point in sorted(line_points, key=lambda point: _get_value(point, condition))
            ),
        )
