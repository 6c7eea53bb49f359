"""Sensitivity of a plan as tables: break-even, one condition each, and speed-up taken apart."""

from collections.abc import Iterator, Sequence

from zprof.model.planning.sensitivity import BreakEven, Point, Sensitivity, SpeedUp
from zprof.model.units import format_percent
from zprof.reports.plan.conditions import BANDWIDTH, CONDITIONS, Condition, fixed_words, points_of, varies
from zprof.reports.plan.grid import Grid, GridColumn, GridRow
from zprof.reports.plan.words import UNKNOWN, scaled, size_scale, time_scale, whole

#: A node's cards at half their speed change nothing where the bus in a node is the limit.
_GROUP = (
    "bandwidth: of what the data-parallel group gets, the lesser of the bus in a node and the node's cards; "
    "--bandwidth changes the cards alone"
)


def sensitivity_grids(found: Sensitivity) -> tuple[Grid, ...]:
    """A table a condition, then break-even and speed-up; what was not asked has none."""
    series = [
        _series(condition, points) for condition in CONDITIONS if (points := points_of(found, condition))
    ]
    return (*_break_even(found.break_even), *series, *_speed_up(found.speed_up))


def _series(condition: Condition, points: Sequence[Point]) -> Grid:
    times = time_scale([point.wall_ns for point in points])
    sizes = size_scale([point.state_bytes for point in points])
    others = [other for other in CONDITIONS if other is not condition and varies(other, points)]
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
        notes=(
            *(f"at {said}" for said in [fixed_words(condition, points)] if said),
            *([_GROUP] if varies(BANDWIDTH, points) else []),
        ),
    )


def _break_even(rows: Sequence[BreakEven]) -> Iterator[Grid]:
    if not rows:
        return
    kept = f"{rows[0].kept_ratio * 100:g} %"
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
            _GROUP,
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
                    f"<= {whole(row.samples)}" if row.at_most else whole(row.samples),
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
